"""What goes by age and by size: whole sealed segments, from the front, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.streams.format.batch import seed_of
from mqtt_broker.streams.format.errors import CorruptBatch, MissingSegment, OffsetGone, WrongEpoch
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.format.segment import BatchPosition, Segment, WalkItem
from mqtt_broker.streams.format.stream_settings import RETAIN_PARTS, StreamSettings
from mqtt_broker.streams.read.arrow import record_batches
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.partition import Partition
from tests.streams.disks import Small
from tests.streams.logs import NAME, START_US, Sent, Writing, payloads, put_many, read, segments

SECOND_US: Final = 1_000_000


def starts(root: Path) -> tuple[int, ...]:
    """By the segments that are there."""
    with Source.open(root, NAME, clock_us=lambda: 0) as source:
        return source.starts().ends


def test_by_age_when_all_of_a_segment_is_older(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000, retain_s=80)
        put_many(writing, 11)  # two segments of 4 seconds, and one that is written to
        for second, start in ((17, 0), (83, 0), (84, 40), (87, 40), (88, 80), (90, 80), (91, 110)):
            writing.log.maintain(START_US + second * 1_000_000)
            assert starts(tmp_path) == (start,), second
            assert len(payloads(tmp_path, start=start)) == 110 - start
        assert [path.name for path in (tmp_path / NAME / "p0").iterdir()] == ["catalog"]


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
            writing.log.maintain(START_US + 60_000_000)
        else:
            writing.log.trim(NAME)

    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000, retain_s=40)
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


# By default a segment is sealed after a day, and only sealed segments go.


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in segments(root))


def test_a_stream_keeps_as_long_as_it_says(tmp_path: Path) -> None:
    """Ten minutes are not a day."""
    with Writing(tmp_path) as writing:
        writing.create(retain_s=600)
        for _ in range(400):
            writing.put(b"x")
            writing.now_us += 10 * SECOND_US
            writing.log.maintain(writing.now_us)
            first = read(tmp_path, start=starts(tmp_path)[0])[0]
            age_s = (writing.now_us - first.received_us) // SECOND_US
            assert age_s <= 600 + 600 // RETAIN_PARTS + 10
        assert age_s > 500
        assert len(segments(tmp_path)) <= 2 * RETAIN_PARTS


def test_a_stream_keeps_as_much_as_it_says(tmp_path: Path) -> None:
    """Ten megabytes are no 128."""
    with Writing(tmp_path) as writing:
        writing.create(max_bytes=1_000_000)
        for _ in range(300):
            writing.put(bytes(10_000))
            writing.now_us += SECOND_US
            writing.log.maintain(writing.now_us)
            assert disk_bytes(tmp_path) <= 1_000_000
        assert disk_bytes(tmp_path) > 800_000


def test_streams_that_exist_follow_without_being_written_anew(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        for _ in range(30):
            writing.put(bytes(1_000))
            writing.now_us += 60 * SECOND_US
    path = tmp_path / NAME / "stream.json"
    stored = json.loads(path.read_text()) | {"retain_s": 600}
    assert stored["segment_s"] == 86_400
    path.write_text(json.dumps(stored))  # as it was written when a day was a day
    before = {path: path.read_bytes() for path in segments(tmp_path)}
    metadata = path.read_bytes()
    with Writing(tmp_path, writing.journal) as again:
        again.now_us = writing.now_us
        assert again.log.maintain(again.now_us) == 0
        assert {path: path.read_bytes() for path in segments(tmp_path)} == before
        assert again.log.maintain(again.now_us + 600 * SECOND_US) > 0
        assert (tmp_path / NAME / "stream.json").read_bytes() == metadata


@pytest.mark.parametrize(
    ("settings", "seconds", "size"),
    [
        ({}, 86_400, 128 << 20),
        ({"retain_s": 600}, 75, 128 << 20),
        ({"retain_s": 7 * 86_400}, 75_600, 128 << 20),
        ({"retain_s": 30 * 86_400}, 86_400, 128 << 20),
        ({"retain_s": 600, "segment_s": 5}, 5, 128 << 20),
        ({"retain_s": 1}, 1, 128 << 20),
        ({"max_bytes": 10**10}, 86_400, 128 << 20),
        ({"max_bytes": 10**8}, 86_400, 12_500_000),
        ({"max_bytes": 10**8, "partitions": 4}, 86_400, 3_125_000),
        ({"max_bytes": 1}, 86_400, 4_096),
        ({"max_bytes": 10**8, "segment_bytes": 5_000}, 86_400, 5_000),
    ],
)
def test_when_a_segment_is_sealed(settings: dict[str, Any], seconds: int, size: int) -> None:
    found = StreamSettings("x", **settings).checked()
    assert (found.seal_s, found.seal_bytes) == (seconds, size)


def items(path: Path, seed: int) -> list[WalkItem]:
    base = int(path.name.partition(".")[0])
    with Segment(path, base, seed) as segment:
        return list(segment.walk(BatchPosition(base, 0)))


class TestReading:
    """What is older than the retention is not read, whether or not its segment is there still."""

    @pytest.fixture
    def writing(self, tmp_path: Path) -> Iterator[Writing]:
        """Ten records a batch, one batch each minute for an hour; the broker stops then."""
        with Writing(tmp_path) as found:
            found.create(retain_s=1_800, segment_bytes=10_000)
            for _ in range(60):
                for _ in range(10):
                    found.append([Sent("t", "c", bytes(50))])
                    found.now_us += SECOND_US
                found.commit()
                found.now_us += 50 * SECOND_US
            yield found

    def source(self, writing: Writing, later_s: int = 0) -> Source:
        now_us = writing.now_us + later_s * SECOND_US
        return Source.open(writing.root, NAME, lambda: now_us)

    def test_the_earliest_is_the_first_record_that_is_not_too_old(self, writing: Writing) -> None:
        for later_s, first in (
            (0, 300), (1, 301), (9, 309), (10, 310), (60, 310), (61, 311), (1_740, 590),
            (1_745, 595), (1_750, 600), (9_999, 600),
        ):  # fmt: skip
            with self.source(writing, later_s) as source:
                assert source.resolve("earliest").ends == (first,), later_s
                assert source.resolve("2001-01-01").ends == (first,)
                if first < 600:
                    with Reader(source, 0, first) as reader:
                        found = [r for batch in reader.read() for r in records(batch)]
                        assert found[0].offset == first

    def test_offsets_of_what_is_too_old_are_gone(self, writing: Writing) -> None:
        with self.source(writing) as source:
            for offset in (0, 100, 250):
                with Reader(source, 0, offset) as reader, pytest.raises(OffsetGone) as caught:
                    reader.read()
                assert (caught.value.offset, caught.value.earliest) == (offset, 300)
                with Reader(source, 0, offset) as reader, pytest.raises(OffsetGone):
                    reader.extent()
                with pytest.raises(OffsetGone):
                    source.resolve(f'{{"p0": {offset}}}')
            with pytest.raises(OffsetGone):
                list(record_batches(source, 0, 100))

    def test_a_reader_that_began_in_time_has_time_to_read(self, writing: Writing) -> None:
        """What is earliest now has expired when its reader gets there."""
        now_us = writing.now_us
        with Source.open(writing.root, NAME, lambda: now_us) as source:
            start = source.resolve("earliest").ends[0]
            now_us += 120 * SECOND_US
            assert source.resolve("earliest").ends[0] == start + 20
            assert source.starts().ends[0] <= start
            with Reader(source, 0, start) as reader:
                assert reader.read()[0].start == start
            now_us += 1_800 * SECOND_US
            with Reader(source, 0, start) as reader, pytest.raises(OffsetGone) as caught:
                reader.read()
            assert caught.value.earliest == 600

    def test_readers_in_the_middle_are_told(self, writing: Writing) -> None:
        now_us = writing.now_us
        with (
            Source.open(writing.root, NAME, lambda: now_us) as source,
            Reader(source, 0, 300) as reader,
        ):
            assert reader.read(1)
            now_us += 3_600 * SECOND_US
            with pytest.raises(OffsetGone):
                reader.read(1)

    def test_without_retention_nothing_is_too_old(self, writing: Writing) -> None:
        writing.log.change(NAME, retain_s=0)
        with self.source(writing, 10**8) as source:
            assert source.resolve("earliest").ends == source.starts().ends == (0,)
            with Reader(source, 0, 0) as reader:
                assert reader.read()

    @pytest.mark.parametrize("damaged", [300, 290, 310, 0])
    def test_damage_is_not_begun_behind(self, writing: Writing, damaged: int) -> None:
        """Where it cannot be told what is there, a reader is told so."""
        [(path, position)] = [
            (path, item.position)
            for path in segments(writing.root)
            for item in items(path, seed_of(writing.log.streams[NAME].epoch, 0))
            if item.base == damaged
        ]
        with path.open("r+b") as file:
            file.seek(position + 20)
            file.write(b"damage!!")
        with self.source(writing) as source:
            start = source.resolve("earliest").ends[0]
            with Reader(source, 0, start) as reader:
                if damaged in (290, 300):  # nobody can tell how old it was
                    assert start == damaged
                    with pytest.raises(CorruptBatch):
                        reader.read()
                else:
                    assert start == 300
                    assert reader.read(1)

    def test_a_segment_that_is_missing_is_not_begun_behind(self, writing: Writing) -> None:
        with self.source(writing) as source:
            at = source.partition(0).catalog.find(300)
            (writing.root / NAME / "p0" / source.partition(0).catalog[at].name).unlink()
            start = source.resolve("earliest").ends[0]
            assert start <= 300
            with Reader(source, 0, start) as reader, pytest.raises((MissingSegment, OffsetGone)):
                reader.read()

    def test_a_clock_that_was_set_back_makes_nothing_vanish(self, tmp_path: Path) -> None:
        """As with segments: what is kept keeps what stands behind it."""
        with Writing(tmp_path) as writing:
            writing.create(retain_s=600)
            for at_s in (0, 5_000, 1, 2, 3, 5_100):
                writing.now_us = START_US + at_s * SECOND_US
                writing.put(b"x")
            with self.source(writing) as source:
                assert source.resolve("earliest").ends == (1,)
                with Reader(source, 0, 1) as reader:
                    assert [batch.start for _ in "123" for batch in reader.read()] == [
                        1,
                        2,
                        3,
                        4,
                        5,
                    ]
                with Reader(source, 0, 0) as reader, pytest.raises(OffsetGone):
                    reader.read()
            with self.source(writing, 650) as source:
                assert source.resolve("earliest").ends == (6,)
