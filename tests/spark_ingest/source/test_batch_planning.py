"""How a trigger is dealt: within its limit, and of all partitions up to one received time."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ingest.source.batch_planning import Measure, deal, share_rows
from tests.http_api.brokers import LogBroker, Serving
from tests.property_examples import examples
from tests.spark_ingest import backlogs
from tests.spark_ingest.backlogs import Backlog, check, opened
from tests.spark_ingest.filled import SCHEMA
from tests.streams.logs import NAME, Writing

TOKEN = "s3cret-token"
TIMES = st.lists(st.integers(1, 60) | st.integers(1, 10**15), max_size=40)


@given(
    st.lists(st.tuples(TIMES, st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(1, 50),
    st.lists(st.integers(0, 100), max_size=3),
)
@examples(400)
def test_nobody_is_read_ahead_and_nobody_waits(
    found: list[tuple[list[int], int]], limit: int, hints: list[int]
) -> None:
    """The clock may go back anywhere; a search may have good hints, bad ones or none."""
    # When a row counts as received: as late as any before it.
    latest = [list(accumulate(times, max)) for times, _ in found]
    starts = tuple(min(start, len(times)) for times, start in found)
    ends = tuple(len(times) for times, _ in found)
    first = sum(starts)
    asked = 0

    def find_time(at_us: int) -> Sequence[int]:
        nonlocal asked
        asked += 1
        return [bisect_left(times, at_us) for times in latest]

    measure = Measure(lambda to: sum(to) - first, share_rows)
    given = deal(starts, ends, limit, find_time, measure, hints)
    assert all(a <= b <= c for a, b, c in zip(starts, given.ends, ends, strict=True))
    taken = sum(given.ends) - first
    assert min(1, sum(ends) - first) <= taken <= limit
    assert taken == sum(ends) - first or taken >= limit - limit // 4
    assert asked <= 2 * 62 + len(hints)
    read = [t for n, times in enumerate(latest) for t in times[starts[n] : given.ends[n]]]
    left = [t for n, times in enumerate(latest) for t in times[given.ends[n] :]]
    assert max(read, default=0) <= min(left, default=10**18)


def test_the_backlog_that_was_dealt_by_counts(log: Writing) -> None:
    """Two days in one partition, six hours in another, as many rows: a sixth of each at a time
    would be eight hours of the one and one of the other."""
    hours = 3_600 * backlogs.SECOND
    received = [
        [backlogs.START_US + n * span * hours // 576 for n in range(576)] for span in (48, 6)
    ]
    backlog = Backlog([*received, []], 0)
    backlogs.write(log, backlog, random.Random(1))
    assert check(opened(path=str(log.root), maxRowsPerTrigger="200"), log.root, backlog, 200) < 12


@pytest.mark.parametrize("seed", range(12))
def test_any_backlog_is_dealt_by_time(tmp_path: Path, seed: int) -> None:
    backlogs.play(tmp_path / "log", seed)


def test_a_backlog_over_http_is_dealt_by_time(tmp_path: Path) -> None:
    draw = random.Random(5)
    hours = 3_600 * backlogs.SECOND
    received = [[backlogs.START_US + n * span * hours // 60 for n in range(60)] for span in (48, 6)]
    backlog = Backlog([*received, []], 0)
    broker = LogBroker(tmp_path / "data" / "streams")
    try:
        broker.create(3, schema=SCHEMA, segment_bytes=4096)
        broker.do(lambda: backlogs.write(broker.writing, backlog, draw))
        with Serving(broker, broker.root, TOKEN) as http:
            for more in ({"maxRowsPerTrigger": "30"}, {"maxBytesPerTrigger": "3000"}):
                reader = opened(url=http.url, token=TOKEN, **more)
                assert check(reader, broker.root, backlog, 30 if "R" in str(more) else 0) > 2
                reader.stop()
    finally:
        broker.close()


def test_what_retention_removes_and_what_is_damaged_is_not_waited_for(log: Writing) -> None:
    draw = random.Random(9)
    backlog = backlogs.draw_backlog(draw, partitions=3, rows_max=400)
    backlogs.write(log, backlog, draw)
    more: dict[str, Any] = {"path": str(log.root), "failOnDataLoss": "false"}
    reader = opened(**more, maxRowsPerTrigger="60", maxBytesPerTrigger="4000")
    cuts = backlogs.triggers(reader)
    _, at = next(cuts)
    number = max(range(3), key=lambda n: len(backlog.received[n]))
    segments = sorted((log.root / NAME / f"p{number}").glob("*.seg"))
    data = bytearray(segments[-1].read_bytes())
    data[100] ^= 0xFF
    segments[-1].write_bytes(bytes(data))
    limit = reader.getDefaultReadLimit()
    log.log.trim(NAME)
    ends = reader.reportLatestOffset()
    for _ in range(1_000):
        end = reader.latestOffset(at, limit)
        if end == at:
            break
        at = end
    assert at == ends
