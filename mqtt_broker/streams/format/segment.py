"""One segment read: walked batch by batch, searched by offset or time, and got over damage.

A segment is a row of batches, each beginning where the one before it ends, in bytes and in
offsets. Nothing here waits or writes, and nothing is believed that has no checksum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import (
    HEADER_BYTES,
    MAGIC,
    Bad,
    Batch,
    Header,
    check_body,
    decode_header,
)
from mqtt_broker.streams.format.errors import CorruptBatch
from mqtt_broker.streams.format.segment_index import Entry, Index

WINDOW_BYTES: Final = 4 << 10  # read at once when walking headers
_SEARCH_BYTES: Final = 1 << 20


class Place(NamedTuple):
    """Where a batch begins."""

    base: int
    position: int


class Found(NamedTuple):
    """A batch of a segment, or what stands in its place: `why`, and where it goes on."""

    position: int
    base: int
    header: Header | None
    why: str
    next: Place | None  # None: nothing whole follows


@dataclass(frozen=True, slots=True)
class Where:
    """A partition: what its files need to be read, and what to call it."""

    stream: str
    partition: int
    directory: Path
    seed: int

    def corrupt(
        self, offset: int, until: int, segment: str, position: int, why: str
    ) -> CorruptBatch:
        """Damage in one of its files, as an error."""
        return CorruptBatch(self.stream, self.partition, offset, until, segment, position, why)


def damage_of(where: Where, segment: str, item: Found) -> CorruptBatch:
    until = item.next.base if item.next else -1
    return where.corrupt(item.base, until, segment, item.position, item.why)


class Segment:
    """An open file. Closing it is the caller's; what is removed meanwhile stays readable."""

    __slots__ = ("_at", "_file", "_window", "base", "path", "seed")

    def __init__(self, path: Path, base: int, seed: int) -> None:
        self.path = path
        self.base = base
        self.seed = seed
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._at = 0  # where the window begins
        self._window = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def file(self) -> int:
        return self._file

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read(self, position: int, length: int) -> bytes:
        """Fewer bytes at the end of the file only."""
        data = os.pread(self._file, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._file, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def forget(self) -> None:
        """What was read ahead may have changed."""
        self._window = b""

    def header_at(self, position: int, base: int) -> Header | None:
        """The header of the batch that begins there with offset `base`; None: the file ends."""
        if not 0 <= position - self._at <= len(self._window) - HEADER_BYTES:
            self._window = self.read(position, WINDOW_BYTES)
            self._at = position
            if not self._window:
                return None
        header = decode_header(self._window, position - self._at, self.seed)
        if header.base != base:
            raise Bad(f"a batch has offset {header.base} where {base} belongs")
        return header

    def batch_at(self, position: int, header: Header) -> Batch:
        """The whole batch, checked."""
        data = memoryview(self.read(position, header.length))
        if len(data) < header.length:
            raise Bad("a batch is cut short")
        check_body(header, data)
        return Batch(header, data)

    def checked_batch(self, where: Where, item: Found) -> Batch:
        """The batch that a walk has found; CorruptBatch when its columns are not what they were."""
        assert item.header is not None
        try:
            return self.batch_at(item.position, item.header)
        except Bad as bad:
            raise damage_of(where, self.path.name, item._replace(why=str(bad))) from None

    def walk(self, place: Place, *, is_whole: bool = False) -> Iterator[Found]:
        """Batches from there on; with `is_whole` their bodies are checked too.

        Damage is one item, and the walk goes on behind it.
        """
        at: Place | None = place
        while at is not None:
            base, position = at
            header: Header | None = None
            try:
                header = self.header_at(position, base)
                if header is None:
                    return
                at = Place(header.end, position + header.length)
                if is_whole:
                    self.batch_at(position, header)
                elif at.position > self.size:
                    raise Bad("a batch is cut short")
                yield Found(position, base, header, "", at)
            except Bad as bad:
                at = self.resume(place=Place(base, position), header=header)
                yield Found(position, base, None, str(bad), at)

    def resume(self, place: Place, header: Header | None) -> Place | None:
        """Where whole batches go on behind damage; None: nowhere in this file.

        A header that is right says where its batch ends. Else the next one is looked for: it
        lies on a multiple of 8 and has a checksum that only this partition's headers have.
        """
        if header is not None:
            after = Place(header.end, place.position + header.length)
            return after if after.position <= self.size else None
        position = place.position + 8
        while True:
            data = self.read(position, _SEARCH_BYTES)
            if len(data) < HEADER_BYTES:
                return None
            at = data.find(MAGIC)
            while 0 <= at <= len(data) - HEADER_BYTES:
                if not at % 8 and self._is_after(data, at, place.base):
                    found = decode_header(data, at, self.seed)
                    return Place(found.base, position + at)
                at = data.find(MAGIC, at + 1)
            position += len(data) - HEADER_BYTES + 8 & ~7

    def _is_after(self, data: bytes, at: int, base: int) -> bool:
        try:
            return decode_header(data, at, self.seed).base >= base
        except Bad:
            return False

    def find_offset(self, offset: int) -> Place:
        """A batch at or before this offset, near it: the walk to it is short."""
        entry = Index.read(file_names.index(self.path), self.seed).at_offset(offset)
        return self._place(entry)

    def find_time(self, at_us: int) -> Place:
        """A batch with nothing before it in this segment that was received then or later."""
        entry = Index.read(file_names.index(self.path), self.seed).at_time(at_us)
        return self._place(entry)

    def _place(self, entry: Entry | None) -> Place:
        if entry is not None:
            try:
                if self.header_at(entry.position, entry.base) is not None:
                    return Place(entry.base, entry.position)
            except Bad:
                pass  # the index is of another file: begin at the beginning
        return Place(self.base, 0)
