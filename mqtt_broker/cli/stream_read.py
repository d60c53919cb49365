"""`fleetmq stream list|describe|tail|verify`: show streams, with or without a broker.

They read the files of a directory, also while a broker writes to it, or ask a broker by the URL
of its HTTP server.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from mqtt_broker.cli.errors import DONE, FAILED, UsageError
from mqtt_broker.cli.stream_text import (
    Progress,
    count_text,
    keeps_text,
    moment_text,
    period_text,
    plain,
    plural,
    print_json,
    record_json,
    record_line,
    size_text,
    table,
)
from mqtt_broker.streams.format.errors import (
    Damaged,
    Invalid,
    OffsetGone,
    StreamError,
    UnknownPartition,
    UnreadableFile,
)
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.read import verify as checks
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.remote.remote_source import (
    RemoteReader,
    RemoteSource,
    is_url,
    list_streams,
    open_reader,
    open_source,
    stream_root,
)

FROM_HELP: Final = "earliest, latest, an ISO 8601 time, or offsets as JSON"
_LINES: Final = 10
_BATCH_BYTES: Final = 64 << 10  # of one read; small, so that the first lines appear soon
_LOOK_S: Final = 0.2
Actions = Any  # argparse has no public name for it


def add_actions(actions: Actions, data_dir: str) -> None:
    found = actions.add_parser("list", help="list the streams")
    add_log(found, data_dir)
    found.add_argument("--json", action="store_true", help="print JSON")

    found = actions.add_parser("describe", help="show settings, partitions and sizes of a stream")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    add_log(found, data_dir)
    found.add_argument("--json", action="store_true", help="print JSON")

    found = actions.add_parser("tail", help="show messages (default: the last ones)")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    add_log(found, data_dir)
    found.add_argument("-f", "--follow", action="store_true", help="continue with new messages")
    found.add_argument("--from", dest="start", metavar="WHERE", help=FROM_HELP)
    found.add_argument(
        "-n",
        dest="lines",
        type=whole_number,
        metavar="N",
        help=f"number of messages ({_LINES}; with --from: all)",
    )
    found.add_argument("--partition", type=whole_number, metavar="K", help="only this partition")
    found.add_argument(
        "--format", choices=("text", "json"), default="text", help="how to print them (text)"
    )
    add_skip(found)

    found = actions.add_parser("verify", help="read everything and report damage")
    found.add_argument("streams", metavar="STREAM", nargs="*", help="streams to verify (all)")
    add_log(found, data_dir)


def add_log(parser: argparse.ArgumentParser, data_dir: str) -> None:
    parser.add_argument(
        "--log",
        default=data_dir,
        metavar="DIR|URL",
        help=f"the broker's data directory or its streams, or http://host:port ({data_dir})",
    )
    add_token(parser)


def add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token", help="token of the HTTP server (FLEETMQ_HTTP_TOKEN)")


def add_skip(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--skip-damage", action="store_true", help="report damage and continue after it"
    )


def whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def open_stream(args: argparse.Namespace, name: str) -> Source | RemoteSource:
    check_log(args)
    return open_source(args.log, name, args.token)


def check_log(args: argparse.Namespace) -> None:
    if not is_url(args.log) and not Path(args.log).is_dir():
        raise UsageError(f"--log: there is no directory {args.log}")


def resolve_offsets(source: Source | RemoteSource, option: str, text: str) -> Offsets:
    try:
        return source.resolve(text)
    except UnreadableFile:
        raise
    except Invalid as error:
        raise UsageError(f"{option}: {error.why}") from None


def report_damage(damage: Damaged) -> None:
    print(f"fleetmq stream: {damage}", file=sys.stderr)


# list, describe


def _list(args: argparse.Namespace) -> int:
    check_log(args)
    found: list[dict[str, Any]] = []
    code = DONE
    for name in list_streams(args.log, args.token):
        try:
            found.append(_described(args, name))
        except StreamError as error:  # the other streams can still be shown
            print(f"fleetmq stream: {error}", file=sys.stderr)
            code = FAILED
    if args.json:
        print_json(found)
        return code
    rows = [("STREAM", "PARTITIONS", "MESSAGES", "SIZE", "KEEPS", "FIRST", "LAST", "FILTER")]
    for one in found:
        settings = one["settings"]
        rows.append(
            (
                one["name"],
                str(settings["partitions"]),
                count_text(one["offsets"]),
                size_text(one["bytes"]),
                _keeps(settings),
                moment_text(one["first"]),
                moment_text(one["last"]),
                plain(settings["filter"]) or "-",
            )
        )
    if found:
        print(*table(rows, right=(1, 2, 3)), sep="\n")
    elif code == DONE:
        print(f"no streams in {args.log}", file=sys.stderr)
    return code


def _described(args: argparse.Namespace, name: str) -> dict[str, Any]:
    with open_stream(args, name) as source:
        if isinstance(source, RemoteSource):
            found = source.describe()
        else:
            found = checks.describe(source)
        settings = asdict(source.settings)
        for key in ("name", "epoch"):
            del settings[key]
        schema = settings.pop("schema")
        firsts = [one["first"] for one in found["partitions"] if one["first"]]
        lasts = [one["last"] for one in found["partitions"] if one["last"]]
        return {
            "name": source.name,
            "epoch": source.epoch,
            "settings": settings,
            "schema": schema,
            "offsets": found["offsets"],
            "bytes": found["bytes"],
            "first": min(firsts, default=None),
            "last": max(lasts, default=None),
            "partitions": found["partitions"],
        }


def _keeps(settings: dict[str, Any]) -> str:
    return keeps_text(settings["retain_s"], settings["max_bytes"], compact=settings["compact"])


def _describe(args: argparse.Namespace) -> int:
    found = _described(args, args.stream)
    if args.json:
        print_json(found)
        return DONE
    settings = found["settings"]
    about = [
        ("filter", plain(settings["filter"]) or "none: no broker writes to it"),
        ("partitions", f"{settings['partitions']}, by {settings['partition_by']}"),
        ("keeps", _keeps(settings)),
        ("segments", f"of {size_text(settings['segment_bytes'])}"),
        ("", f"or {period_text(settings['segment_s'])}"),
        ("event time", settings["event_time"] or "-"),
        ("send time", settings["sent_time"] or "-"),
        ("schema", "yes" if found["schema"] else "-"),
        ("epoch", found["epoch"]),
        ("messages", count_text(found["offsets"])),
        ("size", size_text(found["bytes"])),
    ]  # fmt: skip
    print(found["name"])
    print(*(f"  {line}" for line in table(about)), sep="\n")
    rows = [("PARTITION", "START", "END", "SEGMENTS", "SIZE", "FIRST", "LAST")]
    for one in found["partitions"]:
        rows.append(
            (
                f"p{one['partition']}",
                count_text(one["start"]),
                count_text(one["end"]),
                str(one["segments"]),
                size_text(one["bytes"]),
                moment_text(one["first"]),
                moment_text(one["last"]),
            )
        )
    print()
    print(*(f"  {line}" for line in table(rows, right=(1, 2, 3, 4))), sep="\n")
    return DONE


# tail


def _tail(args: argparse.Namespace) -> int:
    with open_stream(args, args.stream) as source:
        count = source.settings.partitions
        if args.partition is not None and args.partition >= count:
            raise UsageError(str(UnknownPartition(source.name, f"p{args.partition}", count)))
        wanted = range(count) if args.partition is None else [args.partition]
        tail = _Tail(source, wanted, args)
        if args.start is not None:
            start = resolve_offsets(source, "--from", args.start)
            left = tail.show(start, source.ends(), args.lines)
        else:
            left = tail.show_last(_LINES if args.lines is None else args.lines)
        if args.follow and left:
            tail.follow()
    return DONE


class _Tail:
    def __init__(
        self, source: Source | RemoteSource, wanted: range | list[int], args: argparse.Namespace
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._render: Callable[[Record, int], str] = (
            record_line if args.format == "text" else record_json
        )
        self._on_damage = report_damage if args.skip_damage else None
        self._at = list(source.ends().ends)  # the next offset of each partition

    def show(self, start: Offsets, end: Offsets, most: int | None) -> bool:
        """Print the messages of a range by time of receipt; False if there are more than `most`."""
        found = heapq.merge(
            *[self._read(n, start.ends[n], end.ends[n]) for n in self._wanted],
            key=lambda item: item[0].received_us,
        )
        self._at = list(end.ends)
        for shown, (record, partition) in enumerate(found):
            if most is not None and shown >= most:
                return False
            print(self._render(record, partition))
        sys.stdout.flush()
        return True

    def show_last(self, most: int) -> bool:
        """Print the last messages; look further back where compaction has left gaps."""
        ends = self._source.ends()
        self._at = list(ends.ends)
        starts = self._source.earliest().ends if most else ends.ends
        last: list[tuple[Record, int]] = []
        for number in self._wanted:
            start, end = starts[number], ends.ends[number]
            back = most
            while True:
                first = max(start, end - back)
                found = list(self._read(number, first, end))[-most:] if first < end else []
                if len(found) >= most or first <= start:
                    break
                back *= 4
            last += found
        last.sort(key=lambda item: item[0].received_us)
        for record, partition in last[-most:] if most else []:
            print(self._render(record, partition))
        sys.stdout.flush()
        return True

    def follow(self) -> None:
        """Print new messages until it is interrupted."""
        source = self._source
        while True:
            ends = source.ends()
            if any(ends.ends[number] > self._at[number] for number in self._wanted):
                self.show(Offsets(source.epoch, tuple(self._at)), ends, None)
            else:
                time.sleep(_LOOK_S)

    def _read(self, number: int, start: int, end: int) -> Iterator[tuple[Record, int]]:
        """Yield the records of one partition, and report what retention removes meanwhile."""
        while start < end:
            try:
                with open_reader(self._source, number, start, end, self._on_damage) as reader:
                    for record in _records(reader):
                        start = record.offset + 1
                        yield record, number
                    return
            except OffsetGone as gone:
                print(f"fleetmq stream: {gone}", file=sys.stderr)
                start = gone.earliest


def _records(reader: Reader | RemoteReader) -> Iterator[Record]:
    while batches := reader.read(_BATCH_BYTES):
        for batch in batches:
            yield from records(batch)


# verify


def _verify(args: argparse.Namespace) -> int:
    if is_url(args.log):
        raise UsageError(f"--log: verify reads files: give their directory, not the URL {args.log}")
    check_log(args)
    root = stream_root(Path(args.log))
    is_whole = True
    for name in args.streams or list_streams(args.log):
        with Source.open(root, name) as source, Progress(0, "segments") as progress:
            verdict = checks.verify(source, lambda segment: progress.add(1))
        for finding in verdict.findings:
            print(finding)
        is_whole = is_whole and verdict.is_whole
        state = "whole" if verdict.is_whole else plural(len(verdict.findings), "finding")
        batches, segments = (
            plural(verdict.batches, "batch", "batches"),
            plural(verdict.segments, "segment"),
        )
        print(
            f"{name}: {state}: {plural(verdict.messages, 'message')} in {batches}, {segments},"
            f" {size_text(verdict.bytes)}"
        )
    return DONE if is_whole else FAILED


ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "list": _list,
    "describe": _describe,
    "tail": _tail,
    "verify": _verify,
}
