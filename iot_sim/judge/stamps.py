"""The stamp every message of the simulator carries, and how it is found again.

    <run>/<device>/<class>.<qos>.<n>/<sequence>/<send time in us>/<crc32 of the payload>

On MQTT 5 it is the User Property `sim`; on 3.1.1, which has none, it stands behind the payload
with its length and a mark. The first three parts name a *flow*: the messages of one device to
one topic at one QoS, which MQTT promises to deliver in order. The run keeps two runs against one
broker apart. The send time is wall-clock time of the first sending; a message that is sent again
keeps its stamp.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from mqtt_broker.codec.properties import Properties

PROPERTY: Final = "sim"
# The User Property up to the text's own length.
PROPERTY_HEAD: Final = b"\x26\x00\x03sim"
_MARK: Final = b"\x00simstamp"
_TRAILER: Final = struct.Struct(f">H{len(_MARK)}s")
STAMP_BYTES_MAX: Final = 512


def flow_key(run: str, device: str, kind: str, qos: int, number: int) -> str:
    """Return the first parts of the stamp, with the slash behind them."""
    return f"{run}/{device}/{kind}.{qos}.{number}/"


def stamp(key: str, sequence: int, sent_us: int, payload: bytes) -> bytes:
    return f"{key}{sequence}/{sent_us}/{crc32(payload):08x}".encode()


def append(payload: bytes, text: bytes) -> bytes:
    """Return the payload with its stamp behind it, for MQTT 3.1.1."""
    return payload + text + _TRAILER.pack(len(text), _MARK)


def from_properties(properties: Properties) -> str | None:
    for name, text in properties.user:
        if name == PROPERTY:
            return text
    return None


def from_payload(payload: bytes) -> tuple[str, bytes] | None:
    """Split a payload into stamp and rest, if it has a stamp."""
    if not payload.endswith(_MARK):
        return None
    end = len(payload) - _TRAILER.size
    if end < 0:
        return None
    size = _TRAILER.unpack_from(payload, end)[0]
    start = end - size
    if start < 0 or size > STAMP_BYTES_MAX:
        return None
    try:
        return payload[start:end].decode(), payload[:start]
    except UnicodeDecodeError:
        return None


def split(text: str) -> tuple[str, int, int, str] | None:
    """Parse a stamp: (flow key, sequence, send time in us, checksum); None if it is invalid."""
    try:
        flow, sequence, sent_us, checksum = text.rsplit("/", 3)
        return flow + "/", int(sequence), int(sent_us), checksum
    except ValueError:
        return None
