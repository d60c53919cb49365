"""Bodies come back as they were written, and wrong ones are malformed and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cluster.frames import bodies, layout
from mqtt_broker.cluster.frames.bodies import (
    Hint,
    MalformedBody,
    Outbox,
    Release,
    Released,
    decode,
    encode_entries,
    encode_ping,
    encode_released,
    encode_releases,
)
from tests.fuzz.cluster_frames import frame_body_once
from tests.property_examples import examples

NUMBERS = st.integers(0, 2**64 - 1)
# Any topic of MQTT may be in an entry, and so any bytes.
ENTRIES = st.lists(st.binary(max_size=50), max_size=20)
CLIENT_IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def came(kind: int, body: bytes) -> object:
    return decode(kind, memoryview(body))


@examples(200)
@given(ENTRIES)
def test_entries(entries: list[bytes]) -> None:
    assert came(layout.MESSAGES, encode_entries(entries)) == entries


@examples(100)
@given(NUMBERS, NUMBERS, NUMBERS, ENTRIES.filter(bool))
def test_outbox(turn: int, filters: int, first: int, entries: list[bytes]) -> None:
    found = came(layout.OUTBOX, Outbox(turn, filters, first, entries).encode())
    assert isinstance(found, Outbox)
    assert (found.turn, found.filters, found.first) == (turn, filters, first)
    assert found.entries == entries


@examples(100)
@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_hint(committed: int, filters: int, settings: int, outbox: int, known: int) -> None:
    found = came(layout.HINT, Hint(committed, filters, settings, outbox, known).encode())
    assert isinstance(found, Hint)
    assert (found.committed, found.filters, found.settings) == (committed, filters, settings)
    assert (found.outbox, found.known) == (outbox, known)


@examples(100)
@given(st.lists(st.tuples(NUMBERS, CLIENT_IDS), max_size=5))
def test_releases(asked: list[tuple[int, str]]) -> None:
    body = encode_releases([Release(*one) for one in asked])
    found = came(layout.RELEASE, body)
    assert isinstance(found, list)
    assert [(one.tenure, one.client_id) for one in found] == asked
    answers = encode_released([Released(tenure, bodies.LATER, name) for tenure, name in asked])
    found = came(layout.RELEASED, answers)
    assert isinstance(found, list)
    assert [(one.tenure, one.client_id) for one in found] == asked
    assert all(one.outcome == bodies.LATER for one in found)


@pytest.mark.parametrize("kind", [layout.PING, layout.PONG])
def test_ping(kind: int) -> None:
    assert came(kind, encode_ping(2**64 - 1)) == 2**64 - 1


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (layout.HINT, bytes(39)),
        (layout.HINT, bytes(41)),
        (layout.PING, b""),
        (layout.PONG, bytes(9)),
        (layout.MESSAGES, b""),
        (layout.MESSAGES, bytes(3)),
        (layout.MESSAGES, b"\xff\xff\xff\xff"),
        (layout.MESSAGES, b"\0\0\0\x01\0\0\0\x02x"),
        (layout.MESSAGES, b"\0\0\0\x01\0\0\0\x01xy"),
        (layout.MESSAGES, b"\0\x01\0\x01" + bytes(4 * 65_537)),
        (layout.OUTBOX, bytes(23)),
        (layout.OUTBOX, bytes(28)),  # no entries
        (layout.RELEASE, encode_entries([bytes(7)])),
        (layout.RELEASE, encode_entries([bytes(8)])),  # no client id
        (layout.RELEASE, encode_entries([bytes(8) + b"\xff"])),
        (layout.RELEASE, encode_entries([bytes(8 + 65_536)])),
        (layout.RELEASED, encode_entries([bytes(8)])),
        (layout.RELEASED, encode_entries([bytes(9) + b"x"])),  # no such outcome
    ],
)
def test_malformed(kind: int, body: bytes) -> None:
    with pytest.raises(MalformedBody):
        came(kind, body)


@examples(300)
@given(st.sampled_from(sorted(layout.KINDS[1])), st.binary(max_size=60))
def test_any_bytes(kind: int, body: bytes) -> None:
    frame_body_once(bytes([kind]) + body)
