"""Read whole batches from an offset to the committed end: verified and in order.

    reader = Reader(source, 0, offset)
    for batch in reader.read():             [] when there is nothing new; ask again later
        payloads = batch.payloads()[batch.wanted()]

A reader never skips records silently. Records that retention has removed, or is about to remove,
raise OffsetGone. Damage raises CorruptBatch or MissingSegment at every call, unless `on_damage` is
given: it is called then, and reading continues after the damage. Batches are never cut: one may
begin before the requested offset (or before the current one, if compaction has joined batches), and
may end after `until`. `wanted` returns the rows in the requested range.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from mqtt_broker.streams.format.batch import (
    HEADER_BYTES,
    NEVER,
    NULL,
    Batch,
    Header,
    Malformed,
    check_body,
    decode_header,
)
from mqtt_broker.streams.format.errors import (
    Damaged,
    EndBeforeStart,
    MissingSegment,
    OffsetAhead,
    OffsetGone,
)
from mqtt_broker.streams.format.segment import BatchPosition, Segment
from mqtt_broker.streams.read.source import Location, Source

READ_BYTES: Final = 1 << 20


class Extent(NamedTuple):
    """A range of whole batches in a file, to be sent without decoding."""

    file: int  # of the reader, until its next call
    position: int
    length: int
    base: int  # the first offset; it may be before `start`
    end: int  # the first behind
    start: int  # what was not read yet
    headers: list[Header]


class Reader:
    """Reads one partition. One thread at a time may use it."""

    def __init__(
        self,
        source: Source,
        partition: int,
        offset: int,
        until: int = NEVER,
        on_damage: Callable[[Damaged], None] | None = None,
    ) -> None:
        self._source = source
        self._files = source.partition(partition)
        self.partition = partition
        self.offset = offset  # of what is read next
        self._until = until
        self._on_damage = on_damage
        self._segment: Segment | None = None
        self._location = Location("", 0, -1)
        self._at = BatchPosition(0, 0)  # of the next batch
        self._oldest_us = NULL  # what was received before is not read any more,
        self._kept_from = -1  # unless it stands behind this offset; -1: it is not known
        end = source.end(partition)
        if offset > end:
            raise OffsetAhead(source.name, partition, offset, end)
        if until < offset:
            raise EndBeforeStart(source.name, partition, offset, until)
        if offset < self._files.start:
            self._files.locate(offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    @property
    def segment_name(self) -> str:
        """The file that was read last."""
        return self._location.name

    def lag(self) -> int:
        """Return the number of offsets that may be read now."""
        return max(0, self._limit() - self.offset)

    def _limit(self) -> int:
        return min(self._until, self._source.end(self.partition))

    def read(self, bytes_max: int = READ_BYTES) -> list[Batch]:
        """Read the next batches, at least one and about `bytes_max` bytes; [] at the end."""
        limit = self._limit()
        self._note_time()
        found: list[Batch] = []
        while self.offset < limit and not found:
            segment = self._segment or self._open(limit)
            if segment is not None:
                found = self._read(segment, limit, bytes_max)
        return found

    def extent(self, bytes_max: int = READ_BYTES) -> Extent | None:
        """Return the next batches of one file, with headers checked, or None at the end."""
        limit = self._limit()
        self._note_time()
        while self.offset < limit:
            segment = self._segment or self._open(limit)
            if segment is None:
                continue
            (base, position), start = self._at, self.offset
            headers = self._pass(segment, limit, bytes_max)
            if headers:
                length = self._at.position - position
                return Extent(segment.file, position, length, base, self._at.base, start, headers)
        return None

    def read_into(self, view: memoryview, extent: Extent) -> None:
        """Read the extent that was returned last. Bytes missing from the file become zeros."""
        done = 0
        while done < extent.length:
            count = os.preadv(extent.file, [view[done:]], extent.position + done)
            if not count:
                view[done:] = bytes(extent.length - done)
                return
            done += count

    # Inside a segment.

    def _read(self, segment: Segment, limit: int, bytes_max: int) -> list[Batch]:
        found: list[Batch] = []
        base, position = self._at
        data = memoryview(segment.read(position, max(bytes_max, HEADER_BYTES)))
        if not data:
            self._at_end(segment, limit)
            return found
        at = 0
        header: Header | None = None
        while base < limit and (at + HEADER_BYTES <= len(data) or not at):
            header = None
            try:
                header = self._decode(segment, data, at, base)
                if header.max_us < self._oldest_us and self._is_gone(header):
                    if found:
                        break
                    raise self._gone()
                if at + header.length > len(data):
                    if found:
                        break
                    data, at = memoryview(segment.read(position, header.length)), 0
                    if len(data) < header.length:
                        raise Malformed("a batch is cut short")
                batch = Batch(header, data[at : at + header.length])
                check_body(header, batch.data)
            except Malformed as bad:
                if not found:  # otherwise return the whole batches first
                    self._damage(segment, limit, header, str(bad))
                break
            batch.start = max(base, self.offset)
            batch.until = min(header.end, self._until)
            found.append(batch)
            at += header.length
            position += header.length
            base = header.end
            self._go(BatchPosition(base, position))
        return found

    def _pass(self, segment: Segment, limit: int, bytes_max: int) -> list[Header]:
        """Return the headers of whole batches without reading their bodies."""
        passed: list[Header] = []
        left = bytes_max
        size = segment.size
        segment.forget()
        while self._at.base < limit:
            base, position = self._at
            header: Header | None = None
            try:
                header = segment.header_at(position, base)
                if header is None:
                    if not passed:
                        self._at_end(segment, limit)
                    break
                if header.max_us < self._oldest_us and self._is_gone(header):
                    if passed:
                        break
                    raise self._gone()
                if position + header.length > size:
                    raise Malformed("a batch is cut short")
            except Malformed as bad:
                if not passed:
                    self._damage(segment, limit, header, str(bad))
                break
            left -= header.length
            if passed and left < 0:
                break
            passed.append(header)
            self._go(BatchPosition(header.end, position + header.length))
        return passed

    # The retention.

    def _note_time(self) -> None:
        self._oldest_us = self._source.oldest_us(is_late=True)
        self._kept_from = -1

    def _is_gone(self, header: Header) -> bool:
        """Tell whether a batch is too old, and no batch before it is kept.

        Batches after one that is kept are kept too: a clock that was set back made them look old.
        """
        if not header.rows:
            return False
        if self._kept_from < 0:
            end = self._source.end(self.partition)
            self._kept_from = self._files.first_since(self._oldest_us, end)
        return header.end <= self._kept_from

    def _gone(self) -> OffsetGone:
        source = self._source
        earliest = self._files.first_since(source.oldest_us(), source.end(self.partition))
        return OffsetGone(source.name, self.partition, self.offset, earliest)

    def _decode(self, segment: Segment, data: memoryview, at: int, base: int) -> Header:
        header = decode_header(data, at, segment.seed)
        if header.base != base:
            raise Malformed(f"a batch has offset {header.base} where {base} belongs")
        return header

    def _go(self, place: BatchPosition) -> None:
        self._at = place
        self.offset = max(self.offset, place.base)

    # From segment to segment.

    def _open(self, limit: int) -> Segment | None:
        """Open the segment at the offset's batch; return None if that batch was damaged."""
        self.close()
        try:
            self._location, segment = self._files.open(self.offset, limit)
        except MissingSegment as missing:
            self._tell(missing)
            self.offset = min(missing.until, limit)
            return None
        self._segment = segment
        at = segment.find_offset(self.offset)
        for item in segment.walk(at):
            at = BatchPosition(item.base, item.position)
            if item.next is None or item.next.base > self.offset:
                break  # this batch has the offset, or damage from here on has it
            at = item.next
        self._at = at
        return segment

    def _at_end(self, segment: Segment, limit: int) -> None:
        """Continue with the next file at the end of this one, unless bytes are missing."""
        end = self._location.end
        if end < 0:
            self._files.reload()
            is_cut = self._files.catalog.next_base == self._location.base  # not sealed since
        else:
            is_cut = self._at.base < end
        if is_cut:
            self._damage(segment, limit, None, "the segment is cut short")
        else:
            self.close()

    def _damage(self, segment: Segment, limit: int, header: Header | None, why: str) -> None:
        place = segment.resume(self._at, header)
        if place is not None and place.base > limit:
            place = None  # not committed yet: it may still be rewritten
        end = self._location.end if self._location.end >= 0 else limit
        until = place.base if place is not None else end
        first = max(self.offset, self._at.base)
        name, position = segment.path.name, self._at.position
        self._tell(self._files.files.corrupt(first, until, name, position, why))
        if place is not None:
            self._go(place)
        else:
            self.offset = max(self.offset, until)
            self.close()

    def _tell(self, damage: Damaged) -> None:
        if self._on_damage is None:
            raise damage
        self._on_damage(damage)
