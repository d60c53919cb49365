"""The 27 properties of MQTT 5: one table, one decoder, one encoder.

`Properties` maps a property's number to its value. User properties keep their order, and
so do Subscription Identifiers, the only other property that may be repeated.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, cast

from mqtt_broker.codec.constants import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.reasons import MALFORMED_PACKET, PROTOCOL_ERROR
from mqtt_broker.codec.strings import (
    decode_binary,
    decode_string,
    decode_varint,
    encode_binary,
    encode_string,
    encode_varint,
)

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

Value = int | str | bytes | list[int] | list[tuple[str, str]]


class Kind(enum.Enum):
    """The wire type of a property's value."""

    BYTE = 1
    TWO = 2
    FOUR = 4
    VARINT = 5
    BINARY = 6
    STRING = 7
    PAIR = 8


class Property(NamedTuple):
    name: str
    kind: Kind
    packets: frozenset[int]
    low: int = 0  # the smallest and the largest valid number
    high: int = 0xFFFF_FFFF


def _row(name: str, kind: Kind, *packets: int, low: int = 0, high: int = 0xFFFF_FFFF) -> Property:
    return Property(name, kind, frozenset(packets), low, high)


_REASONED: Final = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)

TABLE: Final[dict[int, Property]] = {
    0x01: _row("payload-format-indicator", Kind.BYTE, PUBLISH, WILL, high=1),
    0x02: _row("message-expiry-interval", Kind.FOUR, PUBLISH, WILL),
    0x03: _row("content-type", Kind.STRING, PUBLISH, WILL),  # [MQTT-3.3.2-19]
    0x08: _row("response-topic", Kind.STRING, PUBLISH, WILL),  # [MQTT-3.3.2-13]
    0x09: _row("correlation-data", Kind.BINARY, PUBLISH, WILL),
    0x0B: _row("subscription-identifier", Kind.VARINT, PUBLISH, SUBSCRIBE, low=1),
    0x11: _row("session-expiry-interval", Kind.FOUR, CONNECT, CONNACK, DISCONNECT),
    0x12: _row("assigned-client-identifier", Kind.STRING, CONNACK),
    0x13: _row("server-keep-alive", Kind.TWO, CONNACK),
    0x15: _row("authentication-method", Kind.STRING, CONNECT, CONNACK, AUTH),
    0x16: _row("authentication-data", Kind.BINARY, CONNECT, CONNACK, AUTH),
    0x17: _row("request-problem-information", Kind.BYTE, CONNECT, high=1),
    0x18: _row("will-delay-interval", Kind.FOUR, WILL),
    0x19: _row("request-response-information", Kind.BYTE, CONNECT, high=1),
    0x1A: _row("response-information", Kind.STRING, CONNACK),
    0x1C: _row("server-reference", Kind.STRING, CONNACK, DISCONNECT),
    0x1F: _row("reason-string", Kind.STRING, *_REASONED),
    0x21: _row("receive-maximum", Kind.TWO, CONNECT, CONNACK, low=1),
    0x22: _row("topic-alias-maximum", Kind.TWO, CONNECT, CONNACK),
    0x23: _row("topic-alias", Kind.TWO, PUBLISH),
    0x24: _row("maximum-qos", Kind.BYTE, CONNACK, high=1),
    0x25: _row("retain-available", Kind.BYTE, CONNACK, high=1),
    0x26: _row(
        "user-property",
        Kind.PAIR,
        *_REASONED,
        CONNECT,
        PUBLISH,
        WILL,
        SUBSCRIBE,
        UNSUBSCRIBE,
    ),
    0x27: _row("maximum-packet-size", Kind.FOUR, CONNECT, CONNACK, low=1),
    0x28: _row("wildcard-subscription-available", Kind.BYTE, CONNACK, high=1),
    0x29: _row("subscription-identifier-available", Kind.BYTE, CONNACK, high=1),
    0x2A: _row("shared-subscription-available", Kind.BYTE, CONNACK, high=1),
}
_WITH_USER_PROPERTIES: Final = TABLE[USER_PROPERTY].packets
NAMES: Final = {row.name: number for number, row in TABLE.items()}


class Properties(dict[int, Value]):
    """Property number -> value, with typed access. Never changed once a packet has it."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # so it may be a field's default

    def number(self, key: int, default: int = 0) -> int:
        return cast(int, self.get(key, default))

    def text(self, key: int) -> str | None:
        return cast("str | None", self.get(key))

    def binary(self, key: int) -> bytes | None:
        return cast("bytes | None", self.get(key))

    @property
    def user(self) -> list[tuple[str, str]]:
        return cast("list[tuple[str, str]]", self.get(USER_PROPERTY, []))

    @property
    def subscription_ids(self) -> list[int]:
        return cast("list[int]", self.get(SUBSCRIPTION_IDENTIFIER, []))


NO_PROPERTIES: Final = Properties()  # shared by all packets without properties; never changed


def decode_properties(data: bytes, at: int, end: int, packet: int) -> tuple[Properties, int]:
    """Decode the property section at `at` of a packet that ends at `end`."""
    if at >= end:
        raise Violation(MALFORMED_PACKET, "MQTT-2.2.2-1", "no property length")
    length, at = decode_varint(data, at, end)
    if not length:
        return NO_PROPERTIES, at
    stop = at + length
    if stop > end:
        raise Violation(MALFORMED_PACKET, "MQTT-2.2.2-1", "the property length is too long")
    found = Properties()
    while at < stop:
        key = data[at]
        if key == USER_PROPERTY and packet in _WITH_USER_PROPERTIES:
            at = _decode_user_properties(data, at, stop, found)
            continue
        key, at = decode_varint(data, at, stop)
        row = TABLE.get(key)
        if row is None:
            raise Violation(MALFORMED_PACKET, "MQTT-2.2.2.2", f"unknown property 0x{key:02X}")
        value, at = _decode_value(data, at, stop, row)
        if packet not in row.packets:
            # Malformed in SUBSCRIBE and UNSUBSCRIBE, as with other brokers.
            reason = MALFORMED_PACKET if packet in (SUBSCRIBE, UNSUBSCRIBE) else PROTOCOL_ERROR
            raise Violation(reason, "MQTT-2.2.2.2", f"{row.name} is not allowed in this packet")
        if isinstance(value, int) and not row.low <= value <= row.high:
            raise Violation(PROTOCOL_ERROR, "MQTT-2.2.2.2", f"{row.name} must not be {value}")
        _put(found, key, value, packet, row)
    return found, at


def properties_of(section: bytes) -> Properties:
    """Decode a section that was checked when it came, as a PUBLISH's or as a will's.

    One that cannot be read, which only a damaged store has, is as good as none.
    """
    for packet in (PUBLISH, WILL):
        try:
            found, end = decode_properties(section, 0, len(section), packet)
        except Violation:
            continue
        if end == len(section):
            return found
    return NO_PROPERTIES


def _decode_user_properties(data: bytes, at: int, end: int, found: Properties) -> int:
    """Decode consecutive user properties; return the position after them.

    A packet may have thousands of them, so they have a loop of their own: 0.5 us each instead of
    2 us.
    """
    pairs = cast("list[tuple[str, str]]", found.setdefault(USER_PROPERTY, []))
    while at < end and data[at] == USER_PROPERTY:
        name, at = decode_string(data, at + 1, end)
        text, at = decode_string(data, at, end)  # UTF-8, both of them. [MQTT-1.5.7-1]
        pairs.append((name, text))
    return at


def _put(found: Properties, key: int, value: Value, packet: int, row: Property) -> None:
    if key == SUBSCRIPTION_IDENTIFIER and packet == PUBLISH:
        found.setdefault(key, []).append(value)  # type: ignore[union-attr,arg-type]
    elif key in found:
        raise Violation(PROTOCOL_ERROR, "MQTT-2.2.2.2", f"{row.name} appears twice")
    else:
        found[key] = [value] if key == SUBSCRIPTION_IDENTIFIER else value  # type: ignore[assignment]


def _decode_value(data: bytes, at: int, end: int, row: Property) -> tuple[Value, int]:
    kind = row.kind
    if kind is Kind.STRING:
        return decode_string(data, at, end)
    if kind is Kind.BINARY:
        return decode_binary(data, at, end)
    if kind is Kind.PAIR:
        name, at = decode_string(data, at, end)
        text, at = decode_string(data, at, end)
        return (name, text), at  # type: ignore[return-value]
    if kind is Kind.VARINT:
        return decode_varint(data, at, end)
    stop = at + kind.value
    if stop > end:
        raise Violation(MALFORMED_PACKET, "MQTT-2.2.2.2", f"{row.name} is cut short")
    return int.from_bytes(data[at:stop], "big"), stop


def without(section: bytes, dropped: frozenset[int]) -> bytes:
    """Return a section, with its length, without the dropped properties.

    The bytes of the others are copied, not encoded anew: a receiver may depend on the order of
    properties, even of user properties between others. [MQTT-3.3.2-18]
    """
    _, at = decode_varint(section, 0, len(section))
    end = len(section)
    kept: list[bytes] = []
    begin = at  # of what is kept together
    while at < end:
        start = at
        key, at = decode_varint(section, at, end)
        _, at = _decode_value(section, at, end, TABLE[key])
        if key in dropped:
            kept.append(section[begin:start])
            begin = at
    kept.append(section[begin:])
    return b"".join(kept)


def encode_properties(properties: Properties) -> bytes:
    """Encode the property section with its length."""
    body = encode_each(properties)
    return encode_varint(len(body)) + body


def encode_each(properties: Properties) -> bytes:
    """Encode the properties, without the length of the section."""
    out: list[bytes] = []
    for key, value in properties.items():
        kind = TABLE[key].kind
        number = key.to_bytes(1, "big")
        if kind is Kind.PAIR:
            for name, text in cast("list[tuple[str, str]]", value):
                out.append(number + encode_string(name) + encode_string(text))
        elif kind is Kind.VARINT:
            for item in cast("list[int]", value):
                out.append(number + encode_varint(item))
        elif kind is Kind.STRING:
            out.append(number + encode_string(cast(str, value)))
        elif kind is Kind.BINARY:
            out.append(number + encode_binary(cast(bytes, value)))
        else:
            out.append(number + cast(int, value).to_bytes(kind.value, "big"))
    return b"".join(out)
