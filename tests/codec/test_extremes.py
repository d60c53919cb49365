"""Every property of MQTT's table, and every length, at its extremes: written and read back."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import constants as c
from mqtt_broker.codec.encode import ID_BYTES, encode_ack, encode_connack, encode_disconnect
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.properties import (
    SUBSCRIPTION_IDENTIFIER,
    TABLE,
    USER_PROPERTY,
    Kind,
    Properties,
    decode_properties,
    encode_properties,
    without,
)
from mqtt_broker.codec.strings import (
    decode_binary,
    decode_string,
    decode_varint,
    encode_binary,
    encode_string,
    encode_varint,
)

HIGH = {Kind.BYTE: 0xFF, Kind.TWO: 0xFFFF, Kind.FOUR: 0xFFFF_FFFF, Kind.VARINT: 268_435_455}
TEXTS = ["", "x", "x" * 65_535, "\N{GRINNING FACE}" * 16_383, "\U0010fffd", "\ufeff"]


def edges(low: int, high: int) -> list[int]:
    found = {low, low + 1, high - 1, high, 0, 1}
    for bits in (7, 8, 14, 15, 16, 21, 28, 31, 32):
        found |= {(1 << bits) - 1, 1 << bits}
    return sorted(number for number in found if low <= number <= high)


def values(key: int) -> list[Any]:
    row = TABLE[key]
    if row.kind in HIGH:
        numbers: list[Any] = [*edges(row.low, min(row.high, HIGH[row.kind]))]
        return [[n] for n in numbers] if key == SUBSCRIPTION_IDENTIFIER else numbers
    if row.kind is Kind.BINARY:
        return [b"", b"\0", b"\xff" * 65_535]
    if row.kind is Kind.PAIR:
        return [[(one, two)] for one in TEXTS for two in TEXTS] + [[("k", "v")] * 300]
    assert row.kind is Kind.STRING
    return TEXTS


@pytest.mark.parametrize("key", TABLE, ids=[row.name for row in TABLE.values()])
def test_a_property(key: int) -> None:
    for packet in TABLE[key].packets:
        for value in values(key):
            section = encode_properties(Properties({key: value}))
            found, end = decode_properties(section, 0, len(section), packet)
            assert (dict(found), end) == ({key: value}, len(section))
            rest = without(section, frozenset((key,)))
            assert rest == b""
            assert without(section, frozenset()) == section[-len(section) :][_length(section) :]


def _length(section: bytes) -> int:
    return decode_varint(section, 0, len(section))[1]


def test_every_kind_of_property_is_among_them() -> None:
    assert {row.kind for row in TABLE.values()} == set(Kind)
    assert USER_PROPERTY in TABLE


@pytest.mark.parametrize("number", edges(0, 268_435_455))
def test_a_variable_byte_integer(number: int) -> None:
    data = encode_varint(number)
    assert decode_varint(data, 0, len(data)) == (number, len(data))
    assert len(data) == next(n for n in (1, 2, 3, 4) if number < 1 << 7 * n)


@pytest.mark.parametrize("text", TEXTS)
def test_a_string(text: str) -> None:
    data = encode_string(text)
    assert decode_string(data, 0, len(data)) == (text, len(data))


def test_what_no_length_can_say_is_not_written() -> None:
    for too_long in (b"x" * 65_536, b"x" * (1 << 20)):
        with pytest.raises(OverflowError):
            encode_binary(too_long)
    data = encode_binary(b"x" * 65_535)
    assert decode_binary(data, 0, len(data)) == (b"x" * 65_535, len(data))
    with pytest.raises(Violation):
        decode_binary(data[:-1], 0, len(data) - 1)


@pytest.mark.parametrize("packet_id", edges(1, 65_535))
def test_a_packet_id(packet_id: int) -> None:
    assert ID_BYTES[packet_id] == packet_id.to_bytes(2, "big")
    for packet_type in (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP):
        assert encode_ack(packet_type, packet_id)[2:4] == packet_id.to_bytes(2, "big")


@pytest.mark.parametrize("reason", range(256))
def test_a_reason_code(reason: int) -> None:
    assert encode_connack(c.V5, False, reason)[3] == reason
    for packet_type in (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP):
        data = encode_ack(packet_type, 1, reason)
        assert data[4:] == (bytes((reason,)) if reason else b"")
    assert encode_disconnect(c.V5, reason)[2:] == (bytes((reason,)) if reason else b"")
