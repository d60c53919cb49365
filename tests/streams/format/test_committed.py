"""The ends that readers may read to: written in one piece, and never believed by halves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.streams.format.committed import Reader, Writer, encode, peek, size_of
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import StreamGone, UnreadableFile, WrongEpoch
from mqtt_broker.streams.format.offsets import Offsets
from tests.property_examples import examples

EPOCH = "e" * 36
PARTITIONS = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "committed"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    found = Writer(Disk(), path, PARTITIONS)
    yield found
    found.close()
    found.close()  # once more does no harm


@pytest.fixture
def reader(path: Path, writer: Writer) -> Iterator[Reader]:
    found = Reader(path, "telemetry", EPOCH, PARTITIONS)
    yield found
    found.close()
    found.close()


def ends(*numbers: int) -> Offsets:
    return Offsets(EPOCH, numbers)


def test_each_write_is_what_is_read_next(writer: Writer, reader: Reader) -> None:
    for one in (ends(0, 0, 0), ends(1, 2, 3), ends(2**62, 0, 5), ends(1, 2, 3)):
        writer.write(one)
        assert reader.read() == one.ends == reader.read()


@examples()
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=9))
def test_the_file_has_one_size_and_says_what_was_written(numbers: list[int]) -> None:
    text = Offsets(EPOCH, tuple(numbers)).text()
    line = encode(text, size_of(len(numbers)))
    assert len(line) == size_of(len(numbers)) and line.endswith(b"\n")
    assert line[9:-1].decode().rstrip() == text


def test_one_write_is_one_call(path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    pwritev = os.pwritev

    def noted(file: int, buffers: list[bytes], position: int) -> int:
        calls.append((sum(map(len, buffers)), position))
        return pwritev(file, buffers, position)

    monkeypatch.setattr(os, "pwritev", noted)
    writer.write(ends(1, 2, 3))
    writer.write(ends(1_000_000, 2, 3))
    assert calls == [(size_of(PARTITIONS), 0)] * 2


def test_a_write_is_there_whole_or_not_believed(path: Path, writer: Writer, reader: Reader) -> None:
    before = encode(ends(1, 2, 3).text(), size_of(PARTITIONS))
    after = encode(ends(7, 8, 900).text(), size_of(PARTITIONS))
    told = set()
    for count in range(len(after) + 1):
        data = after[:count] + before[count:]
        path.write_bytes(data)
        if data in (before, after):
            wanted = ends(1, 2, 3) if data == before else ends(7, 8, 900)
            assert reader.read() == wanted.ends and peek(path) == wanted
        else:
            with pytest.raises(UnreadableFile, match="checksum"):
                reader.read()
            assert peek(path) is None
        told.add(data in (before, after))
    assert told == {True, False}


def test_a_reader_that_meets_a_write_looks_again(
    path: Path, writer: Writer, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(ends(1, 2, 3))
    pread = os.pread
    looks = 0

    def torn(file: int, size: int, position: int) -> bytes:
        nonlocal looks
        looks += 1
        data = pread(file, size, position)
        return data[:20] + b"7" + data[21:] if looks < 5 else data

    monkeypatch.setattr(os, "pread", torn)
    assert reader.read() == (1, 2, 3) and looks == 5


def test_a_deleted_stream_says_so(path: Path, writer: Writer, reader: Reader) -> None:
    writer.write(ends(1, 2, 3))
    assert reader.read() == (1, 2, 3)
    writer.write_deleted()
    for _ in range(2):
        with pytest.raises(StreamGone):
            reader.read()
    assert peek(path) is None


def test_ends_of_another_stream_are_refused(path: Path, writer: Writer, reader: Reader) -> None:
    writer.write(Offsets("f" * 36, (1, 2, 3)))
    with pytest.raises(WrongEpoch):
        reader.read()
    assert peek(path) == Offsets("f" * 36, (1, 2, 3)), "whatever stream it is of"


def test_what_is_behind_the_line_is_cut_by_the_next_writer(path: Path) -> None:
    """A stream of the same name had more partitions."""
    path.write_bytes(encode(Offsets(EPOCH, (5,) * 9).text(), size_of(9)))
    writer = Writer(Disk(), path, PARTITIONS)
    writer.write(ends(1, 2, 3))
    writer.close()
    assert path.stat().st_size == size_of(PARTITIONS) and peek(path) == ends(1, 2, 3)


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 200, b"00000000 {}\n"])
def test_what_cannot_be_trusted_is_nothing(path: Path, data: bytes) -> None:
    assert peek(path) is None
    path.write_bytes(data)
    assert peek(path) is None
