"""Find how far a trigger's limits reach in the log: rows, bytes, or both.

    limits = Limits(bytes_max)
    ends = limits.reach(source, starts, ends, rows_max)

All partitions are read up to the same received time (`batch_planning.deal`), which is found with
the log's indexes; only headers of batches are read, and the batch that contains a time. For a log
on another machine the broker finds each time, one request for each, and the size of a message is
estimated from the first batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqtt_broker.streams.format.errors import Damaged, OffsetGone
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import PartitionSource, Source
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource
from spark_ingest.source.batch_planning import NEVER_US, Ends, Measure, deal, share_rows
from spark_ingest.source.task import LogSource

_SAMPLE_BYTES: Final = 64 << 10
_SPAN_US: Final = 3_600_000_000  # of log time that the first trigger may be worth


class TriggerLimits:
    """The limits of one query; it remembers how much log time the last trigger was worth."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max  # 0: none
        self._until_us = 0
        self._span_us = _SPAN_US

    def reach(
        self, source: LogSource, starts: Sequence[int], ends: Sequence[int], rows_max: int
    ) -> Ends:
        """Return ends that are within the limits; `rows_max` 0: any number of rows."""
        reached = tuple(ends)
        if rows_max:
            first = tuple(starts)
            rows = Measure(lambda found: sum(found) - sum(first), share_rows)
            reached = self._dealt(source, starts, reached, rows_max, rows)
        if self._bytes_max:
            sizes = Sizes(source, starts, reached)
            measure = Measure(
                sizes.total, lambda low, high, most: share_bytes(source, low, high, most)
            )
            reached = self._dealt(source, starts, reached, self._bytes_max, measure)
        return reached

    def _dealt(
        self,
        source: LogSource,
        starts: Sequence[int],
        ends: Ends,
        limit: int,
        measure: Measure,
    ) -> Ends:
        last_us, span_us = self._until_us, self._span_us
        hints = (last_us + span_us, last_us, last_us + 4 * span_us) if last_us else ()

        def find_time(at_us: int) -> Ends:
            return _find_time(source, ends, at_us)

        try:
            found = deal(starts, ends, limit, find_time, measure, hints)
        except Damaged:  # at the server; the task that reads reports or skips it
            return measure.share(tuple(starts), ends, limit)
        if found.until_us < NEVER_US:
            if last_us and found.until_us > last_us:
                self._span_us = found.until_us - last_us
            self._until_us = found.until_us
        return found.ends


def _find_time(source: LogSource, ends: Ends, at_us: int) -> Ends:
    """Find the first offsets that were received at a time or later."""
    if isinstance(source, RemoteSource):
        return source.at_time(at_us).ends
    return tuple(
        _first_since(partition, at_us, end)
        for partition, end in zip(source.partitions, ends, strict=True)
    )


def _first_since(partition: PartitionSource, at_us: int, end: int) -> int:
    try:
        return partition.find_time(at_us, end)
    except Damaged as damage:  # the task that reads reports or skips it
        return damage.offset
    except OffsetGone as gone:  # retention has removed segments meanwhile
        return gone.earliest


class Sizes:
    """Bytes of the log from its starts on: by the places of batches, or by a sample."""

    def __init__(self, source: LogSource, starts: Sequence[int], ends: Ends) -> None:
        self._source = source
        self._starts = tuple(starts)
        self._known: dict[tuple[int, int], int] = {}
        self._before: list[dict[int, int]] = []  # bytes before each segment, by its base
        self._each: list[float] = []
        if isinstance(source, RemoteSource):
            self._each = [
                _bytes_each(source, number, start, end)
                for number, (start, end) in enumerate(zip(starts, ends, strict=True))
            ]
        else:
            self._before = [_bytes_before(partition) for partition in source.partitions]

    def total(self, ends: Ends) -> int:
        return sum(
            self._size(number, start, end)
            for number, (start, end) in enumerate(zip(self._starts, ends, strict=True))
        )

    def _size(self, number: int, start: int, end: int) -> int:
        if start >= end:
            return 0
        if self._each:
            return int((end - start) * self._each[number])
        try:
            return self._place(number, end, end) - self._place(number, start, end)
        except (Damaged, OffsetGone):
            return 0  # the task that reads reports or skips it

    def _place(self, number: int, offset: int, end: int) -> int:
        """Return the bytes in front of a message."""
        place = self._known.get((number, offset))
        if place is None:
            place = self._known[number, offset] = self._found(number, offset, min(offset, end - 1))
        return place

    def _found(self, number: int, offset: int, within: int) -> int:
        """Find that place in the batch with `within`, the message itself or the one before it."""
        assert isinstance(self._source, Source)
        partition = self._source.partitions[number]
        location, segment = partition.open(within, within + 1)
        place = self._before[number].get(location.base)
        if place is None:  # sealed meanwhile
            self._before[number] = _bytes_before(partition)
            place = self._before[number].get(location.base, 0)
        with segment:
            for item in segment.walk(segment.find_offset(within)):
                if item.header is not None and within < item.header.end:
                    rows = max(0, offset - item.base)
                    return place + item.position + item.header.length * rows // item.header.span
        return place


def _bytes_before(partition: PartitionSource) -> dict[int, int]:
    found: dict[int, int] = {}
    place = 0
    for sealed in partition.catalog.segments():
        found[sealed.base] = place
        place += sealed.size
    found[partition.catalog.next_base] = place
    return found


def _bytes_each(source: RemoteSource, partition: int, start: int, end: int) -> float:
    """Estimate the bytes of a message from the first ones."""
    if start >= end:
        return 0.0
    try:
        with RemoteReader(source, partition, start, end) as reader:
            sent = reader.fetch(_SAMPLE_BYTES)
    except (Damaged, OffsetGone):
        return 0.0
    if sent is None:
        return 0.0
    return len(sent.data) / max(1, sum(header.span for header in sent.headers))


def share_bytes(
    source: LogSource, starts: Sequence[int], ends: Sequence[int], bytes_max: int
) -> tuple[int, ...]:
    """Share about so many bytes by what waits; return the ends, one message further at least."""
    waiting = [end - start for start, end in zip(starts, ends, strict=True)]
    total = sum(waiting)
    if not total:
        return tuple(ends)
    found = tuple(
        _reach(source, number, start, end, bytes_max * waiting[number] // total)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    if found != tuple(starts):
        return found
    most = waiting.index(max(waiting))
    return tuple(start + (number == most) for number, start in enumerate(starts))


def _reach(source: LogSource, partition: int, start: int, end: int, bytes_max: int) -> int:
    if start >= end or not bytes_max:
        return start
    try:
        if isinstance(source, Source):
            return _walked(source, partition, start, end, bytes_max)
        with RemoteReader(source, partition, start, end) as reader:
            sent = reader.fetch(_SAMPLE_BYTES)
        if sent is None:
            return start
        rows = sum(header.span for header in sent.headers)
        return min(end, start + bytes_max * rows // len(sent.data))
    except Damaged:
        return end  # the task that reads reports or skips it


def _walked(source: Source, partition: int, start: int, end: int, bytes_max: int) -> int:
    left = bytes_max
    at = start
    with Reader(source, partition, start, end) as reader:
        while at < end and (extent := reader.extent(min(left, 1 << 20))) is not None:
            for header in extent.headers:
                rows = min(header.end, end) - at
                size = header.length * rows // header.span
                if size > left:
                    return at + rows * left // size
                left -= size
                at += rows
            if not left:
                break
    return min(at, end)
