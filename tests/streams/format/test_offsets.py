"""Offsets as people write them, and what each mistake is answered with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.streams.format.errors import (
    EndBeforeStart,
    Invalid,
    OffsetAhead,
    OffsetGone,
    StreamError,
    UnknownPartition,
    WrongEpoch,
)
from mqtt_broker.streams.format.offsets import Offsets, check, check_range, parse, parse_time


def test_the_text_has_its_keys_sorted() -> None:
    text = Offsets("e", tuple(range(11))).text()
    keys = list(json.loads(text))
    assert keys == sorted(keys) and keys[:4] == ["epoch", "p0", "p1", "p10"]
    assert parse(text, "s", "e", 11) == Offsets("e", tuple(range(11)))


def test_offsets_of_whatever_stream() -> None:
    for offsets in (Offsets("e", (5,)), Offsets("f", tuple(range(300)))):
        assert Offsets.decode(offsets.text()) == offsets
    for wrong in ("", "[]", "5", "{}", '{"p0": 1}', '{"epoch": "e", "p1": 1}', '{"deleted": true}'):
        with pytest.raises(Invalid, match=r"^offsets: "):
            Offsets.decode(wrong)


def test_the_epoch_may_be_left_out() -> None:
    assert parse('{"p1": 4, "p0": 17}', "s", "e", 2) == Offsets("e", (17, 4))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "100000 characters are too many"),
        ("[1]", "not a JSON object"),
        ('{"p0": 1}', "p1 of stream"),
        ('{"p0": 1, "p1": -1}', "p1 is -1: expected a number"),
        ('{"p0": 1, "p1": 1.0}', "p1 is 1.0: expected a number"),
        ('{"p0": 1, "p1": true}', "p1 is True: expected a number"),
        ('{"p0": 1, "p1": null}', "p1 is None: expected a number"),
        ('{"p0": 1, "p1": 9223372036854775808}', "expected a number"),
        ('{"p00": 1}', "neither a partition nor 'epoch'"),
        ('{"q": 1}', "'q' is neither a partition nor 'epoch'"),
        (" " * 70_000 + '{"p0": 1, "p1": 1}', "characters are too many"),
    ],
)
def test_mistakes_have_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=r"^offsets: ") as caught:
        parse(text, "s", "e", 2)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_another_partition_and_another_epoch() -> None:
    with pytest.raises(UnknownPartition, match="has no partition p2: p0 to p1 exist") as unknown:
        parse('{"p0": 1, "p1": 1, "p2": 1}', "s", "e", 2)
    assert (unknown.value.stream, unknown.value.partition) == ("s", "p2")
    with pytest.raises(WrongEpoch, match="epoch old, it has e now") as wrong:
        parse('{"epoch": "old", "p0": 1, "p1": 1}', "s", "e", 2)
    assert (wrong.value.given, wrong.value.actual) == ("old", "e")


def test_what_is_not_kept_and_what_is_not_there() -> None:
    check("s", Offsets("e", (5, 9)), (5, 0), (7, 9))
    with pytest.raises(
        OffsetGone, match="p0: offset 4 is no longer kept, the earliest is 5"
    ) as gone:
        check("s", Offsets("e", (4, 9)), (5, 0), (7, 9))
    assert (gone.value.partition, gone.value.offset, gone.value.earliest) == (0, 4, 5)
    with pytest.raises(OffsetAhead, match="p1: offset 10 is beyond the end, which is 9") as ahead:
        check("s", Offsets("e", (5, 10)), (5, 0), (7, 9))
    assert (ahead.value.partition, ahead.value.offset, ahead.value.end) == (1, 10, 9)


def test_a_range_is_of_one_epoch_and_does_not_go_back() -> None:
    check_range("s", Offsets("e", (1, 2)), Offsets("e", (1, 3)))
    with pytest.raises(EndBeforeStart, match="p1: the end 1 is before the start 2") as back:
        check_range("s", Offsets("e", (1, 2)), Offsets("e", (1, 1)))
    assert (back.value.partition, back.value.start, back.value.end) == (1, 2, 1)
    with pytest.raises(WrongEpoch):
        check_range("s", Offsets("e", (1,)), Offsets("f", (1,)))


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.000001+01:00", 1_700_000_000_000_001),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("0001-01-01T00:00:00+23:59", -62135683140000000 - 86_400_000_000 + 0),
        ("yesterday", None),
        ("", None),
        ("20231114", 1_699_920_000_000_000),
        ("1712111011223344", None),  # microseconds, and no minute of the year 1712
        ("1" * 20, None),
    ],
)
def test_times(text: str, us: int | None) -> None:
    if text.startswith("0001"):
        assert parse_time(text) is not None
    else:
        assert parse_time(text) == us


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_is_answered_with_anything_but_a_stream_error(text: str) -> None:
    try:
        found: Any = parse(text, "s", "e", 1)
    except StreamError:
        return
    assert isinstance(found, Offsets)
