"""What the tools say of a stream that is whole, and of one that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqtt_broker.streams.format.records import as_dict
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.read.verify import describe, verify
from tests.streams.logs import NAME, Sent, Writing, put_many, read, segments


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Writing(tmp_path) as writing:
        writing.create(partitions=2, partition_by="topic", segment_bytes=5_000)
        put_many(writing, 10)
    return tmp_path


def findings(root: Path) -> list[str]:
    with Source.open(root, NAME) as source:
        return verify(source).findings


def used(root: Path) -> int:
    """The partition that has the messages."""
    return 0 if segments(root, 0) else 1


def test_a_stream_described(root: Path) -> None:
    with Source.open(root, NAME) as source:
        found = describe(source)
        assert json.loads(json.dumps(found)) == found
        assert (found["name"], found["offsets"], found["partition_by"]) == (NAME, 100, "topic")
        part = found["partitions"][used(root)]
        sizes = [path.stat().st_size for path in segments(root, used(root))]
        assert part == {
            "partition": used(root), "start": 0, "end": 100, "segments": 3, "bytes": sum(sizes),
            "first": "2023-11-14T22:13:20Z", "last": "2023-11-14T22:13:29Z",
        }  # fmt: skip
        empty = found["partitions"][1 - used(root)]
        assert (empty["bytes"], empty["first"], empty["last"]) == (0, None, None)


def test_a_whole_stream(root: Path) -> None:
    with Source.open(root, NAME) as source:
        seen: list[str] = []
        verdict = verify(source, seen.append)
        assert verdict.is_whole
        assert (verdict.messages, verdict.batches, verdict.segments) == (100, 10, 3)
        assert seen == [path.name for path in segments(root, used(root))]


def test_each_kind_of_damage_is_a_line(root: Path) -> None:
    paths = segments(root, used(root))
    name = f"stream 'telemetry' p{used(root)}"
    whole = [path.read_bytes() for path in paths]
    first = paths[0].name

    flipped = bytearray(whole[0])
    flipped[1500] ^= 1
    paths[0].write_bytes(flipped)
    assert findings(root) == [
        f"{name}, offsets 10 to 19: a batch does not match its checksum, in {first} at byte 1384"
    ]
    paths[0].write_bytes(whole[0])

    paths[1].write_bytes(whole[1][:-3])
    assert findings(root) == [
        f"{name}, offset 70 on: a batch is cut short, in {paths[1].name} at byte 4152",
        f"{name}: {paths[1].name} ends with offset 70, not 80",
    ]
    paths[1].unlink()
    assert findings(root) == [f"{name}, offsets 40 to 79: {paths[1].name} is missing"]
    paths[1].write_bytes(whole[1])

    index = paths[0].with_suffix(".idx")
    index.write_bytes(b"\xff" * 24)
    assert findings(root) == [f"{name}: {paths[0].name}: index entry 0 does not match its checksum"]
    index.unlink()
    assert findings(root) == []
    index.mkdir()
    assert findings(root) == [f"{name}: {paths[0].name}: its index is a directory"]

    catalog = root / NAME / f"p{used(root)}" / "catalog"
    catalog.write_bytes(b"junk")
    with pytest.raises(Exception, match="catalog: it is cut short"):
        findings(root)


def test_every_flipped_bit_of_a_segment_is_a_finding(tmp_path: Path) -> None:
    with Writing(tmp_path) as writing:
        writing.create()
        writing.put(b"one")
        writing.put(b"two")
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 0x10
        path.write_bytes(data)
        assert len(findings(tmp_path)) >= 1


def test_records_for_json_lines(tmp_path: Path) -> None:
    section = bytes.fromhex(
        "03000474657874 0800057265706c79 090002fffe 2600016100 0162 26000161000163"
    )
    with Writing(tmp_path) as writing:
        writing.create(event_time="json:$.ts")
        writing.append([Sent("t/1", "dev", b'{"ts": 100}')], qos=1, properties=section)
        writing.append([Sent("t/2", "dev", b"\xff")], retain=True)
        writing.commit()
    first, second = [as_dict(record, 0) for record in read(tmp_path)]
    assert json.loads(json.dumps(first)) == {
        "partition": 0, "offset": 0, "received": "2023-11-14T22:13:20Z",
        "event": "1970-01-01T00:01:40Z", "topic": "t/1", "client_id": "dev", "qos": 1,
        "retain": False, "payload": '{"ts": 100}', "content_type": "text",
        "response_topic": "reply", "correlation_data_base64": "//4=",
        "user_properties": [["a", "b"], ["a", "c"]],
    }  # fmt: skip
    assert second["payload_base64"] == "/w==" and "payload" not in second
    assert second["retain"] is True
