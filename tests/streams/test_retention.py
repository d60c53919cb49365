"""What goes by age and by size: whole sealed segments, from the front, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from mqtt_broker.streams.format.errors import WrongEpoch
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.partition import Partition
from tests.streams.disks import Small
from tests.streams.logs import NAME, START_US, Writing, payloads, put_many, read, segments


def starts(root: Path) -> tuple[int, ...]:
    with Source.open(root, NAME) as source:
        return source.starts().ends


def test_by_age_when_all_of_a_segment_is_older(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000, retain_s=20)
        put_many(writing, 11)  # two segments of 4 seconds, and one that is written to
        for second, start in ((20, 0), (23, 0), (24, 40), (27, 40), (28, 80), (99, 80)):
            writing.log.maintain(START_US + second * 1_000_000)
            assert starts(tmp_path) == (start,), second
        assert len(payloads(tmp_path, start=80)) == 30
        assert [path.suffix for path in sorted((tmp_path / NAME / "p0").iterdir())] == [
            ".idx", ".seg", "",
        ]  # fmt: skip


def test_the_last_segment_goes_when_it_is_sealed_by_age(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(retain_s=20, segment_s=5)
        put_many(writing, 1)
        writing.log.maintain(START_US + 10_000_000)
        assert len(segments(tmp_path)) == 1
        writing.log.maintain(START_US + 30_000_000)
        assert segments(tmp_path) == [] and starts(tmp_path) == (10,)
        assert payloads(tmp_path, start=10) == []
        put_many(writing, 1)
        assert [r.offset for r in read(tmp_path, start=10)] == list(range(10, 20))
    with Writing(tmp_path, writing.journal):
        assert starts(tmp_path) == (10,)


def test_a_segment_that_is_kept_keeps_those_behind_it(tmp_path: Path) -> None:
    """The clock was set back: an older segment stands behind a younger one."""
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, retain_s=10)
        for at in (50, 0, 60, 99):
            writing.now_us = START_US + at * 1_000_000
            writing.put(bytes(5_000))
        writing.log.maintain(START_US + 59_000_000)
        assert starts(tmp_path) == (0,)
        writing.log.maintain(START_US + 61_000_000)
        assert starts(tmp_path) == (2,)


def test_by_size_of_all_partitions_together(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(partitions=2, partition_by="topic", segment_bytes=4_096, max_bytes=30_000)
        for number in range(40):
            writing.put(bytes(5_000), topic="abc"[number % 3])
            writing.now_us += 1_000_000
            writing.log.maintain(writing.now_us)
            assert (
                sum(path.stat().st_size for p in (0, 1) for path in segments(tmp_path, p)) <= 36_000
            )
        kept = [
            record.received_us
            for partition, start in enumerate(starts(tmp_path))
            for record in read(tmp_path, partition, start)
        ]
        assert min(kept) > START_US + 30_000_000  # what went is what was oldest anywhere


def test_trim_takes_whole_segments_before_offsets_or_all(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000)
        put_many(writing, 10)
        epoch = writing.log.streams[NAME].epoch
        with pytest.raises(WrongEpoch):
            writing.log.trim(NAME, Offsets("another", (79,)))
        assert writing.log.trim(NAME, Offsets(epoch, (79,))) == 1
        assert writing.log.trim(NAME, Offsets(epoch, (80,))) == 1
        assert starts(tmp_path) == (80,)
        assert writing.log.trim(NAME) == 1
        assert starts(tmp_path) == (100,) and segments(tmp_path) == []
        assert writing.log.trim(NAME) == 0
        writing.put(b"next")
        assert [r.offset for r in read(tmp_path, start=100)] == [100]
    with Writing(tmp_path, writing.journal):
        assert payloads(tmp_path, start=100) == [b"next"]


def test_nothing_goes_unless_it_is_asked_for(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        put_many(writing, 10)
        assert writing.log.maintain(1 << 62) == 0
        assert len(payloads(tmp_path)) == 100


@pytest.mark.parametrize("by", ["age", "hand"])
def test_a_segment_that_cannot_be_sealed_does_not_keep_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Sealing wants room on the disk; removing is what makes it."""

    def full(self: Partition) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def remove(writing: Writing) -> None:
        if by == "age":
            writing.log.maintain(START_US + 50_000_000)
        else:
            writing.log.trim(NAME)

    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000, retain_s=20, segment_s=30)
        put_many(writing, 11)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "roll", full)
            if by == "age":
                remove(writing)
                assert "No space left" in writing.lines[-1]
            else:
                with pytest.raises(OSError, match="No space left"):
                    remove(writing)
            assert starts(tmp_path) == (80,)
        remove(writing)
        assert starts(tmp_path) == (110,)
        put_many(writing, 1)
        assert [record.offset for record in read(tmp_path, start=110)] == list(range(110, 120))


@pytest.mark.parametrize("by", ["age", "size", "hand"])
def test_a_full_disk_is_emptied_by_what_is_due(tmp_path: Path, by: str) -> None:
    """The catalog is written before files go; it has to have room for that."""
    disk = Small(tmp_path, 60)
    with Writing(tmp_path, disk=disk) as writing:
        writing.create(
            segment_bytes=8_192,
            retain_s=20 if by == "age" else 0,
            max_bytes=20_000 if by == "size" else 0,
        )
        with contextlib.suppress(OSError):
            while True:
                writing.put(bytes(3_000))
        disk._blocks_max = disk.blocks  # others have taken the rest
        if by == "hand":
            writing.log.trim(NAME)
        else:
            writing.log.maintain(START_US + 50_000_000)
        assert disk.blocks < 30
        writing.commit()
        writing.put(b"it goes on")
        assert read(tmp_path, start=starts(tmp_path)[0])[-1].payload == b"it goes on"
