"""Every call to the disk fails once, at every place: nothing is lost, nothing is there twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.streams.format.batch_builder import BatchBuilder, Run
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.read.verify import verify
from tests.streams.disks import Failing, Stuttering
from tests.streams.logs import NAME, Sent, Writing, decoded, payloads, read, segments

TRIES_MAX = 20


def until_done(call: Callable[[], Any]) -> Any:
    """As the store's thread does it: again, until it works."""
    for _ in range(TRIES_MAX):
        try:
            return call()
        except OSError:
            continue
    raise AssertionError("it never works")


def story(writing: Writing) -> None:
    """Writes, seals, removes, compacts."""
    until_done(
        lambda: writing.create(
            partitions=2, partition_by="topic", segment_bytes=4_096, compact=True
        )
    )
    for number in range(24):
        for device in range(3):
            topic, payload = f"t{(number + device) % 5}", b"%06d" % (number * 3 + device)
            writing.append([Sent(topic, f"dev{device}", payload + bytes(250))])
        writing.number += 1
        writing.writer.assign(writing.number)
        ends = until_done(lambda: writing.writer.write(writing.number))
        writing.journal |= decoded(ends)
        writing.writer.committed(ends)
        writing.now_us += 1_000_000
        if number % 5 == 4:
            writing.log.maintain(writing.now_us)
        if number % 10 == 9:
            writing.log.compact(writing.now_us)


def found(root: Path) -> list[list[tuple[int, str, bytes]]]:
    return [
        [(r.offset, r.topic, r.payload) for r in read(root, partition)] for partition in range(2)
    ]


def is_right(root: Path, whole: list[list[tuple[int, str, bytes]]]) -> None:
    """Compaction may have come later or not at all: the last of each topic counts, and that
    nothing is there that was not sent, or twice."""
    for now, then in zip(found(root), whole, strict=True):
        offsets = [offset for offset, _, _ in now]
        assert offsets == sorted(set(offsets))
        assert {topic: (o, p) for o, topic, p in now} == {topic: (o, p) for o, topic, p in then}
    with Source.open(root, NAME) as source:
        assert verify(source).findings == []


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[int, list[list[tuple[int, str, bytes]]]]:
    root = tmp_path_factory.mktemp("whole") / "log"
    disk = Failing(0, 0)
    with Writing(root, disk=disk) as writing:
        story(writing)
    return disk.calls, found(root)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_after", [False, True])
def test_each_call_fails_once(
    tmp_path: Path, whole: tuple[int, list[list[tuple[int, str, bytes]]]], is_after: bool, step: int
) -> None:
    calls, expected = whole
    assert calls > 200
    kinds: set[str] = set()
    for nth in range(6, calls, max(step, 1 + is_after)):  # opening is not its part
        root = tmp_path / str(nth)
        disk = Failing(nth, 1 + nth % 3, is_after=is_after)
        with Writing(root, disk=disk) as writing:
            story(writing)
        kinds.update(what.split()[0] for what in disk.failed)
        is_right(root, expected)
        with Writing(root, writing.journal):
            is_right(root, expected)
    assert kinds >= ({"rename", "sync", "write"} if is_after else
                     {"open", "write", "sync", "rename", "remove", "truncate", "make"})  # fmt: skip


def test_a_full_disk_holds_everything_back_and_then_it_goes_on(tmp_path: Path) -> None:
    disk = Failing(10**9)
    with Writing(tmp_path, disk=disk) as writing:
        writing.create()
        writing.put(b"one")
        disk.failing = range(disk.calls + 1, 10**9)
        for number in range(5):
            writing.append([Sent("t", "c", b"%d" % number)])
            with pytest.raises(OSError, match="No space left"):
                writing.write()
        assert writing.writer.waiting_bytes > 0
        disk.failing = range(0)
        writing.commit()
        assert writing.writer.waiting_bytes == 0
        assert [r.payload for r in read(tmp_path)] == [b"one", b"0", b"1", b"2", b"3", b"4"]


def test_what_failed_leaves_no_bytes_behind(tmp_path: Path) -> None:
    """Even when what is written in its place is shorter."""
    with Writing(tmp_path) as writing:
        writing.create()
        partition = writing.log.streams[NAME].partitions[0]
        for payload in (bytes(1_000), b"x"):
            builder = BatchBuilder()
            builder.append_run(Run(1, b"t", b"c", b"", 0, 1), [payload], 1)
            partition.write([builder])
        partition.sync()
        partition.settle([1])
        assert segments(tmp_path)[0].stat().st_size == partition.active.size < 1_000


def test_readers_are_told_later_when_the_end_cannot_be_written(tmp_path: Path) -> None:
    disk = Failing(10**9, is_partial=False)
    with Writing(tmp_path, disk=disk) as writing:
        writing.create()
        writing.append([Sent("t", "c", b"one")])
        ends = writing.write()
        disk.failing = range(disk.calls + 1, disk.calls + 2)
        writing.writer.committed(ends)
        assert "readers will see new records later" in writing.lines[0]
        assert read(tmp_path) == []
        writing.log.maintain(writing.now_us)
        assert len(read(tmp_path)) == 1


def test_a_disk_that_takes_a_few_bytes_at_a_time(
    tmp_path: Path, whole: tuple[int, list[list[tuple[int, str, bytes]]]]
) -> None:
    with Writing(tmp_path, disk=Stuttering(random.Random(1))) as writing:
        story(writing)
    is_right(tmp_path, whole[1])


def test_a_stream_is_gone_though_its_files_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(disk: Disk, path: Path) -> None:
        raise OSError(EIO, "Input/output error", str(path))

    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "remove_directory", fail)
            patch.setattr(Disk, "sync_directory", fail)
            writing.log.delete(NAME)
        assert [line.count("Input/output error") for line in writing.lines] == [1, 1]
        assert NAME not in writing.log.streams
        writing.create()
        writing.put(b"two")
    with Writing(tmp_path):
        assert payloads(tmp_path) == [b"two"]
