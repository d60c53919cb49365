"""The sealed segments of a partition: what is in which file, without opening any of them.

A catalog does not change: who seals, removes or compacts makes the next one, puts it on disk in
one step, and only then takes it for its own. So a reader in another thread has a whole one in
hand, and one in another process finds a whole one on disk. 10,000 segments are 480 KB and are
read in a millisecond.

The file: "FMC1", crc32 of what follows (begun with the partition's seed), the number of
segments (u32), 4 bytes of nothing, `next_base` (i64); then six columns i64: base, end, bytes,
min and max broker timestamp, generation.

Segments lie in order. Between two may be a hole, whose offsets are lost; offsets from `next_base`
on are in the file of that name, which is written to.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Final, NamedTuple

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import NEVER, NULL, Bad

_MAGIC: Final = b"FMC1"
_HEAD: Final = struct.Struct("<4sIIxxxxq")
_COLUMNS: Final = 6


class Sealed(NamedTuple):
    base: int
    end: int
    size: int
    min_us: int
    max_us: int
    generation: int

    @property
    def name(self) -> str:
        return file_names.segment(self.base, self.generation)


class Catalog:
    __slots__ = ("_columns", "_latest_us", "next_base")

    def __init__(self, columns: list[array[int]], next_base: int) -> None:
        self._columns = columns
        self.next_base = next_base
        # The latest time of each segment and all before it rises, whatever clocks did.
        self._latest_us = array("q", accumulate(columns[4], max))

    @classmethod
    def of(cls, segments: list[Sealed], next_base: int) -> Catalog:
        columns = zip(*segments, strict=True) if segments else [()] * _COLUMNS
        return cls([array("q", column) for column in columns], next_base)

    @classmethod
    def decode(cls, data: bytes, seed: int) -> Catalog:
        if len(data) < _HEAD.size:
            raise Bad("it is cut short")
        magic, crc, count, next_base = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise Bad("it is no catalog")
        if zlib.crc32(data[8:], seed) != crc:
            raise Bad("it does not match its checksum")
        if len(data) != _HEAD.size + 8 * _COLUMNS * count:
            raise Bad("its length is wrong")
        columns = []
        for at in range(_HEAD.size, len(data), 8 * count or 1):
            column = array("q")
            column.frombytes(data[at : at + 8 * count])
            columns.append(column)
        return cls(columns or [array("q") for _ in range(_COLUMNS)], next_base)

    def encode(self, seed: int) -> bytes:
        head = _HEAD.pack(_MAGIC, 0, len(self), self.next_base)
        body = b"".join((head[8:], *[column.tobytes() for column in self._columns]))
        return head[:4] + struct.pack("<I", zlib.crc32(body, seed)) + body

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, at: int) -> Sealed:
        return Sealed(*[column[at] for column in self._columns])

    @property
    def start(self) -> int:
        """The earliest offset that is kept."""
        return self._columns[0][0] if self._columns[0] else self.next_base

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self._columns[2])

    @property
    def min_us(self) -> int:
        return min(self._columns[3], default=NEVER)

    @property
    def max_us(self) -> int:
        return max(self._columns[4], default=NULL)

    def segments(self) -> list[Sealed]:
        return [Sealed(*fields) for fields in zip(*self._columns, strict=True)]

    def find(self, offset: int) -> int:
        """The place of the last segment that begins at or before it; -1: none does."""
        return bisect_right(self._columns[0], offset) - 1

    def find_time(self, at_us: int) -> int:
        """The place of the first segment with something received then or later; len: none."""
        return bisect_left(self._latest_us, at_us)

    # The next catalog.

    def sealed(self, segment: Sealed, next_base: int) -> Catalog:
        columns = [array("q", column) for column in self._columns]
        for column, value in zip(columns, segment, strict=True):
            column.append(value)
        return Catalog(columns, next_base)

    def without(self, count: int) -> Catalog:
        """Without the first so many."""
        return Catalog([column[count:] for column in self._columns], self.next_base)

    def replaced(self, at: int, count: int, segment: Sealed) -> Catalog:
        """One in the place of so many."""
        columns = [array("q", column) for column in self._columns]
        for column, value in zip(columns, segment, strict=True):
            column[at : at + count] = array("q", (value,))
        return Catalog(columns, self.next_base)
