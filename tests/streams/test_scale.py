"""Ten thousand segments: opened, searched and followed without a look at each of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import seed_of
from mqtt_broker.streams.format.batch_builder import BatchBuilder, Run
from mqtt_broker.streams.format.segment_catalog import Catalog, SealedSegment
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.streams.logs import NAME, START_US, Writing

SEGMENTS: Final = 10_000
ROWS: Final = 10
OPEN_S_MAX: Final = 1.0
FIND_S_MAX: Final = 0.001


def build(root: Path, count: int) -> None:
    """As the log itself makes them, without waiting for a catalog each."""
    with Writing(root) as writing:
        writing.create()
        epoch = writing.log.streams[NAME].epoch
    directory = root / NAME / "p0"
    seed = seed_of(epoch, 0)
    sealed = []
    for number in range(count):
        builder = BatchBuilder()
        at = START_US + number * 1_000_000
        builder.append_run(Run(ROWS, b"t", b"c", b"", 0, at), [b"payload"] * ROWS, 1)
        data = b"".join(builder.encode(seed, number * ROWS))
        (directory / file_names.segment(number * ROWS)).write_bytes(data)
        sealed.append(SealedSegment(number * ROWS, (number + 1) * ROWS, len(data), at, at, 0))
    catalog = Catalog.of(sealed, count * ROWS)
    (directory / file_names.CATALOG).write_bytes(catalog.encode(seed))
    (root / NAME / file_names.COMMITTED).unlink()


class Calls:
    """Counts how often the system is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = dict.fromkeys(("open", "stat", "fstat", "pread", "listdir"), 0)
        for name in self.counts:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.counts[name] += 1
            return call(*arguments, **more)

        return counted

    def total(self) -> int:
        return sum(self.counts.values())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    build(root, SEGMENTS)
    with Writing(root):
        pass
    return root


def test_opening_looks_at_no_sealed_segment(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    began = time.perf_counter()
    with Writing(many) as writing:
        assert time.perf_counter() - began < OPEN_S_MAX
        assert writing.log.streams[NAME].ends().ends == (SEGMENTS * ROWS,)
        assert calls.total() < 50, calls.counts
        with Source.open(many, NAME) as source:
            assert source.starts().ends == (0,)
        assert calls.total() < 80, calls.counts


def test_an_offset_or_a_time_is_found_with_a_handful_of_calls(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Source.open(many, NAME) as source:
        calls = Calls(monkeypatch)
        places = range(7, SEGMENTS * ROWS, 4_999)
        spent = []
        for offset in places:
            began = time.perf_counter()
            with Reader(source, 0, offset) as reader:
                [batch] = reader.read(1)
            spent.append(time.perf_counter() - began)
            assert batch.base == offset // ROWS * ROWS
        assert calls.total() <= 10 * len(places), calls.counts
        assert sorted(spent)[len(spent) // 2] < FIND_S_MAX
        spent = []
        for offset in places:
            at = START_US + offset // ROWS * 1_000_000
            began = time.perf_counter()
            found = source.partitions[0].find_time(at, SEGMENTS * ROWS)
            spent.append(time.perf_counter() - began)
            assert found == offset // ROWS * ROWS
        assert sorted(spent)[len(spent) // 2] < 4 * FIND_S_MAX


def test_writing_on_and_sealing_stay_cheap(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writing(many) as writing:
        calls = Calls(monkeypatch)
        for _ in range(3):
            writing.now_us += 90_000_000_000
            writing.put(b"next")
        assert calls.total() < 60, calls.counts
