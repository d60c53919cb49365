"""Decode CONNECT: identity, credentials, session settings and will."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNECT, V5, V31, V311, WILL
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect, Will
from mqtt_broker.codec.properties import NO_PROPERTIES, decode_properties
from mqtt_broker.codec.reasons import MALFORMED_PACKET, PROTOCOL_ERROR
from mqtt_broker.codec.strings import decode_binary, decode_utf8
from mqtt_broker.codec.topic_names import check_response_topic, decode_topic

_LEVELS: Final = {b"MQTT": (V311, V5), b"MQIsdp": (V31,)}  # supported levels by protocol name


def decode_level(data: bytes, at: int, end: int) -> tuple[int, bool, int]:
    """Decode protocol name and level; return the level, whether it is supported, the position."""
    try:
        name, at = decode_binary(data, at, end)
    except Violation:
        name = b""
    if name not in _LEVELS or at >= end:  # [MQTT-3.1.2-1]
        raise Violation(PROTOCOL_ERROR, "MQTT-3.1.2-1", "not MQTT", silent=True)
    level = data[at]
    return level, level in _LEVELS[name], at + 1


def refused_form(level: int) -> int:
    """Return the version of the CONNACK that refuses an unsupported level; 0: MQTT 5.

    Clients of 3.x expect a CONNACK of four bytes. Bridges set bit 7 of their level.
    """
    return V311 if level & 0x7F in (V31, V311) else 0


def decode_connect(version: int, data: bytes, at: int, end: int) -> Connect:
    """Decode CONNECT, from its flags on."""
    if at + 3 > end:
        raise Violation(MALFORMED_PACKET, "MQTT-3.1.4-1", "truncated CONNECT", silent=True)
    flags = data[at]
    keep_alive = data[at + 1] << 8 | data[at + 2]
    at += 3
    will_qos = flags >> 3 & 3
    has_will, has_username, has_password = flags & 4, flags & 0x80, flags & 0x40
    if flags & 1 and version != V31:
        raise Violation(MALFORMED_PACKET, "MQTT-3.1.2-3", "the reserved connect flag is set")
    if not has_will and flags & 0x38:
        raise Violation(MALFORMED_PACKET, "MQTT-3.1.2-11", "Will QoS or Will Retain without a will")
    if will_qos == 3:
        raise Violation(MALFORMED_PACKET, "MQTT-3.1.2-12", "will QoS 3")
    if has_password and not has_username and version < V5:
        raise Violation(MALFORMED_PACKET, "MQTT3-3.1.2-22", "password without a user name")
    found = NO_PROPERTIES
    if version == V5:
        found, at = decode_properties(data, at, end, CONNECT)
        if prop.AUTHENTICATION_DATA in found and prop.AUTHENTICATION_METHOD not in found:
            raise Violation(
                PROTOCOL_ERROR,
                "MQTT-3.1.2.11.10",
                "Authentication Data without Authentication Method",
            )
    raw_id, at = _connect_binary(data, at, end)  # [MQTT-3.1.3-3]
    try:
        client_id = decode_utf8(raw_id)
    except Violation as violation:
        raise Violation(
            reasons.CLIENT_IDENTIFIER_NOT_VALID, "MQTT-3.1.3-4", violation.text
        ) from None
    will = None
    if has_will:  # all its fields must be there. [MQTT-3.1.2-9]
        will, at = _decode_will(data, at, end, version, will_qos, bool(flags & 0x20))
    username = password = None
    if has_username:
        raw, at = _connect_binary(data, at, end)
        try:
            username = decode_utf8(raw)
        except Violation as violation:
            raise Violation(
                MALFORMED_PACKET, "MQTT-3.1.3-12", violation.text, silent=True
            ) from None
    if has_password:
        password, at = _connect_binary(data, at, end)
    if at != end:
        raise Violation(
            MALFORMED_PACKET, "MQTT-3.1.3-1", "CONNECT with fields its flags do not set"
        )
    return Connect(version, client_id, bool(flags & 2), keep_alive, found, will, username, password)


def _connect_binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Decode a field that identifies the client; if it is missing, close without CONNACK."""
    try:
        return decode_binary(data, at, end)
    except Violation as violation:
        raise Violation(
            MALFORMED_PACKET, "MQTT-3.1.3-1", f"CONNECT: {violation.text}", silent=True
        ) from None


def _decode_will(
    data: bytes, at: int, end: int, version: int, qos: int, retain: bool
) -> tuple[Will, int]:
    found = NO_PROPERTIES
    start = at
    if version == V5:
        found, at = decode_properties(data, at, end, WILL)
        check_response_topic(found)
    section = data[start:at]
    try:
        raw_topic, at = decode_binary(data, at, end)
        topic = decode_topic(raw_topic)
        payload, at = decode_binary(data, at, end)
    except Violation as violation:
        raise Violation(MALFORMED_PACKET, "MQTT-3.1.3-11", f"will: {violation.text}") from None
    if not topic:
        raise Violation(MALFORMED_PACKET, "MQTT-3.1.3-11", "empty Will Topic")
    return Will(topic, payload, qos, retain, found, section), at
