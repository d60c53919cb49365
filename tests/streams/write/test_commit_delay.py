"""How long records of QoS 0 wait for others until they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt_broker.streams.write.writer import DELAY_S, LogWriter
from tests.streams.logs import NAME, Writing

BURST = 8_000  # of the writer below: more than that in one delay is a burst
WHOLE = pytest.approx(DELAY_S)


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    with Writing(tmp_path) as found:
        found.create()
        found.writer = LogWriter(found.log, BURST * 16)
        yield found


def append(writing: Writing, size: int) -> None:
    stream = writing.log.streams[NAME]
    before = writing.writer.waiting_bytes
    writing.writer.append(stream, "t", "c", [bytes(size - 50)], writing.now_us)
    assert writing.writer.waiting_bytes - before >= size - 50


def test_records_wait_once(writing: Writing) -> None:
    append(writing, 100)
    assert writing.writer.delay_s(10.0) == WHOLE
    assert writing.writer.delay_s(10.0 + DELAY_S / 2) == pytest.approx(DELAY_S / 2)
    assert writing.writer.delay_s(10.001 + DELAY_S) == 0.0


def test_a_burst_waits_until_it_is_over(writing: Writing) -> None:
    now = 10.0
    writing.writer.delay_s(now)
    for _ in range(3):
        append(writing, BURST + 100)
        now += DELAY_S + 0.001
        assert writing.writer.delay_s(now) == WHOLE
    append(writing, BURST - 100)
    now += DELAY_S + 0.001
    assert writing.writer.delay_s(now) == 0.0


def test_what_a_group_has_counts_no_longer(writing: Writing) -> None:
    writing.writer.delay_s(10.0)
    append(writing, BURST + 100)
    assert writing.writer.delay_s(11.0) == WHOLE
    assert writing.writer.assign(1)
    writing.writer.write(1)
    assert writing.writer.delay_s(12.0) == WHOLE
    append(writing, BURST + 100)
    assert writing.writer.delay_s(13.0) == WHOLE
    append(writing, BURST - 100)
    assert writing.writer.delay_s(14.0) == 0.0
