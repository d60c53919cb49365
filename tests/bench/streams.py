"""What the telemetry log costs by itself: filling, writing, reading, finding.

    python tests/bench/streams.py [append] [write] [decode] [replay] [find] [memory] [--small]

Without names, all. Each line is a figure, and the limit it has to keep where there is one; the
exit code is 1 when one does not. The directory is made where the script is called, so that the
disk that is measured is one that is meant. Times are CPU time of one core where nothing waits,
the best of several rounds; `write` is wall time, since it waits for the disk.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.streams.format.batch_builder import BatchBuilder, Run
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from tests.streams.test_scale import build

NAME = "bench"
START_US = 1_700_000_000_000_000
DEVICES = 200
failures = 0


def say(what: str, value: float, unit: str, limit: float = 0.0, *, is_most: bool = False) -> None:
    """A figure; `limit` is the least it may be, or the most."""
    global failures
    line = f"  {what:<46} {value:>12,.2f} {unit}"
    if limit:
        is_kept = value <= limit if is_most else value >= limit
        ratio = limit / value if is_most and value else value / limit
        line += f"   {'at most' if is_most else 'at least'} {limit:,.2f}: {ratio:.2f}x"
        if not is_kept:
            failures += 1
            line += "  TOO SLOW" if unit != "MB" else "  TOO MUCH"
    print(line, flush=True)


def best(call: Callable[[], object], rounds: int) -> float:
    """Seconds of CPU time."""
    found = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        call()
        found = min(found, time.process_time() - began)
    return found


def payload(number: int) -> bytes:
    return b'{"ts": %d, "temperature": 21.5, "humidity": 40}' % (START_US + number)


def run_of(device: int, rows: int) -> Run:
    name = b"device%04d" % device
    return Run(rows, b"fleet/%s/telemetry" % name, name, b"", 0, START_US)


def bench_append(args: argparse.Namespace) -> None:
    print("append: columns filled and encoded, a batch of 1,000, one core")
    total = 1_000
    for rows in (1, 10, 100, 1_000):
        runs = [run_of(number % DEVICES, rows) for number in range(total // rows)]
        parts = [[payload(n) for n in range(rows)] for _ in runs]

        def fill(runs: list[Run] = runs, parts: list[list[bytes]] = parts) -> list[bytes]:
            builder = BatchBuilder()
            for run, part in zip(runs, parts, strict=True):
                builder.append_run(run, part, 1)
            return builder.encode(1, 0)

        spent = best(lambda fill=fill: [fill() for _ in range(20)], 10) / 20  # type: ignore[misc]
        limit = 300_000 if rows == 1 else 0.0
        say(f"in runs of {rows}", total / spent, "messages/s", limit)
        say(f"in runs of {rows}", spent / total * 1e6, "us a message")


class UnsyncedDisk(Disk):
    """A disk that nobody waits for."""

    def sync(self, file: int) -> None:
        pass


def fill(log: Log, messages: int, *, rows: int, group: int) -> float:
    """Through the hand-over, as the broker does it; seconds."""
    stream = log.streams[NAME]
    writer = LogWriter(log)
    parts = [payload(n) for n in range(rows)]
    names = [(f"fleet/device{n:04d}/telemetry", f"device{n:04d}") for n in range(DEVICES)]
    sent = number = turn = 0
    began = time.perf_counter()
    while sent < messages:
        for _ in range(group // rows):
            topic, client_id = names[turn % DEVICES]
            turn += 1
            sent += writer.append(stream, topic, client_id, parts, START_US + sent)
        number += 1
        writer.assign(number)
        writer.committed(writer.write(number))
    return time.perf_counter() - began


def bench_write(args: argparse.Namespace, root: pathlib.Path) -> None:
    print("write: append, assign, write, committed; groups of 2,000 in runs of 20")
    messages = 200_000 if args.small else 1_000_000
    for partitions in (1, 4):
        for is_synced in (True, False):
            disk = Disk() if is_synced else UnsyncedDisk()
            with_log = Log.open(root / f"w{partitions}{is_synced}", report=print, disk=disk)
            with_log.create(StreamSettings(NAME, partitions=partitions))
            spent = fill(with_log, messages, rows=20, group=2_000)
            how = "fdatasync a group" if is_synced else "without waiting"
            say(f"{partitions} partitions, {how}", messages / spent, "messages/s")
            with_log.close()


def bench_decode(args: argparse.Namespace, root: pathlib.Path) -> None:
    messages = 500_000 if args.small else 2_000_000
    try:
        from mqtt_broker.streams.read import arrow
    except ImportError:
        print("decode: pyarrow is not installed")
        return
    for group, limit in ((1_000, 20.0), (16_000, 20.0)):
        print(f"decode: Arrow with checksums, one core, batches of {group:,}")
        log = Log.open(root / f"d{group}", report=print, disk=UnsyncedDisk())
        log.create(StreamSettings(NAME))
        fill(log, messages, rows=20, group=group)
        log.close()
        with Source.open(root / f"d{group}", NAME) as source:

            def decode(source: Source = source) -> None:
                count = 0
                for batch in arrow.record_batches(source, 0, 0):
                    count += batch.num_rows
                assert count == messages

            spent = best(decode, 15)
            size = sum(path.stat().st_size for path in (root / f"d{group}").rglob("*.seg"))
            say("RecordBatches of about 16,384", messages / spent / 1e6, "M rows/s", limit)
            say("the same", size / spent / 1e9, "GB/s")

            def columns(source: Source = source) -> None:
                with Reader(source, 0, 0) as reader:
                    while reader.read():
                        pass

            say(
                "whole batches, checked, not decoded", messages / best(columns, 5) / 1e6, "M rows/s"
            )


def bench_replay(args: argparse.Namespace, root: pathlib.Path) -> None:
    print("replay: message by message, one core")
    messages = 100_000 if args.small else 400_000
    log = Log.open(root / "r", report=print, disk=UnsyncedDisk())
    log.create(StreamSettings(NAME))
    fill(log, messages, rows=20, group=2_000)
    log.close()
    with Source.open(root / "r", NAME) as source:

        def replay() -> None:
            with Reader(source, 0, 0) as reader:
                while batches := reader.read():
                    for batch in batches:
                        for _ in records(batch):
                            pass

        say("records", messages / best(replay, 5), "messages/s", 150_000.0)


def bench_find(args: argparse.Namespace, root: pathlib.Path) -> None:
    count = 2_000 if args.small else 10_000
    print(f"find: {count:,} segments")
    build(root / "f", count)
    Log.open(root / "f", report=lambda line: None).close()
    began = time.perf_counter()
    log = Log.open(root / "f", report=print)
    say("open to write", time.perf_counter() - began, "s", 1.0, is_most=True)
    began = time.perf_counter()
    source = Source.open(root / "f", "telemetry")
    say("open to read", time.perf_counter() - began, "s", 1.0, is_most=True)
    offsets = range(5, count * 10, max(1, count // 50))
    spent = []
    for offset in offsets:
        began = time.perf_counter()
        with Reader(source, 0, offset) as reader:
            reader.read(1)
        spent.append(time.perf_counter() - began)
    say("an offset, and the batch there: median", sorted(spent)[len(spent) // 2] * 1e3, "ms", 1.0,
        is_most=True)  # fmt: skip
    spent = []
    for offset in offsets:
        began = time.perf_counter()
        source.partitions[0].find_time(START_US + offset * 100_000, count * 10)
        spent.append(time.perf_counter() - began)
    say("a time: median", sorted(spent)[len(spent) // 2] * 1e3, "ms", 1.0, is_most=True)
    source.close()
    log.close()


def bench_memory(args: argparse.Namespace, root: pathlib.Path) -> None:
    rounds = 4 if args.small else 10
    print("memory: what the process holds at most while the log grows, and is read")
    log = Log.open(root / "m", report=print, disk=UnsyncedDisk())
    log.create(StreamSettings(NAME, segment_bytes=4 << 20))
    peaks = []
    offset = 0
    with Source.open(root / "m", NAME) as source:
        for _ in range(rounds):
            fill(log, 200_000, rows=20, group=2_000)
            with Reader(source, 0, offset) as reader:
                while reader.read():
                    pass
                offset = reader.offset
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    size = sum(path.stat().st_size for path in (root / "m").rglob("*.seg")) / 1e6
    say(f"after the first of {rounds} rounds", peaks[0], "MB")
    say(
        f"more after the last, {size:,.0f} MB of log", peaks[-1] - peaks[0], "MB", 8.0, is_most=True
    )
    log.close()


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*")
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    args = parser.parse_args()
    chosen = args.what or ["memory", "append", "write", "decode", "replay", "find"]
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-streams-") as directory:
        root = pathlib.Path(directory)
        if "memory" in chosen:  # first: the peak is that of the whole process
            bench_memory(args, root)
        if "append" in chosen:
            bench_append(args)
        if "write" in chosen:
            bench_write(args, root)
        if "decode" in chosen:
            bench_decode(args, root)
        if "replay" in chosen:
            bench_replay(args, root)
        if "find" in chosen:
            bench_find(args, root)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
