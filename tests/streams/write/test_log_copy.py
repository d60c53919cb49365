"""A log copied while it is written to: up to the journal's ends, and apart from the original."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mqtt_broker.streams.format.errors import LostTail, StreamError
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.read.verify import verify
from mqtt_broker.streams.write.log_copy import CopiedStream, LogCopy
from tests.streams.logs import NAME, Sent, Writing, payloads, put_many, read, segments

SEGMENT_BYTES = 64 << 10


def captured(writing: Writing) -> tuple[LogCopy, dict[str, str]]:
    copy = LogCopy(writing.log)
    with writing.log.lock:
        ends = {name: offsets.text() for name, offsets in writing.journal.items()}
        copy.capture()
    return copy, ends


def written(writing: Writing, target: Path) -> dict[str, CopiedStream]:
    copy, ends = captured(writing)
    try:
        return copy.write(target, ends, lambda _: None)
    finally:
        copy.close()


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    found = Writing(tmp_path / "streams")
    found.create(segment_bytes=SEGMENT_BYTES)
    return found


def check(target: Path, wanted: list[bytes]) -> None:
    """A log opens it without a word, and a reader finds what it should."""
    with Source.open(target, NAME) as source:
        assert not verify(source).findings
        ends = {NAME: source.ends()}
    with Writing(target, ends) as reopened:
        assert reopened.lines == []
        assert reopened.log.stream(NAME).ends() == ends[NAME]
    assert payloads(target) == wanted


def test_sealed_segments_are_linked_and_the_last_is_copied(
    writing: Writing, tmp_path: Path
) -> None:
    wanted = put_many(writing, 60, size=300)
    copied = written(writing, tmp_path / "copy")
    assert copied[NAME].ends == writing.journal[NAME].ends
    assert copied[NAME].starts == (0,)
    old, new = segments(writing.root), segments(tmp_path / "copy")
    assert [path.name for path in old] == [path.name for path in new]
    is_same = [a.samefile(b) for a, b in zip(old, new, strict=True)]
    assert not is_same[-1] and is_same[:-1] and all(is_same[:-1])
    put_many(writing, 30, size=300)
    writing.log.trim(NAME)
    check(tmp_path / "copy", wanted)


def test_nothing_beyond_the_journal_is_copied(writing: Writing, tmp_path: Path) -> None:
    """Neither what is written and not committed, nor what stands alone."""
    writing.put(b"1", b"2")
    writing.append([Sent("t", "c", b"3")])
    writing.write_alone()
    writing.append([Sent("t", "c", b"4")])
    writing.write()
    copied = written(writing, tmp_path / "copy")
    assert sum(copied[NAME].ends) == 2
    check(tmp_path / "copy", [b"1", b"2"])


def test_a_stream_that_the_journal_does_not_know_is_copied_as_readers_see_it(
    writing: Writing, tmp_path: Path
) -> None:
    writing.append([Sent("t", "c", b"1")])
    writing.write_alone()
    writing.journal.clear()
    assert sum(written(writing, tmp_path / "copy")[NAME].ends) == 1
    check(tmp_path / "copy", [b"1"])


def test_what_is_removed_after_the_capture_is_in_the_copy(writing: Writing, tmp_path: Path) -> None:
    wanted = put_many(writing, 60, size=300)
    copy, ends = captured(writing)
    assert copy.size >= 60 * 10 * 300
    writing.log.delete(NAME)
    moved: list[int] = []
    copy.write(tmp_path / "copy", ends, moved.append)
    copy.close()
    assert sum(moved) >= copy.size
    check(tmp_path / "copy", wanted)
    assert [path.name for path in writing.root.iterdir()] == ["lock"]


def test_links_of_a_killed_process_are_removed_at_the_next_start(
    writing: Writing, tmp_path: Path
) -> None:
    wanted = put_many(writing, 60, size=300)
    captured(writing)  # and nobody closes it
    writing.log.close()
    with Writing(writing.root, writing.journal) as again:
        assert again.lines == []
    assert sorted(path.name for path in writing.root.iterdir()) == ["lock", NAME]
    check(writing.root, wanted)


@pytest.mark.parametrize("where", ["to the target", "at all"])
def test_without_links_files_are_copied(
    writing: Writing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wanted = put_many(writing, 60, size=300)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV if where == "to the target" else errno.EPERM, "no")

    if where == "to the target":
        monkeypatch.setattr(Path, "rename", refuse)
    else:
        monkeypatch.setattr(os, "link", refuse)
    written(writing, tmp_path / "copy")
    pairs = zip(segments(writing.root), segments(tmp_path / "copy"), strict=True)
    assert not any(a.samefile(b) for a, b in pairs)
    check(tmp_path / "copy", wanted)


def test_a_file_that_vanishes_without_links_is_an_error(
    writing: Writing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many(writing, 60, size=300)

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(os, "link", refuse)
    copy, ends = captured(writing)
    writing.log.trim(NAME)
    with pytest.raises(StreamError, match="was removed while the log was copied: try again"):
        copy.write(tmp_path / "copy", ends, lambda _: None)
    copy.close()


def test_a_segment_that_lacks_promised_records_is_an_error(
    writing: Writing, tmp_path: Path
) -> None:
    writing.put(b"1")
    [path] = segments(writing.root)
    os.truncate(path, 8)
    copy, ends = captured(writing)
    with pytest.raises(LostTail):
        copy.write(tmp_path / "copy", ends, lambda _: None)
    copy.close()


def test_damage_before_the_end_is_copied(writing: Writing, tmp_path: Path) -> None:
    put_many(writing, 3)
    [path] = segments(writing.root)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    written(writing, tmp_path / "copy")
    [new] = segments(tmp_path / "copy")
    assert new.read_bytes() == bytes(data)
    damage: list[object] = []
    read(tmp_path / "copy", damage=damage)  # type: ignore[arg-type]
    assert damage


def test_an_end_stops_the_copy(writing: Writing, tmp_path: Path) -> None:
    put_many(writing, 60, size=300)
    copy, ends = captured(writing)

    def stop(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        copy.write(tmp_path / "copy", ends, stop)
    copy.close()
    assert sorted(path.name for path in writing.root.iterdir()) == ["lock", NAME]
