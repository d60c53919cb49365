"""Where devices say the time, and that nothing they send makes the broker fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.event_times import (
    JSON_BYTES_MAX,
    TIME_US_MAX,
    EventTimes,
    TimeRule,
    parse_path,
)

NOW = 1_700_000_000_123_456


def event(rule: str, payload: object) -> int:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    [found], sents = EventTimes(rule, "").find([data], ())
    assert sents == []
    return found


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (1_700_000_000, 1_700_000_000_000_000),
        (1_700_000_000.123456, NOW),
        (1_700_000_000_123, 1_700_000_000_123_000),
        (NOW, NOW),
        (NOW * 1000 + 999, NOW),
        ("2023-11-14T22:13:20.123456Z", NOW),
        ("2023-11-14T23:13:20.123456+01:00", NOW),
        ("1700000000123456", NOW),
        ("1712010112045", 1_712_010_112_045_000),  # is ISO 8601 of the year 1712, too
        (" 1700000000.123456 ", NOW),
        ("soon", NULL),
        ("", NULL),
        (True, NULL),
        (None, NULL),
        ([], NULL),
        ({}, NULL),
        (-1, NULL),
        (1e300, NULL),
        (10**400, NULL),
        ("9" * 5_000, NULL),
        ("1969-12-31T00:00:00Z", NULL),
    ],
)
def test_times_are_understood_or_are_none(value: object, us: int) -> None:
    assert event("json:$.ts", {"ts": value}) == us


@pytest.mark.parametrize(
    ("unit", "value", "us"),
    [
        ("s", 1e12, NULL),
        ("s", 100, 100_000_000),
        ("ms", 100, 100_000),
        ("us", 100, 100),
        ("ns", 1_999, 1),
        ("ns", "1999", 1),
        ("iso", "1970-01-01T00:00:01Z", 1_000_000),
        ("iso", "19700102", 86_400_000_000),
        ("iso", 100, NULL),
        ("ms", "1970-01-01T00:00:01Z", NULL),
    ],
)
def test_a_unit_is_taken_at_its_word(unit: str, value: object, us: int) -> None:
    assert event(f"json:$.ts {unit}", {"ts": value}) == us


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$.a", ("a",)),
        ("$.a.b[0]", ("a", "b", 0)),
        ("$[2].x-y", (2, "x-y")),
        ("$['a b'][\"c.d\"][10]", ("a b", "c.d", 10)),
    ],
)
def test_paths(path: str, steps: tuple[str | int, ...]) -> None:
    assert parse_path("k", path) == steps


@pytest.mark.parametrize(
    "path", ["", "$", "a", "$.", "$..a", "$.*", "$[-1]", "$[a]", "$.a[0", "$.a b", "$." + "a" * 300]
)
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(Invalid, match=r"^event_time: "):
        TimeRule.parse("event_time", f"json:{path}")


def test_places_that_are_not_there() -> None:
    payload: object
    for payload in ({}, [], 5, "ts", {"a": 5}, {"a": {"b": {}}}, {"a": {"b": []}}):
        assert event("json:$.a.b[0]", payload) == NULL
    assert event("json:$.a.b[0]", {"a": {"b": [100]}}) == 100_000_000
    assert event("json:$[1]", [1, 2]) == 2_000_000


def test_hostile_payloads_are_no_time() -> None:
    deep = b'{"ts":' + b"[" * 100_000
    for payload in (b"", b"\xff", b"{", deep, b"NaN", b'{"ts": NaN}', b'{"ts": Infinity}',
                    b'{"ts": ' + b"9" * 10_000 + b"}"):  # fmt: skip
        assert event("json:$.ts", payload) == NULL
    assert event("json:$.ts", b'{"ts": 100}'.ljust(JSON_BYTES_MAX + 1)) == NULL
    assert event("json:$.ts", b'{"ts": 100}'.ljust(JSON_BYTES_MAX)) == 100_000_000


def test_user_properties_are_for_the_whole_run() -> None:
    times = EventTimes("property:ts", "json:$.sent ms")
    user = [("other", "1"), ("ts", "100"), ("ts", "200")]
    payloads = [b'{"sent": 5}', b"{}"]
    assert times.find(payloads, user) == ([100_000_000] * 2, [5_000, NULL])
    assert times.find(payloads, ()) == ([], [5_000, NULL])
    assert not EventTimes("", "").is_wanted


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=30),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b"]), inner) | st.lists(inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_comes_it_is_a_time_or_none(payload: bytes) -> None:
    for rule in ("json:$.a", "json:$.a.b[0]", "json:$.a ns", "json:$.b iso"):
        found = event(rule, payload)
        assert found == NULL or 0 <= found < TIME_US_MAX
