"""Reading: from anywhere, along with writing, past everything that is missing or damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqtt_broker.streams.format.batch import seed_of
from mqtt_broker.streams.format.errors import (
    CorruptBatch,
    Damaged,
    EndBeforeStart,
    Invalid,
    MissingSegment,
    OffsetAhead,
    OffsetGone,
    StreamGone,
    UnknownPartition,
    UnknownStream,
    UnreadableFile,
    WrongEpoch,
)
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.segment import Segment
from mqtt_broker.streams.format.segment_index import IndexEntry, encode
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Location, PartitionSource, Source, stream_names
from tests.streams.logs import NAME, START_US, Sent, Writing, payloads, put_many, read, segments


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """Ten sealed segments of 40 messages in 4 batches, and one that is written to."""
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000)
        put_many(writing, 42)
    return tmp_path


def numbers(root: Path, start: int = 0, damage: list[Damaged] | None = None) -> list[int]:
    return [int(record.payload[:6]) for record in read(root, start=start, damage=damage)]


def test_from_every_offset(ten: Path) -> None:
    assert len(segments(ten)) == 11
    for start in range(0, 421, 7):
        assert numbers(ten, start) == list(range(start, 420))


def test_up_to_every_offset(ten: Path) -> None:
    for until in range(0, 421, 13):
        assert [r.offset for r in read(ten, start=0, until=until)] == list(range(until))


def test_it_follows_without_a_gap_or_a_repeat(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        with Source.open(tmp_path, NAME) as source, Reader(source, 0, 0) as reader:
            assert reader.read() == []
            found: list[bytes] = []
            for number in range(100):
                writing.put(b"%d" % number + bytes(300))
                assert reader.lag() == 1
                for batch in reader.read():
                    found += batch.payloads()
                assert reader.lag() == 0 and reader.read() == []
                if number % 10 == 0:
                    writing.append([Sent("t", "c", b"not committed")])
                    writing.write()
                    assert reader.read() == []
                    writing.commit()
                    [batch] = reader.read()
                    assert batch.payloads() == [b"not committed"]
            assert [int(payload[:-300]) for payload in found] == list(range(100))
            assert len(segments(tmp_path)) > 5


def test_by_time(ten: Path) -> None:
    with Source.open(ten, NAME) as source:
        for second in range(42):
            for early in (0, 1, 999_999):
                at = START_US + second * 1_000_000 - early
                assert source.at_time(at).ends == (second * 10,)
        assert source.at_time(0).ends == (0,)
        assert source.at_time(START_US + 42_000_000).ends == (420,)


def test_by_time_when_the_clock_goes_back(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        times = [0, 100, 50, 60, 200, 10, 150, 300, 20]
        for at in times:
            writing.now_us = START_US + at
            writing.put(bytes(5_000))
        with Source.open(tmp_path, NAME) as source:
            for at in range(0, 310, 10):
                expected = next((n for n, t in enumerate(times) if t >= at), len(times))
                assert source.at_time(START_US + at).ends == (expected,)


def test_words_for_places(ten: Path) -> None:
    with Source.open(ten, NAME) as source:
        epoch = source.epoch
        assert source.resolve("earliest") == Offsets(epoch, (0,))
        assert source.resolve("latest") == Offsets(epoch, (420,))
        assert source.resolve(' {"p0": 17}') == Offsets(epoch, (17,))
        assert source.resolve("2023-11-14T22:13:30Z") == Offsets(epoch, (100,))
        with pytest.raises(Invalid, match="'soon' is invalid: expected earliest, latest"):
            source.resolve("soon")
        with pytest.raises(OffsetAhead):
            source.resolve('{"p0": 421}')
        with pytest.raises(WrongEpoch):
            source.resolve('{"epoch": "x", "p0": 1}')


def test_what_cannot_be_read_is_said_at_once(ten: Path) -> None:
    with pytest.raises(UnknownStream, match="there is no stream 'other'"):
        Source.open(ten, "other")
    with pytest.raises(Invalid):
        Source.open(ten, "../other")
    with Source.open(ten, NAME) as source:
        with pytest.raises(UnknownPartition, match="has no partition p1: p0 to p0 exist"):
            Reader(source, 1, 0)
        with pytest.raises(OffsetAhead):
            Reader(source, 0, 421)
        with pytest.raises(EndBeforeStart):
            Reader(source, 0, 10, 9)


def test_what_retention_has_removed_is_never_read_over(ten: Path) -> None:
    with Source.open(ten, NAME) as source, Reader(source, 0, 0) as reader:
        with Writing(ten) as writing:
            put_many(writing, 1)
            writing.log.trim(NAME, Offsets(source.epoch, (100,)))
            assert len(segments(ten)) == 9
        with pytest.raises(OffsetGone) as gone:
            reader.read()
        assert (gone.value.offset, gone.value.earliest) == (0, 80)
        with pytest.raises(OffsetGone):
            reader.read()
        with pytest.raises(OffsetGone):
            source.resolve('{"p0": 79}')
        assert source.starts().ends == (80,)
        assert numbers(ten, 80)[:340] == list(range(80, 420))


def test_a_segment_that_is_open_is_read_to_its_end(ten: Path) -> None:
    with Source.open(ten, NAME) as source, Reader(source, 0, 0) as reader:
        reader.read(1)
        with Writing(ten) as writing:
            writing.log.trim(NAME)
            assert len(segments(ten)) == 0
        count = 10 + sum(batch.count for _ in range(3) for batch in reader.read(1))
        with pytest.raises(OffsetGone):
            reader.read()
        assert count == 40


def test_a_missing_segment_is_reported_and_skipped_only_when_told(ten: Path) -> None:
    segments(ten)[3].unlink()
    with pytest.raises(MissingSegment) as missing:
        numbers(ten)
    error = missing.value
    assert (error.stream, error.partition, error.offset, error.until) == (NAME, 0, 120, 160)
    assert str(error) == (
        "stream 'telemetry' p0, offsets 120 to 159: 00000000000000000120.seg is missing"
    )
    damage: list[Damaged] = []
    assert numbers(ten, damage=damage) == [*range(120), *range(160, 420)]
    assert [str(one) for one in damage] == [str(error)]
    assert numbers(ten, 160) == list(range(160, 420))


def test_the_last_segment_missing(ten: Path) -> None:
    segments(ten)[-1].unlink()
    damage: list[Damaged] = []
    assert numbers(ten, damage=damage) == list(range(400))
    assert [(one.offset, one.until) for one in damage] == [(400, 420)]


def test_a_segment_cut_short(ten: Path) -> None:
    for place in (2, -1):
        path = segments(ten)[place]
        size = path.stat().st_size
        for cut in (1, size // 4, size // 4 + 1, size):
            whole = path.read_bytes()
            os.truncate(path, size - cut)
            damage: list[Damaged] = []
            found = numbers(ten, damage=damage)
            base = int(path.stem)
            rows = 40 if place == 2 else 20
            [one] = damage
            assert isinstance(one, CorruptBatch) and one.segment == path.name
            assert one.until == base + rows
            assert found == [*range(one.offset), *range(one.until, 420)]
            assert base <= one.offset < one.until
            with pytest.raises(CorruptBatch):
                numbers(ten)
            path.write_bytes(whole)


def test_a_flipped_bit_anywhere_never_gives_wrong_messages(tmp_path: Path) -> None:
    """Every byte of a segment of five batches: found by who needs it, got over by who may."""
    with Writing(tmp_path) as writing:
        writing.create()
        for number in range(5):
            writing.put(b"%06d" % (2 * number), b"%06d" % (2 * number + 1))
    [path] = segments(tmp_path)
    data = path.read_bytes()
    length = len(data) // 5
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        hurt = place // length
        with pytest.raises(CorruptBatch) as caught:
            numbers(tmp_path)
        assert (caught.value.offset, caught.value.until) == (2 * hurt, 2 * hurt + 2)
        assert (caught.value.position, caught.value.segment) == (hurt * length, path.name)
        damage: list[Damaged] = []
        expected = [n for n in range(10) if n // 2 != hurt]
        assert numbers(tmp_path, damage=damage) == expected
        assert len(damage) == 1
        if place % 10 == 0:
            for start in range(10):  # whoever begins behind it is not told
                after = [n for n in expected if n >= start]
                damage = []
                assert numbers(tmp_path, start, damage) == after
                assert bool(damage) == (start < 2 * hurt + 2)


def test_a_batch_in_a_payload_is_not_taken_for_one(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one", b"two")
        [path] = segments(tmp_path)
        copy = path.read_bytes()
        writing.put(copy)
        writing.put(b"three")
        data = bytearray(path.read_bytes())
        data[len(copy) + 20] ^= 1  # in the header of the second batch
        path.write_bytes(data)
    damage: list[Damaged] = []
    assert [r.payload for r in read(tmp_path, damage=damage)] == [b"one", b"two", b"three"]
    assert [(one.offset, one.until) for one in damage] == [(2, 3)]


def test_a_segment_of_another_partition_is_not_read(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(partitions=2, partition_by="round-robin")
        writing.put(b"a", b"b", b"c", b"d")
    one, two = segments(tmp_path, 0)[0], segments(tmp_path, 1)[0]
    two.write_bytes(one.read_bytes())
    assert payloads(tmp_path, 0) == [b"a", b"c"]
    with pytest.raises(CorruptBatch, match="does not match its checksum"):
        payloads(tmp_path, 1)


def test_without_indexes_or_with_wrong_ones(ten: Path) -> None:
    for path in segments(ten):
        index = path.with_suffix(".idx")
        index.unlink() if int(path.stem) % 80 else index.write_bytes(b"\xff" * 48)
    for start in range(0, 420, 39):
        assert numbers(ten, start) == list(range(start, 420))
    with Source.open(ten, NAME) as source:
        assert source.at_time(START_US + 30_000_000).ends == (300,)


def test_indexes_of_other_segments_are_not_followed(ten: Path) -> None:
    paths = segments(ten)
    seed = seed_of(StreamSettings.read(ten / NAME).epoch, 0)
    for path in paths:
        base = int(path.stem)
        wrong = [
            IndexEntry(base, -1, 1384),
            IndexEntry(base + 10, -1, 64),
            IndexEntry(base + 20, -1, 1 << 20),
        ]
        for entry in wrong:
            path.with_suffix(".idx").write_bytes(encode(entry, seed))
            for start in range(base, min(420, base + 40), 7):
                assert numbers(ten, start)[:20] == list(range(start, min(420, start + 20)))


def test_what_is_not_committed_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    """It may be taken back and written again, longer or shorter."""
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        for payload in (b"two", b"three"):
            writing.append([Sent("t", "c", payload)])
            writing.write()
        [path] = segments(tmp_path)
        data = bytearray(path.read_bytes())
        second = data.index(b"FM", 10)
        data[20] ^= 1
        data[second + 20] ^= 1
        path.write_bytes(data)
        damage: list[Damaged] = []
        with Source.open(tmp_path, NAME) as source:
            reader = Reader(source, 0, 0, on_damage=damage.append)
            assert reader.read() == [] and reader.offset == 1
            writing.commit()
            [batch] = reader.read()
            assert batch.payloads() == [b"three"]
            assert [(one.offset, one.until) for one in damage] == [(0, 1), (1, 2)]
            reader.close()


def test_extents_are_the_bytes_of_whole_batches(ten: Path) -> None:
    with Source.open(ten, NAME) as source:
        for bytes_max in (1, 2_500, 1 << 20):
            with Reader(source, 0, 5, 333) as reader:
                found, at = b"", 0
                while (extent := reader.extent(bytes_max)) is not None:
                    data = os.pread(extent.file, extent.length, extent.position)
                    assert len(data) == extent.length and extent.base == at
                    assert extent.length <= max(bytes_max, 2_000)
                    found += data
                    at = extent.end
                assert at == 340
            whole = b"".join(path.read_bytes() for path in segments(ten))
            assert whole.startswith(found)


def test_an_extent_ends_before_damage_and_the_next_one_says_so(ten: Path) -> None:
    path = segments(ten)[1]
    data = bytearray(path.read_bytes())
    size = len(data) // 4
    data[size + 30] ^= 1
    path.write_bytes(data)
    damage: list[Damaged] = []
    with Source.open(ten, NAME) as source, Reader(source, 0, 0, on_damage=damage.append) as reader:
        spans = []
        while (extent := reader.extent()) is not None:
            spans.append((extent.base, extent.end))
    assert spans[:4] == [(0, 40), (40, 50), (60, 80), (80, 120)]
    assert [(one.offset, one.until) for one in damage] == [(50, 60)]


def test_a_reader_of_a_deleted_stream_is_told(ten: Path) -> None:
    with Source.open(ten, NAME) as source, Reader(source, 0, 0) as reader:
        reader.read()
        with Writing(ten) as writing:
            writing.log.delete(NAME)
            writing.create()
            with pytest.raises(StreamGone, match="stream 'telemetry' was deleted"):
                reader.read()
            with pytest.raises(StreamGone):
                source.ends()
            assert stream_names(ten) == [NAME]


def test_a_damaged_catalog_or_end_is_said(ten: Path) -> None:
    committed = ten / NAME / "committed"
    with Source.open(ten, NAME) as source:
        assert source.ends().ends == (420,)
        committed.write_bytes(b"x" + committed.read_bytes()[1:])
        with pytest.raises(UnreadableFile, match="does not match its checksum"):
            source.ends()
    committed.write_bytes(b"")
    with (
        Source.open(ten, NAME) as source,
        pytest.raises(UnreadableFile, match="does not match its checksum"),
    ):
        source.ends()
    (ten / NAME / "p0" / "catalog").write_bytes(b"junk")
    with pytest.raises(UnreadableFile, match="catalog: it is cut short"):
        Source.open(ten, NAME)


def test_a_stream_that_was_made_again_is_gone_for_who_reads_the_old_one(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"1")
        with Source.open(tmp_path, NAME) as source:
            writing.log.delete(NAME)
            writing.create()
            writing.put(b"2")
            writing.log.stream(NAME).partitions[0].roll()
            with pytest.raises(StreamGone):
                source.starts()


def test_a_source_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"1")
    (tmp_path / NAME / "p0" / "catalog").write_bytes(b"nonsense")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with pytest.raises(Invalid):
        Source.open(tmp_path, NAME)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_segment_that_is_compacted_again_and_again_is_found(
    ten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it is opened under the name that the catalog has, that name is gone already."""
    opened = PartitionSource._open
    tries = []

    def open_late(source: PartitionSource, offset: int, committed: int) -> tuple[Location, Segment]:
        tries.append(offset)
        if len(tries) < 5:
            os.utime(source.files.directory / "catalog", ns=(0, len(tries)))
            raise MissingSegment(NAME, 0, offset, 40, "old.seg")
        return opened(source, offset, committed)

    monkeypatch.setattr(PartitionSource, "_open", open_late)
    assert numbers(ten)[:3] == [0, 1, 2]
