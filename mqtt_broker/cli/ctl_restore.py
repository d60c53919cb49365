"""`fleetmq ctl restore`: make a data directory, and the rows of a database, of a backup."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqtt_broker.backup.manifest import BackupError, Manifest, read
from mqtt_broker.backup.restore import restore, verify
from mqtt_broker.cli.errors import DONE, NO_DATABASE, Failure, UsageError
from sessions.store.database import StoreError, Unreachable, parse_url

_PROGRESS_BYTES: Final = 1 << 30


def run(args: argparse.Namespace) -> int:
    """Restore or check a backup."""
    backup = Path(args.backup)
    if args.check and (args.data_dir or args.database_url):
        raise UsageError("--check restores nothing: leave out --data-dir and --database-url")
    try:
        if args.check:
            _say(args, f"{backup} is whole: {_described(verify(backup, _progress(args)))}")
            return DONE
        data_dir = _data_dir(args, backup)
        found = restore(backup, data_dir, args.database_url or "", _progress(args))
    except Unreachable as error:
        raise Failure(str(error), NO_DATABASE) from None
    except (BackupError, StoreError) as error:
        raise Failure(str(error)) from None
    where = f"--data-dir {data_dir}"
    if args.database_url:
        where += " --database-url URL"
    _say(args, f"restored {_described(found)}; start it: fleetmq broker {where}")
    return DONE


def _data_dir(args: argparse.Namespace, backup: Path) -> Path:
    if not args.data_dir and not args.database_url:
        raise UsageError(
            "no place given: use --data-dir DIR, and --database-url URL for a database"
        )
    if args.database_url:
        try:
            parse_url(args.database_url)
        except StoreError as error:
            raise UsageError(f"--database-url: {error}") from None
    if args.data_dir:
        return Path(args.data_dir)
    raise UsageError(
        f"--data-dir is missing: {_streams(read(backup))} stay in files beside a database, too; "
        "name the data directory that the broker will have"
    )


def _streams(found: Manifest) -> str:
    count = len(found.streams)
    return f"{count} stream{'' if count == 1 else 's'} and the broker's own files"


def _described(found: Manifest) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.created_at))
    return f"the state of {at}, {len(found.files)} files, {found.bytes} bytes"


def _progress(args: argparse.Namespace) -> Callable[[int], None]:
    done = said = 0

    def count(size: int) -> None:
        nonlocal done, said
        done += size
        if not args.quiet and done - said >= _PROGRESS_BYTES:
            said = done
            print(f"{done >> 20} MiB", file=sys.stderr)

    return count


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(text, file=sys.stderr)
