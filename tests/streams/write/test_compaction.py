"""The last message of each topic stays, at its offset; tombstones stay for a while."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.streams.format.errors import CorruptBatch
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.read.verify import verify
from mqtt_broker.streams.write import compaction
from mqtt_broker.streams.write.log import Log
from tests.streams.logs import NAME, START_US, Sent, Writing, read, segments


def fill(writing: Writing, count: int, topics: int = 5, size: int = 500) -> None:
    for number in range(count):
        writing.put(b"%06d" % number + bytes(size), topic=f"t{number % topics}")
        writing.now_us += 1_000_000


def seal(writing: Writing) -> None:
    writing.log.streams[NAME].partitions[0].roll()


def found(root: Path, start: int = 0) -> list[tuple[int, str]]:
    return [(record.offset, record.topic) for record in read(root, start=start)]


def is_whole(root: Path) -> None:
    with Source.open(root, NAME) as source:
        assert verify(source).findings == []


def test_the_last_of_each_topic_at_its_offset(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 100)
        seal(writing)
        assert len(segments(tmp_path)) > 10
        assert writing.log.compact(writing.now_us) == 95
        assert found(tmp_path) == [(n, f"t{n % 5}") for n in range(95, 100)]
        for start in range(0, 100, 7):
            assert found(tmp_path, start) == [
                (n, f"t{n % 5}") for n in range(95, 100) if n >= start
            ]
        is_whole(tmp_path)
        assert writing.log.compact(writing.now_us) == 0
    with Writing(tmp_path, writing.journal) as again:
        assert again.lines == []
        assert len(found(tmp_path)) == 5


def test_small_segments_are_joined(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 100)
        for _ in range(2):
            fill(writing, 10)
            seal(writing)
            writing.log.compact(writing.now_us)
            is_whole(tmp_path)
        writing.log.compact(writing.now_us)  # those that have become small only now
        is_whole(tmp_path)
        assert len(segments(tmp_path)) == 1
        assert len(found(tmp_path)) == 5


def test_the_active_segment_is_left_alone(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=100_000, compact=True)
        fill(writing, 20)
        assert writing.log.compact(writing.now_us) == 0
        assert len(found(tmp_path)) == 20


def test_streams_that_are_not_to_be_compacted_are_not(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096)
        fill(writing, 20)
        seal(writing)
        assert writing.log.compact(writing.now_us) == 0
        assert len(found(tmp_path)) == 20


def test_a_tombstone_says_for_a_while_that_a_topic_is_gone(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True, tombstone_s=60)
        writing.put(b"1", topic="a")
        writing.put(b"2", topic="b")
        writing.put(b"", topic="a")
        seal(writing)
        assert writing.log.compact(START_US + 59_000_000) == 1
        assert found(tmp_path) == [(1, "b"), (2, "a")]
        writing.put(b"3", topic="b")
        seal(writing)
        assert writing.log.compact(START_US + 61_000_000) == 2
        assert found(tmp_path) == [(3, "b")]
        is_whole(tmp_path)


def test_all_of_it_gone_still_covers_its_offsets(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True, tombstone_s=0)
        writing.put(b"", topic="a")
        writing.put(b"", topic="b")
        seal(writing)
        assert writing.log.compact(START_US + 1) == 2
        assert found(tmp_path) == []
        writing.put(b"x", topic="c")
        assert found(tmp_path) == [(2, "c")]
        is_whole(tmp_path)
        with Source.open(tmp_path, NAME) as source:
            assert source.starts().ends == (0,)
            assert source.at_time(START_US).ends == (2,)
    (tmp_path / NAME / "p0" / "catalog").unlink()
    with Writing(tmp_path, writing.journal):
        assert found(tmp_path) == [(2, "c")]


def test_everything_a_message_has_is_kept(tmp_path: Path) -> None:
    section = b"\x03\x00\x04text"
    with Writing(tmp_path) as writing:
        writing.create(
            segment_bytes=4_096, compact=True, event_time="json:$.e", sent_time="json:$.s ms"
        )
        messages = [
            Sent("a", "c1", b'{"e": 5}'),
            Sent("b", "c2", b'{"s": 6}'),
            Sent("a", "c3", b"{}"),
        ]
        writing.append(messages, qos=1, retain=True, properties=section)
        writing.commit()
        before = read(tmp_path)
        seal(writing)
        assert writing.log.compact(writing.now_us) == 1
        assert read(tmp_path) == before[1:]


def test_a_reader_goes_on_through_it(tmp_path: Path) -> None:
    """In every segment of a log that is compacted and joined under it, again and again."""
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 60)
        with Source.open(tmp_path, NAME) as source:
            readers = [Reader(source, 0, offset) for offset in range(0, 60, 4)]
            seen: list[list[int]] = [[] for _ in readers]
            begun = [reader.offset for reader in readers]
            for turn in range(40):
                for number, reader in enumerate(readers):
                    if (turn + number) % 3:
                        for batch in reader.read(1):
                            seen[number] += [r.offset for r in records(batch)]
                fill(writing, 3)
                if turn % 4 == 0:
                    seal(writing)
                    writing.log.compact(writing.now_us)
            expected = {topic: offset for offset, topic in found(tmp_path)}
            for number, reader in enumerate(readers):
                while batches := reader.read():
                    for batch in batches:
                        seen[number] += [r.offset for r in records(batch)]
                assert seen[number] == sorted(set(seen[number]))
                assert seen[number][0] >= begun[number]
                assert set(expected.values()) <= set(seen[number])
                reader.close()


@pytest.mark.parametrize(("limit", "most"), [("TOPICS_MAX", 10), ("TOPIC_BYTES_MAX", 40)])
def test_with_more_topics_than_memory_the_rest_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(compaction, limit, most)
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 200, topics=40)
        seal(writing)
        for _ in range(60):
            if not any(
                not s.generation for s in writing.log.streams[NAME].partitions[0].catalog.segments()
            ):
                break
            writing.log.compact(writing.now_us)
        assert found(tmp_path) == [(n, f"t{n % 40}") for n in range(160, 200)]
        is_whole(tmp_path)


def test_it_stops_when_told_and_goes_on_later(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 100)
        seal(writing)
        for stop in range(1, 400, 23):
            calls = iter(range(stop))
            writing.log.compact(writing.now_us, lambda: next(calls, None) is None)  # noqa: B023
            is_whole(tmp_path)
            assert {topic for _, topic in found(tmp_path)} == {f"t{n}" for n in range(5)}
        assert not list((tmp_path / NAME / "p0").glob("*.new"))
        writing.log.compact(writing.now_us)
        assert len(found(tmp_path)) == 5


def test_retention_that_is_faster_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 100)
        seal(writing)
        swap = compaction._Compaction._swap

        def late(self: Any, *arguments: Any) -> bool:
            writing.log.trim(NAME)
            return swap(self, *arguments)

        monkeypatch.setattr(compaction._Compaction, "_swap", late)
        writing.log.compact(writing.now_us)
        assert segments(tmp_path) == []
        writing.put(b"next")
        assert [offset for offset, _ in found(tmp_path, 100)] == [100]


def test_damage_is_reported_and_nothing_is_thrown_away(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True)
        fill(writing, 100)
        seal(writing)
        path = segments(tmp_path)[3]
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
        before = sorted(path.name for path in segments(tmp_path))
        assert writing.log.compact(writing.now_us) == 0
        assert "does not match its checksum" in writing.lines[0]
        assert sorted(path.name for path in segments(tmp_path)) == before
        with pytest.raises(CorruptBatch):
            read(tmp_path)


def test_against_a_dictionary(tmp_path: Path) -> None:
    rng = random.Random(5)
    with Writing(tmp_path) as writing:
        writing.create(segment_bytes=4_096, compact=True, tombstone_s=10)
        last: dict[str, tuple[int, bytes]] = {}
        offset = 0
        for _ in range(60):
            batch = []
            for _ in range(rng.randint(1, 12)):
                payload = b"" if rng.random() < 0.2 else rng.randbytes(rng.randint(1, 200))
                message = Sent(f"t{rng.randint(0, 30)}", "c", payload)
                batch.append(message)
                last[message.topic] = (offset, payload)
                offset += 1
            writing.append(batch)
            writing.commit()
            writing.now_us += rng.randint(0, 5_000_000)
            if rng.random() < 0.3:
                writing.log.compact(writing.now_us)
                now = {r.topic: (r.offset, r.payload) for r in read(tmp_path)}
                for topic, (at, payload) in last.items():
                    if payload or topic in now:
                        assert now[topic] == (at, payload)
        is_whole(tmp_path)


def test_a_log_closes_while_nothing_is_compacted(tmp_path: Path) -> None:
    log = Log.open(tmp_path, report=print)
    assert log.compact(0) == 0
    log.close()
