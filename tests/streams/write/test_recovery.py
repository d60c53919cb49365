"""Opening after something happened: what is cut, what is kept, what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mqtt_broker.streams.format.errors import (
    Damaged,
    Invalid,
    JournalBehind,
    LostTail,
    MissingSegment,
    OffsetGone,
)
from mqtt_broker.streams.format.offsets import Offsets
from tests.streams.logs import (
    NAME,
    START_US,
    Sent,
    Writing,
    decoded,
    payloads,
    put_many,
    read,
    segments,
)


def copied(root: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(root, to)
    return to


def test_what_the_journal_does_not_know_is_cut(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one", b"two")
        writing.append([Sent("t", "c", b"never acknowledged")])
        writing.write()
    with Writing(tmp_path, writing.journal) as again:
        assert again.lines == ["stream 'telemetry' p0: 152 bytes after offset 2 are cut"]
        again.put(b"three")
        assert payloads(tmp_path) == [b"one", b"two", b"three"]


def test_what_stands_alone_is_kept_up_to_what_does_not(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        writing.append([Sent("t", "c", b"two")])
        writing.write_alone()
        writing.append([Sent("t", "c", b"three")], qos=1)
        writing.write_alone()
        writing.append([Sent("t", "c", b"never acknowledged")], qos=2)
        writing.assign()
        assert not writing.writer.is_durable_alone(writing.number)
        writing.writer.write(writing.number)
        assert not writing.writer.is_durable_alone(writing.number)
    assert writing.journal[NAME].ends == (1,)
    with Writing(tmp_path, writing.journal) as again:
        assert again.lines == ["stream 'telemetry' p0: 152 bytes after offset 3 are cut"]
        again.append([Sent("t", "c", b"four")])
        assert decoded(again.write())[NAME].ends == (4,)


def test_the_journal_hears_of_what_stood_alone_before_a_crash(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.append([Sent("t", "c", b"one")])
        writing.write_alone()
    with Writing(tmp_path, {}) as again:
        partition = again.log.streams[NAME].partitions[0]
        assert partition.end == 1 and not partition.roll()
        again.commit()
        assert again.journal[NAME].ends == (1,) and partition.roll()


def test_what_stood_alone_and_was_seen_is_promised(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        for payload in (b"two", b"three"):
            writing.append([Sent("t", "c", payload)])
            writing.write_alone()
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(LostTail):
        Writing(tmp_path, writing.journal)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with Writing(tmp_path, writing.journal) as again:
        assert len(again.lines) == 1 and "does not match its checksum" in again.lines[0]
        assert again.log.streams[NAME].ends().ends == (3,)


def test_a_torn_tail_of_what_was_to_stand_alone_is_cut(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        shown = (tmp_path / NAME / "committed").read_bytes()
        writing.append([Sent("t", "c", b"two")])
        writing.write_alone()
        [path] = segments(tmp_path)
        whole = path.read_bytes()
        first = writing.log.streams[NAME].partitions[0].active.size // 2
    (tmp_path / NAME / "committed").write_bytes(shown)
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        with Writing(tmp_path, writing.journal) as again:
            assert again.log.streams[NAME].ends().ends == (1,)
            assert path.stat().st_size == first


def test_a_torn_tail_is_cut_at_the_last_whole_batch(tmp_path: Path) -> None:
    """A file that ends anywhere: with and without a journal."""
    with Writing(tmp_path / "log") as writing:
        writing.create()
        writing.put(b"one", b"two")
        size = segments(tmp_path / "log")[0].stat().st_size
        first = dict(writing.journal)
        shown = (tmp_path / "log" / NAME / "committed").read_bytes()
        writing.put(b"three")
    [path] = segments(tmp_path / "log")
    whole = path.read_bytes()
    for length in range(size, len(whole)):
        for journal in (first, None):
            root = copied(tmp_path / "log", tmp_path / "copy")
            (root / NAME / "committed").write_bytes(shown)
            os.truncate(segments(root)[0], length)
            with Writing(root, journal) as again:
                assert bool(again.lines) == (length > size)
                assert segments(root)[0].stat().st_size == size
                again.put(b"next")
                assert payloads(root) == [b"one", b"two", b"next"]


def test_a_tail_of_anything_is_cut(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
    [path] = segments(tmp_path)
    size = path.stat().st_size
    for tail in (bytes(5_000), b"\xff" * 77, b"FM\x01\x00" * 40):
        path.write_bytes(path.read_bytes()[:size] + tail)
        with Writing(tmp_path) as again:
            assert len(again.lines) == 1
            assert path.stat().st_size == size
            assert payloads(tmp_path) == [b"one"]


def test_a_log_without_what_was_promised_is_not_opened(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        writing.put(b"two")
    [path] = segments(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    before = path.read_bytes()
    with pytest.raises(LostTail) as lost:
        Writing(tmp_path, writing.journal)
    assert (lost.value.end, lost.value.promised) == (1, 2)
    assert str(lost.value) == (
        "stream 'telemetry' p0, offsets 1 to 1: the log ends here, but more was promised"
    )
    assert path.read_bytes() == before
    with pytest.raises(LostTail):
        Writing(tmp_path, writing.journal)


def test_lost_offsets_are_a_hole_and_are_never_used_again(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        writing.put(b"two")
        writing.put(b"three")
    [path] = segments(tmp_path)
    os.truncate(path, path.stat().st_size // 3 + 5)
    with Writing(tmp_path, writing.journal, salvage=True) as again:
        assert "offsets 1 to 2: the log ends here, but more was promised" in again.lines[-1]
        again.put(b"four")
    for journal in (again.journal, None):
        with Writing(tmp_path, journal):
            with pytest.raises(MissingSegment) as missing:
                payloads(tmp_path)
            assert (missing.value.offset, missing.value.until) == (1, 3)
            damage: list[Damaged] = []
            found = read(tmp_path, damage=damage)
            assert [(r.offset, r.payload) for r in found] == [(0, b"one"), (3, b"four")]
            assert len(damage) == 1


def test_all_of_it_lost(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
    [path] = segments(tmp_path)
    path.unlink()
    with pytest.raises(LostTail):
        Writing(tmp_path, writing.journal)
    with Writing(tmp_path) as again:  # without a journal it goes on, and says what is lost
        assert "more was promised" in again.lines[0]
        again.put(b"two")
        assert [r.payload for r in read(tmp_path, start=1)] == [b"two"]
        with pytest.raises(OffsetGone):
            payloads(tmp_path)


def test_a_partition_or_a_stream_that_somebody_removed(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
    shutil.rmtree(tmp_path / NAME / "p0")
    with pytest.raises(LostTail):
        Writing(tmp_path, writing.journal)
    with Writing(tmp_path, writing.journal, salvage=True) as again:
        again.put(b"two")
        assert [r.offset for r in read(tmp_path, start=1)] == [1]
    shutil.rmtree(tmp_path / NAME)
    with Writing(tmp_path, writing.journal) as again:
        assert again.lines == [
            "stream 'telemetry': the journal knows it, but its files are missing"
        ]


def test_a_journal_of_an_older_backup_is_refused(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        writing.put(b"one")
        old = dict(writing.journal)
        put_many(writing, 10)
    with pytest.raises(JournalBehind, match="may come from an older backup"):
        Writing(tmp_path, old)
    (tmp_path / NAME / "committed").unlink()
    with pytest.raises(JournalBehind):  # what is sealed was committed
        Writing(tmp_path, old)
    with Writing(tmp_path, old, salvage=True):
        assert len(payloads(tmp_path)) == 101


def test_damage_in_the_middle_does_not_stop_the_start(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        for number in range(4):
            writing.put(b"%d" % number)
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    length = len(whole) // 4
    for hurt, journal in ((0, None), (1, None), (1, writing.journal), (3, writing.journal)):
        for place in (10, 70):
            data = bytearray(whole)
            data[hurt * length + place] ^= 1
            path.write_bytes(data)
            if hurt == 3 and place == 10:
                continue  # where it ends cannot be told: see the test below
            with Writing(tmp_path, journal) as again:
                assert f"offset{'s'} {hurt} to {hurt}" in again.lines[0]
                damage: list[Damaged] = []
                found = [r.payload for r in read(tmp_path, damage=damage)]
                assert found == [b"%d" % n for n in range(4) if n != hurt]
                assert len(damage) == 1


def test_a_last_batch_whose_header_is_damaged_is_lost(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
    [path] = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(LostTail):
        Writing(tmp_path, writing.journal)


def test_the_catalog_is_made_anew(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        expected = put_many(writing, 50)
        before = writing.log.streams[NAME].partitions[0].catalog.segments()
    catalog = tmp_path / NAME / "p0" / "catalog"
    whole = catalog.read_bytes()
    for data in (None, b"", whole[:-1], whole[:60] + b"x" + whole[61:]):
        catalog.unlink()
        if data is not None:
            catalog.write_bytes(data)
        with Writing(tmp_path, writing.journal) as again:
            assert "the catalog is" in again.lines[0] and "rebuilt" in again.lines[0]
            partition = again.log.streams[NAME].partitions[0]
            assert partition.catalog.segments() == before
            assert catalog.read_bytes() == whole
            assert payloads(tmp_path) == expected


def test_a_catalog_that_is_older_than_the_segments(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        put_many(writing, 10)
        catalog = tmp_path / NAME / "p0" / "catalog"
        old = catalog.read_bytes()
        put_many(writing, 30)
        expected = payloads(tmp_path)
    catalog.write_bytes(old)
    with Writing(tmp_path, writing.journal) as again:
        assert "the catalog is older than segment" in again.lines[0]
        assert payloads(tmp_path) == expected


def test_leftovers_are_removed(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        put_many(writing, 20)
        expected = payloads(tmp_path)
    directory = tmp_path / NAME / "p0"
    kept = sorted(path.name for path in directory.iterdir())
    for name in (
        "catalog.new",
        "00000000000000000000.1.seg.new",
        "00000000000000000000.1.seg",
        "00000000000000000000.1.idx",
        "00000000000000000003.seg",
    ):
        (directory / name).write_bytes(b"left behind")
    for name in ("other.new", "telemetry.gone.new"):
        (tmp_path / name / "p0").mkdir(parents=True)
        (tmp_path / name / "p0" / "x.seg").write_bytes(b"x")
    with Writing(tmp_path, writing.journal):
        assert sorted(path.name for path in directory.iterdir()) == kept
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", NAME]
        assert payloads(tmp_path) == expected


def test_a_stream_whose_settings_are_gone_is_not_passed_over(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        put_many(writing, 2)
    path = tmp_path / NAME / "stream.json"
    path.unlink()
    with pytest.raises(Invalid, match=r"stream\.json: the file is missing, but the stream"):
        Writing(tmp_path, writing.journal)
    with Writing(tmp_path, writing.journal, salvage=True) as again:
        assert "they are left alone" in again.lines[0]
        assert not again.log.streams
    assert segments(tmp_path)


def test_settings_that_cannot_be_name_their_file(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
    path = tmp_path / NAME / "stream.json"
    path.write_text(path.read_text().replace('"partitions": 1', '"partitions": 0'))
    with pytest.raises(Invalid, match=r"telemetry/stream\.json: partitions: 0 is out of range"):
        Writing(tmp_path)


def test_bytes_behind_what_is_committed_are_cut(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        put_many(writing, 2)
        expected = payloads(tmp_path)
    with (tmp_path / NAME / "committed").open("ab") as file:
        file.write(b"rubbish")
    with Writing(tmp_path, writing.journal):
        assert payloads(tmp_path) == expected


def test_sealed_segments_that_are_missing_are_said_at_the_start(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=5_000)
        put_many(writing, 20)
    segments(tmp_path)[1].unlink()
    with Writing(tmp_path, writing.journal) as again:
        assert again.lines == ["stream 'telemetry' p0: 00000000000000000040.seg is missing"]


def test_segments_are_sealed_by_age_even_when_nothing_comes(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_s=60)
        writing.put(b"one")
        writing.log.maintain(START_US + 59_000_000)
        assert len(writing.log.streams[NAME].partitions[0].catalog) == 0
        writing.log.maintain(START_US + 60_000_000)
        assert len(writing.log.streams[NAME].partitions[0].catalog) == 1
        writing.now_us += 200_000_000
        writing.put(b"two")
        writing.now_us += 60_000_000
        writing.put(b"three")
        assert len(segments(tmp_path)) == 3
        assert payloads(tmp_path) == [b"one", b"two", b"three"]
    with Writing(tmp_path, writing.journal):
        assert payloads(tmp_path) == [b"one", b"two", b"three"]


def test_nothing_is_sealed_that_is_not_committed(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        for _ in range(5):
            writing.append([Sent("t", "c", bytes(5_000))])
            writing.write()
            assert len(segments(tmp_path)) == 1
        assert not writing.log.streams[NAME].partitions[0].roll()
        writing.commit()
        writing.put(b"next")
        assert len(segments(tmp_path)) == 2


def test_an_end_inside_a_batch_is_no_end(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one", b"two", b"three")
    epoch = writing.journal[NAME].epoch
    (tmp_path / NAME / "committed").unlink()
    with pytest.raises(LostTail):
        Writing(tmp_path, {NAME: Offsets(epoch, (2,))})


def test_metadata_of_a_later_program(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
    path = tmp_path / NAME / "stream.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(Invalid, match="format 2, this program reads 1"):
        Writing(tmp_path)
