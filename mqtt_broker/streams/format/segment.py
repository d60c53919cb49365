"""Read one segment: walk it batch by batch, search it by offset or time, skip damage.

A segment is a sequence of batches, each of which begins where the previous one ends, in bytes and
in offsets. This module never waits or writes, and uses no bytes without a valid checksum.
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
    Batch,
    Header,
    Malformed,
    check_body,
    decode_header,
)
from mqtt_broker.streams.format.errors import CorruptBatch
from mqtt_broker.streams.format.segment_index import Index, IndexEntry

WINDOW_BYTES: Final = 4 << 10  # read at once when walking headers
_SEARCH_BYTES: Final = 1 << 20


class BatchPosition(NamedTuple):
    """The first offset of a batch, and its place in the file."""

    base: int
    position: int


class WalkItem(NamedTuple):
    """A batch of a segment, or damage: the reason, and where the walk continues."""

    position: int
    base: int
    header: Header | None
    why: str
    next: BatchPosition | None  # None if no whole batch follows


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """A partition: how to read its files, and its names for errors."""

    stream: str
    partition: int
    directory: Path
    seed: int

    def corrupt(
        self, offset: int, until: int, segment: str, position: int, why: str
    ) -> CorruptBatch:
        """Return damage in one of its files as an error."""
        return CorruptBatch(self.stream, self.partition, offset, until, segment, position, why)


def damage_of(files: PartitionFiles, segment: str, item: WalkItem) -> CorruptBatch:
    """Return the error of an item that is damaged."""
    until = item.next.base if item.next else -1
    return files.corrupt(item.base, until, segment, item.position, item.why)


class Segment:
    """An open segment. The caller closes it; a file that is removed meanwhile stays readable."""

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
        """Read so many bytes; fewer only at the end of the file."""
        data = os.pread(self._file, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._file, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def forget(self) -> None:
        """Drop the read buffer: the file may have changed."""
        self._window = b""

    def header_at(self, position: int, base: int) -> Header | None:
        """Return the header of the batch `base` here, or None at the end of the file."""
        if not 0 <= position - self._at <= len(self._window) - HEADER_BYTES:
            self._window = self.read(position, WINDOW_BYTES)
            self._at = position
            if not self._window:
                return None
        header = decode_header(self._window, position - self._at, self.seed)
        if header.base != base:
            raise Malformed(f"a batch has offset {header.base} where {base} belongs")
        return header

    def batch_at(self, position: int, header: Header) -> Batch:
        """Read a whole batch and check it."""
        data = memoryview(self.read(position, header.length))
        if len(data) < header.length:
            raise Malformed("a batch is cut short")
        check_body(header, data)
        return Batch(header, data)

    def checked_batch(self, files: PartitionFiles, item: WalkItem) -> Batch:
        """Read the batch of a walk. Raises CorruptBatch if its columns are damaged."""
        assert item.header is not None
        try:
            return self.batch_at(item.position, item.header)
        except Malformed as bad:
            raise damage_of(files, self.path.name, item._replace(why=str(bad))) from None

    def walk(self, place: BatchPosition, *, is_whole: bool = False) -> Iterator[WalkItem]:
        """Yield the batches from this position; with `is_whole` their bodies are checked too.

        Damage is one item, and the walk continues after it.
        """
        at: BatchPosition | None = place
        while at is not None:
            base, position = at
            header: Header | None = None
            try:
                header = self.header_at(position, base)
                if header is None:
                    return
                at = BatchPosition(header.end, position + header.length)
                if is_whole:
                    self.batch_at(position, header)
                elif at.position > self.size:
                    raise Malformed("a batch is cut short")
                yield WalkItem(position, base, header, "", at)
            except Malformed as bad:
                at = self.resume(place=BatchPosition(base, position), header=header)
                yield WalkItem(position, base, None, str(bad), at)

    def resume(self, place: BatchPosition, header: Header | None) -> BatchPosition | None:
        """Return where whole batches continue after damage, or None if this file has no more.

        A valid header tells where its batch ends. Otherwise search for the next one: it begins at a
        multiple of 8 and has a checksum that only this partition's headers have.
        """
        if header is not None:
            after = BatchPosition(header.end, place.position + header.length)
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
                    return BatchPosition(found.base, position + at)
                at = data.find(MAGIC, at + 1)
            position += len(data) - HEADER_BYTES + 8 & ~7

    def _is_after(self, data: bytes, at: int, base: int) -> bool:
        try:
            return decode_header(data, at, self.seed).base >= base
        except Malformed:
            return False

    def find_offset(self, offset: int) -> BatchPosition:
        """Return a batch at or shortly before this offset: the walk to it is short."""
        entry = Index.read(file_names.index(self.path), self.seed).at_offset(offset)
        return self._place(entry)

    def find_time(self, at_us: int) -> BatchPosition:
        """Return a batch before which nothing was received at this time or later."""
        entry = Index.read(file_names.index(self.path), self.seed).at_time(at_us)
        return self._place(entry)

    def _place(self, entry: IndexEntry | None) -> BatchPosition:
        if entry is not None:
            try:
                if self.header_at(entry.position, entry.base) is not None:
                    return BatchPosition(entry.base, entry.position)
            except Malformed:
                pass  # the index is of another file: start at the beginning
        return BatchPosition(self.base, 0)
