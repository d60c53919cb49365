"""`fleetmq stream export`: write messages as JSON lines or as a Parquet file.

A file is written completely or not at all: first as a `.part` file, which is removed on failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from mqtt_broker.cli.errors import DONE, Failure, UsageError
from mqtt_broker.cli.stream_read import (
    FROM_HELP,
    add_log,
    add_skip,
    open_stream,
    resolve_offsets,
    whole_number,
)
from mqtt_broker.cli.stream_text import Progress, plural, record_json
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import Damaged, UnknownPartition
from mqtt_broker.streams.format.offsets import EARLIEST, LATEST, Offsets, check_range
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.remote.remote_source import RemoteSource, open_reader

_STDOUT: Final = "-"
OnDamage = Callable[[Damaged], None] | None


def add_actions(actions: Any, data_dir: str) -> None:
    found = actions.add_parser("export", help="write messages to a file")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    add_log(found, data_dir)
    found.add_argument(
        "--format", choices=("jsonl", "parquet"), default="jsonl", help="format of the file (jsonl)"
    )
    found.add_argument(
        "-o",
        "--output",
        default=_STDOUT,
        metavar="FILE",
        help="file to write (jsonl: standard output)",
    )
    found.add_argument(
        "--from", dest="start", default=EARLIEST, metavar="WHERE", help=f"{FROM_HELP} (earliest)"
    )
    found.add_argument(
        "--to", dest="end", default=LATEST, metavar="WHERE", help=f"{FROM_HELP} (latest)"
    )
    found.add_argument("--partition", type=whole_number, metavar="K", help="only this partition")
    found.add_argument("--force", action="store_true", help="overwrite FILE")
    found.add_argument("--quiet", action="store_true", help="print no progress and no counts")
    add_skip(found)


def _export(args: argparse.Namespace) -> int:
    if args.format == "parquet":
        if args.output == _STDOUT:
            raise UsageError("-o: give a file for --format parquet")
        _parquet()
    with open_stream(args, args.stream) as source:
        start, end = (
            resolve_offsets(source, "--from", args.start),
            resolve_offsets(source, "--to", args.end),
        )
        wanted = _ranges(source, args.partition, start, end)
        total = sum(until - offset for _, offset, until in wanted)
        with _output(args) as file, Progress(0 if args.quiet else total, "messages") as progress:

            def skip(damage: Damaged) -> None:
                progress.clear()
                print(f"fleetmq stream: {damage}", file=sys.stderr)

            on_damage = skip if args.skip_damage else None
            on_rows = (lambda rows: None) if args.quiet else progress.add
            if args.format == "jsonl":
                rows = _write_lines(file, source, wanted, on_rows, on_damage)
            else:
                about = {
                    "stream": source.name, "epoch": source.epoch,
                    "from": start.text(), "to": end.text(),
                }  # fmt: skip
                rows = _write_parquet(file, source, wanted, about, on_rows, on_damage)
    if not args.quiet:
        print(f"exported {plural(rows, 'message')}", file=sys.stderr)
    return DONE


Range = tuple[int, int, int]  # partition, offset, until


def _ranges(
    source: Source | RemoteSource, partition: int | None, start: Offsets, end: Offsets
) -> list[Range]:
    check_range(source.name, start, end)
    count = source.settings.partitions
    if partition is not None and partition >= count:
        raise UsageError(str(UnknownPartition(source.name, f"p{partition}", count)))
    return [
        (number, offset, until)
        for number, (offset, until) in enumerate(zip(start.ends, end.ends, strict=True))
        if partition in (None, number) and offset < until
    ]


@contextlib.contextmanager
def _output(args: argparse.Namespace) -> Iterator[IO[bytes]]:
    if args.output == _STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(args.output)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"-o: {path} is not a file that can be written")
    if path.exists() and not args.force:
        raise UsageError(f"-o: {path} exists: use --force to overwrite it")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        with contextlib.suppress(PermissionError):  # a directory that can be written and not read
            Disk().sync_directory(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write_lines(
    file: IO[bytes],
    source: Source | RemoteSource,
    wanted: list[Range],
    on_rows: Callable[[int], None],
    on_damage: OnDamage,
) -> int:
    rows = 0
    for number, offset, until in wanted:
        with open_reader(source, number, offset, until, on_damage) as reader:
            while batches := reader.read():
                for batch in batches:
                    lines = [record_json(record, number) + "\n" for record in records(batch)]
                    file.write("".join(lines).encode(errors="backslashreplace"))
                    rows += len(lines)
                    on_rows(len(lines))
    return rows


def _write_parquet(
    file: IO[bytes],
    source: Source | RemoteSource,
    wanted: list[Range],
    about: dict[str, str],
    on_rows: Callable[[int], None],
    on_damage: OnDamage,
) -> int:
    parquet_export = _parquet()
    batches = (
        batch
        for number, offset, until in wanted
        for batch in parquet_export.record_batches(source, number, offset, until, on_damage)
    )
    rows: int = parquet_export.write(file, batches, about, on_rows)
    return rows


def _parquet() -> Any:
    try:
        from mqtt_broker.streams.remote import parquet_export
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise Failure(
            "--format parquet needs pyarrow, which is not installed: pip install 'fleetmq[spark]'"
        ) from None
    return parquet_export


ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {"export": _export}
