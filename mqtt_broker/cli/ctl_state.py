"""`fleetmq ctl export|import`: the whole state of a stopped broker as lines of JSON."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from mqtt_broker.cli.errors import DONE, NO_DATABASE, Failure, UsageError
from sessions.store import export_import
from sessions.store.sqlite_files import sync
from sessions.store.store import Store, StoreError, Unreachable


def run(args: argparse.Namespace) -> int:
    """Write the state of a store, or read it into an empty one."""
    if not args.data_dir and not args.database_url:
        raise UsageError("no store given: use --data-dir DIR or --database-url URL")
    if args.data_dir and args.database_url:
        raise UsageError("--data-dir and --database-url name two stores: give one")
    try:
        if args.action == "export":
            _export(args)
        else:
            _import(args)
    except Unreachable as error:
        raise Failure(str(error), NO_DATABASE) from None
    except StoreError as error:
        raise Failure(str(error)) from None
    return DONE


@contextlib.contextmanager
def _store(args: argparse.Namespace, *, must_exist: bool) -> Iterator[Store]:
    store = Store.open(
        data_dir=args.data_dir or "", database_url=args.database_url or "", must_exist=must_exist
    )
    try:
        yield store
    finally:
        store.abandon()


def _progress(args: argparse.Namespace) -> Callable[[int], None]:
    def say(rows: int) -> None:
        if not args.quiet:
            print(f"{rows} rows", file=sys.stderr)

    return say


def _export(args: argparse.Namespace) -> None:
    with _store(args, must_exist=True) as store:
        if args.file == "-":
            count = _write(sys.stdout, store, args)
        else:
            count = _write_file(Path(args.file), store, args)
    if not args.quiet:
        print(f"exported {count} rows", file=sys.stderr)


def _write_file(path: Path, store: Store, args: argparse.Namespace) -> int:
    """Write the file whole or not at all, by way of a `.part` file. It is for its owner alone."""
    if path.exists() and not args.force:
        raise UsageError(f"{path} exists: use --force to overwrite it")
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            count = _write(file, store, args)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        with contextlib.suppress(PermissionError):  # a directory that can be written and not read
            sync(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Failure(f"{path}: {error.strerror}") from None
    return count


def _write(file: TextIO, store: Store, args: argparse.Namespace) -> int:
    lines = 0
    for line in export_import.export(store, _progress(args)):
        file.write(line)
        lines += 1
    return lines - 2  # without header and trailer


def _import(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        try:
            # As bytes, so that a line that is not UTF-8 is named by its number, too.
            file = sys.stdin.buffer if args.file == "-" else stack.enter_context(
                Path(args.file).open("rb")
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"{args.file}: {error.strerror}") from None
        store = stack.enter_context(_store(args, must_exist=False))
        counts = export_import.load(store, file, _progress(args))
    if not args.quiet:
        found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        print(f"imported {found or 'nothing'}", file=sys.stderr)
