"""Backlogs whose partitions were filled at different rates: drawn from a seed, read in triggers.

`lag_us` is the general check of how triggers are dealt: a row that was received long before one
of an earlier trigger is a row that a job's watermark has passed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from spark_ingest.source.data_source import FleetmqDataSource, LogStreamReader
from tests.spark_ingest.filled import SCHEMA
from tests.streams.logs import NAME, Sent, Writing

SECOND: Final = 1_000_000
START_US: Final = 1_767_225_600_000_000


class Backlog(NamedTuple):
    """What was received when, a list a partition, and how far clocks were set back."""

    received: list[list[int]]
    set_back_us: int


def client(partition: int, partitions: int, number: int = 0) -> str:
    """A client id that lies in this partition."""
    found = (f"d{n}" for n in range(10_000) if zlib.crc32(b"d%d" % n) % partitions == partition)
    for _ in range(number):
        next(found)
    return next(found)


def draw_backlog(draw: random.Random, *, partitions: int, rows_max: int) -> Backlog:
    """Some partitions are empty, some span days, some seconds, some have bursts at one time."""
    set_back_us = draw.choice([0, 0, 0, 90 * SECOND, 3_600 * SECOND])
    received = []
    for _ in range(partitions):
        rows = draw.choice([0, 1, draw.randrange(rows_max), rows_max])
        span_us = draw.choice([1, 1_000, SECOND, 3_600 * SECOND, 48 * 3_600 * SECOND])
        begin_us = START_US + draw.choice([0, 0, draw.randrange(48 * 3_600) * SECOND])
        times = sorted(begin_us + draw.randrange(span_us) for _ in range(rows))
        if rows and draw.random() < 0.3:  # many at one time
            at = draw.randrange(rows)
            times[at:] = [times[at]] * (rows - at)
        if rows and set_back_us:
            at = draw.randrange(rows)
            times[at:] = [max(1, time - set_back_us) for time in times[at:]]
        received.append(times)
    return Backlog(received, set_back_us)


def write(log: Writing, backlog: Backlog, draw: random.Random) -> None:
    """In batches of a few rows; one message may be much larger than the rest."""
    partitions = len(backlog.received)
    at = [0] * partitions
    names = [client(number, partitions) for number in range(partitions)]
    while any(at[n] < len(times) for n, times in enumerate(backlog.received)):
        for number, times in enumerate(backlog.received):
            for time in times[at[number] : at[number] + draw.choice([1, 5, 40])]:
                log.now_us = time
                size = 20_000 if draw.random() < 0.01 else draw.randrange(40)
                payload = b'{"n":%d,"z":"%s"}' % (at[number], b"x" * size)
                log.append([Sent(f"fleet/{names[number]}/t", names[number], payload)])
                at[number] += 1
        log.commit()


def received_of(source: Source) -> list[dict[int, int]]:
    """When each offset was received, by partition."""
    found: list[dict[int, int]] = []
    for number in range(source.settings.partitions):
        times: dict[int, int] = {}
        with Reader(source, number, source.starts().ends[number]) as reader:
            while batches := reader.read():
                for batch in batches:
                    times |= {one.offset: one.received_us for one in records(batch)}
        found.append(times)
    return found


def triggers(reader: LogStreamReader) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(start, end) of each, until all is read."""
    limit = reader.getDefaultReadLimit()
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, limit)) != at:
        yield at, end
        at = end


def lag_us(
    received: Sequence[dict[int, int]], cuts: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> int:
    """How long before the newest row of earlier triggers a row was received, at most."""
    newest = worst = 0
    for start, end in cuts:
        times = [
            time
            for number, one in enumerate(received)
            for offset, time in one.items()
            if start[f"p{number}"] <= offset < end[f"p{number}"]
        ]
        worst = max([worst, *(newest - time for time in times)])
        newest = max([newest, *times])
    return worst


def check(reader: LogStreamReader, root: Path, backlog: Backlog, limit: int) -> int:
    """Read it in triggers, each within the limit and none ahead; how many it takes."""
    cuts = list(triggers(reader))
    rows = [sum(end[key] - start[key] for key in start if key != "epoch") for start, end in cuts]
    assert sum(rows) == sum(map(len, backlog.received))
    assert not limit or max(rows, default=0) <= limit
    with Source.open(root, NAME) as source:
        received = received_of(source)
    assert lag_us(received, cuts) <= backlog.set_back_us
    return len(cuts)


def draw_limits(draw: random.Random) -> tuple[dict[str, str], int]:
    rows_max = draw.choice([1, 7, 50, 400])
    bytes_max = draw.choice(["100", "3000", "100000"])
    kind = draw.randrange(3)
    more = {"maxRowsPerTrigger": str(rows_max)} if kind != 1 else {}
    more |= {"maxBytesPerTrigger": bytes_max} if kind else {}
    return more, rows_max if kind != 1 else 0


def opened(**options: str) -> LogStreamReader:
    source = FleetmqDataSource({"stream": NAME, "startingOffsets": "earliest", **options})
    return source.streamReader(source.schema())


def play(root: Path, seed: int) -> None:
    """Draw a backlog and limits, and check how it is dealt."""
    draw = random.Random(seed)
    partitions = draw.choice([1, 2, 5])
    backlog = draw_backlog(draw, partitions=partitions, rows_max=150)
    more, limit = draw_limits(draw)
    with Writing(root) as log:
        log.create(partitions, schema=SCHEMA, segment_bytes=draw.choice([4096, 1 << 20]))
        write(log, backlog, draw)
        reader = opened(path=str(root), **more)
        try:
            check(reader, root, backlog, limit)
        finally:
            reader.stop()
