"""Checksums of the rows that hold payloads: of topic, properties and payload.

SQLite and PostgreSQL find damage of their own structure, and not every byte of a value that was
altered on disk. A row whose checksum does not match is not used. Rows that were written before
there were checksums have none, and are used as they are.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

SIZE: Final = 4
_LENGTHS: Final = struct.Struct(">II")


def checksum(topic: str, section: bytes, payload: bytes) -> bytes:
    """Return the checksum of one message or will."""
    return zlib.crc32(payload, _head(topic, section)).to_bytes(SIZE, "big")


def checksums(topic: str, section: bytes, payloads: Sequence[bytes]) -> bytes:
    """Return the checksums of messages that differ only in payload, one behind the other."""
    found = map(zlib.crc32, payloads, repeat(_head(topic, section)))
    return struct.pack(f">{len(payloads)}I", *found)


def is_altered(crc: Any, topic: Any, section: Any, payload: Any) -> bool:
    """Tell whether a row is not what was written; values may be of any type."""
    if crc is None:
        return False
    try:
        text = topic.decode() if isinstance(topic, bytes) else topic
        return bytes(crc) != checksum(text, section, payload)
    except (TypeError, ValueError, AttributeError):  # of other types than were written
        return True


def _head(topic: str, section: bytes) -> int:
    name = topic.encode()
    return zlib.crc32(_LENGTHS.pack(len(name), len(section)) + name + section)
