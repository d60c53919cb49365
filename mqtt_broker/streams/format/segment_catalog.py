"""List the sealed segments of a partition: which offsets and times are in which file.

A catalog is immutable: sealing, removing and compacting make a new one, replace the file in one
step, and only then use it. So a reader in another thread or process always sees a consistent
catalog. 10,000 segments take 480 KB and are read in a millisecond.

The file: "FMC1", crc32 of the rest (seeded with the partition's seed), the number of segments
(u32), 4 zero bytes, `next_base` (i64); then six columns i64: base, end, bytes, min and max broker
timestamp, generation.

Segments are in order. Between two there may be a gap, whose offsets are lost. Offsets from
`next_base` on are in the file of that name, which is still written to.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import NEVER, NULL, Malformed

_MAGIC: Final = b"FMC1"
_HEAD: Final = struct.Struct("<4sIIxxxxq")
_COLUMNS: Final = 6


class SealedSegment(NamedTuple):
    """A segment that is no longer written to."""

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
    """The sealed segments of one partition, in order. Immutable."""

    __slots__ = ("_columns", "_latest_us", "next_base")

    def __init__(self, columns: list[array[int]], next_base: int) -> None:
        self._columns = columns
        self.next_base = next_base
        # The running maximum of times never decreases, even if clocks were set back.
        self._latest_us = array("q", accumulate(columns[4], max))

    @classmethod
    def of(cls, segments: list[SealedSegment], next_base: int) -> Catalog:
        columns = zip(*segments, strict=True) if segments else [()] * _COLUMNS
        return cls([array("q", column) for column in columns], next_base)

    @classmethod
    def read(cls, directory: Path, seed: int) -> Catalog | None:
        """Read the catalog of a partition, or return None if there is none. Raises Malformed."""
        try:
            data = (directory / file_names.CATALOG).read_bytes()
        except FileNotFoundError:
            return None
        return cls.decode(data, seed)

    @classmethod
    def decode(cls, data: bytes, seed: int) -> Catalog:
        if len(data) < _HEAD.size:
            raise Malformed("it is cut short")
        magic, crc, count, next_base = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise Malformed("it is not a catalog")
        if zlib.crc32(data[8:], seed) != crc:
            raise Malformed("it does not match its checksum")
        if len(data) != _HEAD.size + 8 * _COLUMNS * count:
            raise Malformed("its length is wrong")
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

    def __getitem__(self, at: int) -> SealedSegment:
        return SealedSegment(*[column[at] for column in self._columns])

    @property
    def start(self) -> int:
        """The earliest offset that is kept."""
        return self._columns[0][0] if self._columns[0] else self.next_base

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(self._columns[2])

    @property
    def min_us(self) -> int:
        return min(self._columns[3], default=NEVER)

    @property
    def max_us(self) -> int:
        return max(self._columns[4], default=NULL)

    def segments(self) -> list[SealedSegment]:
        return [SealedSegment(*fields) for fields in zip(*self._columns, strict=True)]

    def find(self, offset: int) -> int:
        """Return the index of the last segment that begins at or before this offset, or -1."""
        return bisect_right(self._columns[0], offset) - 1

    def find_time(self, at_us: int) -> int:
        """Return the index of the first segment with a record of this time or later, or `len`."""
        return bisect_left(self._latest_us, at_us)

    # The next catalog.

    def sealed(self, segment: SealedSegment, next_base: int) -> Catalog:
        """Return the catalog with one more segment."""
        columns = [array("q", column) for column in self._columns]
        for column, value in zip(columns, segment, strict=True):
            column.append(value)
        return Catalog(columns, next_base)

    def without(self, count: int) -> Catalog:
        """Return the catalog without the first `count` segments."""
        return Catalog([column[count:] for column in self._columns], self.next_base)

    def replaced(self, at: int, count: int, segment: SealedSegment) -> Catalog:
        """Return the catalog with one segment in place of several."""
        columns = [array("q", column) for column in self._columns]
        for column, value in zip(columns, segment, strict=True):
            column[at : at + count] = array("q", (value,))
        return Catalog(columns, self.next_base)
