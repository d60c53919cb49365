"""The names of messages: publisher and time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.message_ids import InvalidMessage, MessageName, name_of, parse_name
from mqtt_broker.recorder.search import Fact

NOON = 1_700_049_600.0  # 2023-11-15 12:00:00 UTC
MS = int(NOON * 1000)


@pytest.mark.parametrize(
    ("time", "since_ms", "width_ms"),
    [
        ("12:00:00", MS, 1000),
        ("11:59:59.5", MS - 500, 100),
        ("12:00:01", MS + 1000, 1000),
        ("12:30:00", MS - 84_600_000, 1000),  # yesterday
        ("2023-11-15T12:00:00.250Z", MS + 250, 1),
        ("2023-11-15 13:00:00+01:00", MS, 1000),
        ("1700049600", MS, 1000),
        ("1700049600.123456", MS + 123, 1),
    ],
)
def test_times(time: str, since_ms: int, width_ms: int) -> None:
    found = parse_name(f"app@3@{time}", NOON)
    assert (found.publisher, found.since_ms) == ("app@3", since_ms)
    assert found.until_ms - found.since_ms == width_ms - 1
    assert parse_name(f"@{time}", NOON).publisher == ""


@pytest.mark.parametrize(
    "text",
    ["app", "app@", "app@noon", "app@25:00:00", "app@2023-02-30T00:00:00", "app@-5", "@" * 5_000,
     "app@12:00:00+99:99", "app@١٢:00:00"],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidMessage, match="PUBLISHER@TIME") as raised:
        parse_name(text, NOON)
    assert len(str(raised.value)) < 300


@given(st.text(max_size=20), st.integers(1, 4_000_000_000_000))
def test_a_name_finds_its_publication(client_id: str, at_ms: int) -> None:
    fact = Fact(kinds.PUBLISHED, 1, at_ms, at_ms + 5, client=client_id, topic="a")
    name = parse_name(name_of(fact), NOON)
    assert name.publisher == client_id
    assert name.since_ms == name.until_ms == at_ms
    assert name.distance(fact) == 0


def test_how_far_away() -> None:
    name = MessageName("x", "", 100, 199)
    for at_ms, until_ms, away in ((0, 50, 50), (0, 100, 0), (199, 300, 0), (250, 300, 51)):
        assert name.distance(Fact(kinds.PUBLISHED, 0, at_ms, until_ms)) == away
    assert name_of(Fact(kinds.DROPPED, 0, 1, 1)) == ""
