"""Filters that read streams, and the offsets where they begin: parsed, or refused in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqtt_broker.codec import reasons
from mqtt_broker.streams.format.batch import NEVER, NULL
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.replay.start_positions import (
    StartPosition,
    StartRefused,
    StreamFilter,
    parse_filter,
    parse_start,
)

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$stream/t", StreamFilter("", "t", None)),
        ("$stream/t/@earliest", StreamFilter("", "t", "earliest")),
        ("$stream/t/@", StreamFilter("", "t", "")),
        ("$stream/t/@a/@b", StreamFilter("", "t", "a/@b")),
        ("$share/g/$stream/t", StreamFilter("g", "t", None)),
        ('$share/g/$stream/t/@{"p0": 1}', StreamFilter("g", "t", '{"p0": 1}')),
    ],
)
def test_a_filter_is_split_into_group_stream_and_start(text: str, expected: StreamFilter) -> None:
    assert parse_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$stream/+", "wildcards do not match streams"),
        ("$stream/#", "wildcards do not match streams"),
        ("$share/g/$stream/a+", "wildcards do not match streams"),
        ("$stream/t/earliest", "it is neither $stream/<name> nor"),
        ("$stream/t/", "it is neither $stream/<name> nor"),
        ("$stream", "it is neither $stream/<name> nor"),
        ("$share/g/streams/t", "it is neither $stream/<name> nor"),
        ("$stream/", "'' is invalid"),
        ("$stream/.t", "'.t' is invalid"),
    ],
)
def test_a_filter_that_reads_no_stream_is_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_filter(text)
    assert why in str(caught.value)


def partition(start: int, committed: int, end: int) -> Any:
    times = {"min_us": NEVER}
    return SimpleNamespace(
        catalog=SimpleNamespace(start=start, **times),
        active=SimpleNamespace(**times),
        committed=committed,
        end=end,
    )


@pytest.fixture
def stream() -> Any:
    """As much of a stream as is looked at: records 5 to 9 and 0 to 3 may be read."""
    return SimpleNamespace(
        name="t",
        epoch="e1",
        settings=StreamSettings("t", retain_s=60),
        partitions=[partition(5, 10, 12), partition(0, 4, 4)],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", StartPosition((5, 0))),
        ("latest", StartPosition((10, 4))),  # what is not committed yet comes live
        ('{"p0": 5, "p1": 4}', StartPosition((5, 4))),
        (' {"epoch": "e1", "p1": 0, "p0": 10}', StartPosition((10, 0))),
        ("1970-01-01T00:00:01.5Z", StartPosition((), 1_500_000)),
        ("1970-01-02", StartPosition((), 86_400_000_000)),
    ],
)
def test_a_start_is_an_offset_of_each_partition_or_a_time(
    stream: Any, text: str, expected: StartPosition
) -> None:
    assert parse_start(stream, text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "reason", "why"),
    [
        ('{"p0": 4, "p1": 0}', reasons.IMPLEMENTATION_SPECIFIC_ERROR, "4"),  # is gone
        ('{"p0": 11, "p1": 0}', reasons.IMPLEMENTATION_SPECIFIC_ERROR, "11"),  # not committed
        ('{"p0": 5}', reasons.IMPLEMENTATION_SPECIFIC_ERROR, "p1"),
        ('{"epoch": "e0", "p0": 5, "p1": 0}', reasons.IMPLEMENTATION_SPECIFIC_ERROR, "e0"),
        ("{", reasons.IMPLEMENTATION_SPECIFIC_ERROR, "not valid JSON"),
        ("Earliest", reasons.TOPIC_FILTER_INVALID, "'Earliest' are invalid: expected earliest"),
        ("", reasons.TOPIC_FILTER_INVALID, "'' are invalid"),
        ("17", reasons.TOPIC_FILTER_INVALID, "'17' are invalid"),
    ],
)
def test_a_start_that_does_not_exist_is_refused_with_a_reason_code(
    stream: Any, text: str, reason: int, why: str
) -> None:
    with pytest.raises(StartRefused) as caught:
        parse_start(stream, text, NOW)
    assert caught.value.refusal.reason == reason
    assert why in caught.value.refusal.text


def test_a_long_start_is_quoted_in_part(stream: Any) -> None:
    with pytest.raises(StartRefused) as caught:
        parse_start(stream, "x" * 10_000, NOW)
    assert len(caught.value.refusal.text) < 250


def test_what_is_too_old_has_to_be_looked_for_in_files(stream: Any) -> None:
    """Segments go as a whole; a reader begins in the middle of one."""
    oldest = stream.partitions[0].active.min_us = int((NOW - 60) * 1e6)
    assert parse_start(stream, "earliest", NOW) == StartPosition((5, 0))
    stream.partitions[0].active.min_us = oldest - 1
    assert parse_start(stream, "earliest", NOW) == StartPosition((), NULL)
    assert parse_start(stream, "latest", NOW) == StartPosition((10, 4))
    stream.settings = StreamSettings("t")
    assert parse_start(stream, "earliest", NOW) == StartPosition((5, 0))
