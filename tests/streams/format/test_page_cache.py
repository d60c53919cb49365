"""What of the log is given back to the system's memory, and when."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.page_cache import CHUNK_BYTES, PageCache
from tests.streams.logs import Writing, payloads

ONE, OTHER = Path("s/0/1.log"), Path("s/1/1.log")


class Forgetful(Disk):
    def __init__(self) -> None:
        self.forgotten: list[tuple[Path, int, int]] = []

    def forget(self, path: Path, position: int, length: int) -> None:
        self.forgotten.append((path, position, length))


def written(recent: PageCache, path: Path, begin: int, end: int, step: int = 1 << 20) -> None:
    for position in range(begin, end, step):
        recent.add(path, position, min(position + step, end))


def test_the_oldest_is_given_back_when_there_is_more_than_allowed() -> None:
    disk = Forgetful()
    recent = PageCache(disk, 2 * CHUNK_BYTES)
    written(recent, ONE, 0, 2 * CHUNK_BYTES)
    assert disk.forgotten == []
    written(recent, ONE, 2 * CHUNK_BYTES, 4 * CHUNK_BYTES)
    assert disk.forgotten == [(ONE, 0, CHUNK_BYTES), (ONE, CHUNK_BYTES, CHUNK_BYTES)]


def test_partitions_share_what_is_allowed() -> None:
    disk = Forgetful()
    recent = PageCache(disk, 2 * CHUNK_BYTES)
    for begin in range(0, 2 * CHUNK_BYTES, 1 << 20):
        recent.add(ONE, begin, begin + (1 << 20))
        recent.add(OTHER, begin, begin + (1 << 20))
    assert disk.forgotten == [(ONE, 0, CHUNK_BYTES), (OTHER, 0, CHUNK_BYTES)]


def test_a_new_segment_begins_a_chunk() -> None:
    disk = Forgetful()
    recent = PageCache(disk, CHUNK_BYTES)
    recent.add(ONE, 0, 100)
    written(recent, ONE.with_name("2.log"), 0, CHUNK_BYTES)
    assert disk.forgotten == [(ONE, 0, 100)]


def test_the_page_shared_with_the_chunk_before_goes_too() -> None:
    disk = Forgetful()
    recent = PageCache(disk, 1)
    recent.add(ONE, 0, CHUNK_BYTES + 100)
    recent.add(ONE, CHUNK_BYTES + 100, 2 * CHUNK_BYTES + 200)
    recent.add(ONE, 2 * CHUNK_BYTES + 200, 2 * CHUNK_BYTES + 300)
    assert disk.forgotten == [(ONE, 0, CHUNK_BYTES + 100), (ONE, CHUNK_BYTES, CHUNK_BYTES + 200)]


def test_zero_leaves_all_to_the_system() -> None:
    disk = Forgetful()
    written(PageCache(disk, 0), ONE, 0, 64 * CHUNK_BYTES)
    assert disk.forgotten == []


def test_a_segment_that_is_gone_is_nobodys_trouble(tmp_path: Path) -> None:
    recent = PageCache(Disk(), 1)
    written(recent, tmp_path / "0" / "1.log", 0, 4 * CHUNK_BYTES)


def test_a_log_that_is_given_back_reads_the_same(tmp_path: Path) -> None:
    advised = []

    class Counting(Disk):
        def forget(self, path: Path, position: int, length: int) -> None:
            super().forget(path, position, length)
            advised.append(path)

    with Writing(tmp_path, disk=Counting(), cache_bytes=1) as writing:
        writing.create()
        sent = [b"%07d" % number + bytes(1 << 20) for number in range(12)]
        for payload in sent:
            writing.put(payload)
            writing.commit()
        assert payloads(tmp_path) == sent
    assert advised


def test_systems_without_the_advice_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    Disk().forget(tmp_path / "none", 0, 1)


def test_a_file_system_that_refuses_it_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    (tmp_path / "1.log").write_bytes(b"one")
    written(PageCache(Disk(), 1), tmp_path / "1.log", 0, 4 * CHUNK_BYTES)
