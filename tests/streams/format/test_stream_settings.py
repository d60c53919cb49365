"""What a stream may be, as it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.streams.format.errors import Invalid, UnknownStream
from mqtt_broker.streams.format.stream_settings import StreamSettings, parse_bytes, parse_duration

WHOLE = StreamSettings(
    "telemetry",
    partitions=4,
    partition_by="level:2",
    retain_s=7 * 86_400,
    max_bytes=10_000_000_000,
    compact=True,
    event_time="json:$.ts ms",
    sent_time="property:sent",
    schema={"type": "object"},
    epoch="e",
)


def test_what_is_written_is_read() -> None:
    assert StreamSettings.parse(WHOLE.text()) == WHOLE
    assert list(json.loads(WHOLE.text())) == sorted(json.loads(WHOLE.text()))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "name: '' is invalid"),
        ({"name": "a/b"}, "is invalid: expected up to 100"),
        ({"name": ".."}, "is invalid: expected up to 100"),
        ({"name": "x.new"}, "is invalid: expected up to 100"),
        ({"name": "x" * 101}, "is invalid: expected up to 100"),
        ({"partitions": 0}, "partitions: 0 is out of range: expected 1 to 256"),
        ({"partitions": 257}, "partitions: 257"),
        ({"partition_by": "level:0"}, "partition_by: 'level:0' is invalid"),
        ({"partition_by": "clients"}, "partition_by"),
        ({"partition_by": "property:"}, "partition_by"),
        ({"filter": "a/\ud800"}, "filter: 'a/\\ud800' is not valid Unicode"),
        ({"partition_by": "property:\udfff"}, "partition_by: "),
        ({"event_time": "property:\ud800"}, "event_time: "),
        ({"retain_s": -1}, "retain_s: -1 is negative"),
        ({"max_bytes": -1}, "max_bytes: -1 is negative"),
        ({"segment_bytes": 10}, "segment_bytes: 10 is too small: expected 4096"),
        ({"segment_s": 0}, "segment_s: 0 is too small: expected 1"),
        ({"event_time": "json:ts"}, "event_time: 'ts' is invalid: expected a path"),
        ({"sent_time": "ts"}, "sent_time: 'ts' is invalid"),
    ],
)
def test_mistakes_name_their_key(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        StreamSettings(**{"name": "telemetry", **changes}).checked()
    assert says in str(caught.value)


def test_what_gives_offsets_their_meaning_does_not_change() -> None:
    assert WHOLE.changed(retain_s=5, partitions=4).retain_s == 5
    for key, value in (("partitions", 5), ("name", "other"), ("epoch", "f")):
        with pytest.raises(Invalid, match=f"{key}: it is .* and cannot be changed"):
            WHOLE.changed(**{key: value})
    with pytest.raises(Invalid, match="retention: unknown setting"):
        WHOLE.changed(retention=1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "format None"),
        ('{"format": 2}', "format 2, this program reads 1"),
        ('{"format": 1}', "name or epoch is missing"),
        ('{"format": 1, "name": "a", "epoch": "e", "colour": 1}', "'colour' is unknown"),
        ('{"format": 1, "name": "a", "epoch": "e", "partitions": "4"}', "partitions is '4'"),
        ('{"format": 1, "name": "a", "epoch": "e", "partitions": true}', "partitions is True"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        StreamSettings.parse(text)
    assert says in str(caught.value)


def test_a_directory_without_the_file_is_no_stream(tmp_path: Path) -> None:
    with pytest.raises(UnknownStream):
        StreamSettings.read(tmp_path)


def test_durations_and_sizes_as_people_write_them() -> None:
    assert [parse_duration("k", text) for text in ("0", "90", "90s", "5m", "2h", "7d")] == [
        0, 90, 90, 300, 7_200, 604_800,
    ]  # fmt: skip
    assert [parse_bytes("k", text) for text in ("0", "12", "1kB", "10GB", "2MiB", "1 GiB")] == [
        0, 12, 1_000, 10_000_000_000, 2 << 20, 1 << 30,
    ]  # fmt: skip
    for wrong in ("", "7 days", "-1d", "1.5h", "d"):
        with pytest.raises(Invalid, match=r"^k: "):
            parse_duration("k", wrong)
    for wrong in ("", "10 gigs", "-1", "1.5GB", "GB"):
        with pytest.raises(Invalid, match=r"^k: "):
            parse_bytes("k", wrong)


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


def endless() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["a"] = [found, found]
    return found


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (nested(65), "schema: it is nested in more than 64 levels"),
        (nested(900), "schema: it is nested in more than 64 levels"),
        (endless(), "schema: it has more than 20,000 values"),
        ({"enum": list(range(20_000))}, "schema: it has more than 20,000 values"),
        ({"title": "x" * (1 << 20)}, "schema: 1048589 bytes are too many: up to 1048576"),
        ({"minimum": float("nan")}, "schema: not JSON: Out of range float"),
        ({"default": {1, 2}}, "schema: not JSON: Object of type set"),
    ],
)
def test_a_schema_that_cannot_be_handed_about(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        StreamSettings("x", schema=schema).checked().check_schema()
    assert says in str(caught.value)
    with pytest.raises(Invalid):
        StreamSettings("x").changed(schema=schema)


def test_a_schema_that_was_stored_before_there_were_limits_is_read() -> None:
    StreamSettings("x", schema=nested(64)).checked().check_schema()
    stored = StreamSettings("x", schema=nested(100), epoch="e")
    found = StreamSettings.parse(stored.text())
    assert found == stored
    assert found.changed(retain_s=5).retain_s == 5
