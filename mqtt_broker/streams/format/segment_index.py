"""Index a segment: about every 64 KB the position of a batch, by its offset and time.

An entry is 24 bytes: the batch's base offset (i64), the latest time received before it in this
segment (i64), its position (u32, in units of 8 bytes) and a crc32 of these, seeded with the
partition's seed. The index is a hint: it is written next to the segment and synced only when the
segment is sealed. An entry that fails its checksum ends the search. If no batch of that offset
begins at an entry's position, the segment is walked from its beginning.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from mqtt_broker.streams.format.batch import NULL

STEP_BYTES: Final = 64 << 10
ENTRY_BYTES: Final = 24
_ENTRY: Final = struct.Struct("<qqII")


class IndexEntry(NamedTuple):
    """The position of a batch, and the latest time received before it."""

    base: int
    before_us: int
    position: int


def encode(entry: IndexEntry, seed: int) -> bytes:
    place = entry.position // 8
    data = _ENTRY.pack(entry.base, entry.before_us, place, 0)
    return _ENTRY.pack(entry.base, entry.before_us, place, zlib.crc32(data, seed))


class Index:
    """The entries of a file, read once; a missing file is an empty index."""

    __slots__ = ("_count", "_data", "_seed")

    def __init__(self, data: bytes, seed: int) -> None:
        self._data = data
        self._count = len(data) // ENTRY_BYTES
        self._seed = seed

    @classmethod
    def read(cls, path: Path, seed: int) -> Index:
        try:
            return cls(path.read_bytes(), seed)
        except OSError:
            return cls(b"", seed)

    def __len__(self) -> int:
        return self._count

    def entry(self, at: int) -> IndexEntry | None:
        base, before_us, place, crc = _ENTRY.unpack_from(self._data, at * ENTRY_BYTES)
        if encode(IndexEntry(base, before_us, place * 8), self._seed)[-4:] != struct.pack(
            "<I", crc
        ):
            return None
        return IndexEntry(base, before_us, place * 8)

    def at_offset(self, offset: int) -> IndexEntry | None:
        """Return the last entry at or before this offset."""
        return self._last(lambda entry: entry.base <= offset)

    def at_time(self, at_us: int) -> IndexEntry | None:
        """Return the last entry with only earlier times before it."""
        return self._last(lambda entry: entry.before_us < at_us)

    def _last(self, holds: Callable[[IndexEntry], bool]) -> IndexEntry | None:
        low, high = 0, self._count
        found: IndexEntry | None = None
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None:
                return None
            if holds(entry):
                found = entry
                low = middle + 1
            else:
                high = middle
        return found


class IndexBuilder:
    """Decides which batches of a segment get an entry, while the segment is written or walked."""

    __slots__ = ("_latest_us", "_marked", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._marked = -STEP_BYTES
        self._latest_us = NULL

    def add(self, base: int, max_us: int, position: int) -> bytes:
        """Return the entry of the next batch, or b"" if it gets none."""
        before_us = self._latest_us
        self._latest_us = max(before_us, max_us)
        if position - self._marked < STEP_BYTES:
            return b""
        self._marked = position
        return encode(IndexEntry(base, before_us, position), self._seed)
