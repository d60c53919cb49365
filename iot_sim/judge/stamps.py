"""The stamp that identifies each message of the simulator.

    <run>/<device>/<class>.<qos>.<n>/<sequence>/<send time in us>[+<us late>]/<crc32 of the payload>

On MQTT 5 it is the User Property `sim`; on 3.1.1, which has no properties, it follows the payload,
with its length and a mark. The first three parts identify a *flow*: the messages of one device to
one topic at one QoS, which a broker must deliver in order. `<run>` tells the runs against one
broker apart. The send time is the wall-clock time of the first sending; a message that is sent
again keeps its stamp. A message that was due earlier than it was sent says by how much.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from mqtt_broker.codec.properties import Properties

PROPERTY: Final = "sim"
# The User Property up to its value.
PROPERTY_HEAD: Final = b"\x26\x00\x03sim"
_MARK: Final = b"\x00simstamp"
_TRAILER: Final = struct.Struct(f">H{len(_MARK)}s")
STAMP_BYTES_MAX: Final = 512


def flow_key(run: str, device: str, kind: str, qos: int, number: int) -> str:
    """Return the first three parts of the stamp, with a slash at the end."""
    return f"{run}/{device}/{kind}.{qos}.{number}/"


def stamp(key: str, sequence: int, sent_us: int, payload: bytes, late_us: int = 0) -> bytes:
    if late_us > 0:
        return f"{key}{sequence}/{sent_us}+{late_us}/{crc32(payload):08x}".encode()
    return f"{key}{sequence}/{sent_us}/{crc32(payload):08x}".encode()


def append(payload: bytes, text: bytes) -> bytes:
    """Return the payload followed by its stamp, for MQTT 3.1.1."""
    return payload + text + _TRAILER.pack(len(text), _MARK)


def from_properties(properties: Properties) -> str | None:
    for name, text in properties.user:
        if name == PROPERTY:
            return text
    return None


def from_payload(payload: bytes) -> tuple[str, bytes] | None:
    """Split a payload into its stamp and the payload before it; None without a stamp."""
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


def split(text: str) -> tuple[str, int, int, str, int] | None:
    """Parse a stamp: (flow key, sequence, send time in us, checksum, us late).

    Return None if it is invalid.
    """
    try:
        flow, sequence, times, checksum = text.rsplit("/", 3)
        sent_us, _, late_us = times.partition("+")
        return flow + "/", int(sequence), int(sent_us), checksum, int(late_us or 0)
    except ValueError:
        return None
