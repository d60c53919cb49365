"""Encode and decode UTF-8 strings, binary data and variable byte integers."""

from __future__ import annotations

import re
from typing import Final

from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.reasons import MALFORMED_PACKET

# U+0000 is forbidden; a receiver may refuse the other control characters and non-characters. We do,
# because they break logs, terminals and file names. [MQTT-1.5.4-2], [MQTT-4.7.3-2]
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")


def decode_utf8(raw: bytes) -> str:
    """Decode text; refuse ill-formed UTF-8, surrogates and control characters.

    U+FEFF is a character like any other and is kept. [MQTT-1.5.4-3]
    """
    try:
        text = raw.decode()  # strict: no surrogates, no over-long forms. [MQTT-1.5.4-1]
    except UnicodeDecodeError as error:
        raise Violation(MALFORMED_PACKET, "MQTT-1.5.4-1", f"not UTF-8: {error.reason}") from None
    if not text.isprintable() and _FORBIDDEN.search(text):
        raise Violation(MALFORMED_PACKET, "MQTT-1.5.4-2", "control character in a string")
    return text


def decode_binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Decode data with two length bytes; return it with the position after it."""
    if at + 2 > end:
        raise Violation(MALFORMED_PACKET, "MQTT-1.5.6", "truncated length")
    start = at + 2
    stop = start + (data[at] << 8 | data[at + 1])
    if stop > end:
        raise Violation(MALFORMED_PACKET, "MQTT-1.5.6", "truncated string")
    return data[start:stop], stop


def decode_string(data: bytes, at: int, end: int) -> tuple[str, int]:
    start = at + 2
    if start <= end:
        stop = start + (data[at] << 8 | data[at + 1])
        if stop <= end:
            return decode_utf8(data[start:stop]), stop
    raw, at = decode_binary(data, at, end)  # raises the error of a truncated string
    return decode_utf8(raw), at


def decode_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a variable byte integer of up to four bytes in shortest form. [MQTT-1.5.5-1]"""
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            raise Violation(MALFORMED_PACKET, "MQTT-1.5.5-1", "truncated variable byte integer")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise Violation(
                    MALFORMED_PACKET, "MQTT-1.5.5-1", "variable byte integer not in shortest form"
                )
            return value, at
    raise Violation(MALFORMED_PACKET, "MQTT-1.5.5-1", "variable byte integer of five bytes or more")


def encode_varint(value: int) -> bytes:
    assert 0 <= value <= 268_435_455
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_binary(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def encode_string(text: str) -> bytes:
    return encode_binary(text.encode())
