"""Streams kept open for many threads, while they are made, changed, emptied and deleted."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.http_api.request import open_streams as open_streams_module
from mqtt_broker.http_api.request.open_streams import OpenStreams
from mqtt_broker.streams.format.batch import NEVER, seed_of, split
from mqtt_broker.streams.format.errors import (
    EndBeforeStart,
    OffsetAhead,
    OffsetGone,
    StreamGone,
    UnknownPartition,
    UnknownStream,
    WrongEpoch,
)
from tests.http_api.brokers import PATIENCE_S, LogBroker
from tests.streams.logs import NAME, Sent

EXPECTED: Final = (
    EndBeforeStart, OffsetAhead, OffsetGone, StreamGone, UnknownPartition, UnknownStream, WrongEpoch
)  # fmt: skip


def open_segments(root: Path) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if ".seg" in name and name.startswith(str(root))]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_many_threads_and_a_stream_that_never_stays_the_same(
    broker: LogBroker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer is right for some moment; what fails says one of few things; nothing leaks."""
    monkeypatch.setattr(open_streams_module, "OPEN_MAX", 2)
    broker.stream_delete(NAME).result(PATIENCE_S)
    streams = OpenStreams(broker.root)
    names = ["a", "b", "c"]
    outcomes: Counter[str] = Counter()
    is_over = threading.Event()

    def read(number: int) -> None:
        chance = random.Random(100 * seed + number)
        while not is_over.is_set():
            name = chance.choice(names)
            try:
                match chance.randrange(5):
                    case 0:
                        streams.resolve(name, chance.choice(("earliest", "latest", "2023-11-15")))
                    case 1:
                        assert streams.about(name)["name"] == name
                    case 2:
                        assert streams.describe(name)["name"] == name
                    case _:
                        _read_one(streams, name, chance)
                outcomes["done"] += 1
            except EXPECTED as error:
                outcomes[type(error).__name__] += 1

    chance = random.Random(seed)
    with ThreadPoolExecutor(6) as pool:
        reading = [pool.submit(read, number) for number in range(6)]
        try:
            for _ in range(200):
                _change(broker, chance, names)
        finally:
            is_over.set()
        for future in reading:
            future.result()
    assert outcomes["done"] > 0
    streams.close()
    for name in list(broker.writing.log.streams):
        broker.stream_delete(name).result(PATIENCE_S)
    assert open_segments(broker.root) == []


def _read_one(streams: OpenStreams, name: str, chance: random.Random) -> None:
    offset = chance.choice((0, chance.randrange(40)))
    partition = f"p{chance.randrange(2)}"
    answer = streams.extent(name, partition, offset, NEVER, 10_000, "")
    if answer.piece is not None:
        piece = answer.piece
        with piece.file:
            data = os.pread(piece.file.fileno(), piece.length, piece.position)
        headers = split(data, seed_of(answer.epoch, answer.partition))
        assert headers[0].base == piece.base <= offset < headers[0].end
        assert headers[-1].end == piece.end <= answer.latest


def _change(broker: LogBroker, chance: random.Random, names: list[str]) -> None:
    name = chance.choice(names)
    if name not in broker.writing.log.streams:
        broker.create(2, name, segment_bytes=4_096)
        return
    match chance.randrange(20):
        case 0:
            broker.stream_delete(name).result(PATIENCE_S)
        case 1:
            broker.stream_truncate(name, None).result(PATIENCE_S)
        case 2:
            broker.stream_change(name, {"retain_s": chance.randrange(9)}).result(PATIENCE_S)
        case _:
            broker.put_all(_messages(chance), name)


def _messages(chance: random.Random) -> list[Sent]:
    return [Sent("t", f"c{n}", chance.randbytes(100)) for n in range(10)]


def test_a_piece_outlives_its_file(broker: LogBroker, root: Path) -> None:
    broker.put(b"x" * 1_000)
    streams = OpenStreams(root)
    number = next(n for n in range(4) if streams.ends(NAME, "")[n])
    answer = streams.extent(NAME, f"p{number}", 0, NEVER, 1, "")
    assert answer.piece is not None
    whole = os.pread(answer.piece.file.fileno(), answer.piece.length, 0)
    broker.stream_delete(NAME).result(PATIENCE_S)
    streams.close()
    assert os.pread(answer.piece.file.fileno(), answer.piece.length, 0) == whole
    answer.close()
