"""Remove whole sealed segments of a stream by age and by size.

A segment is removed when all of its records are older than `retain_s`, by the broker's clock at
receipt, and only from the front, so that no gap is left. When a stream has more than `max_bytes` in
all partitions together, the segment with the oldest end is removed, in any partition. The active
segment is never removed; it is sealed at the age of `seal_s`, whether or not it is still written
to. Sealing needs disk space and removing frees it, so a failure to seal does not prevent removing.
"""

from __future__ import annotations

from mqtt_broker.streams.format.batch import NEVER
from mqtt_broker.streams.write.partition import Partition
from mqtt_broker.streams.write.stream import Stream


def expired(partition: Partition, now_us: int) -> int:
    """Return how many segments at the front are too old."""
    retain_s = partition.settings.retain_s
    if not retain_s:
        return 0
    before_us = now_us - retain_s * 1_000_000
    catalog = partition.catalog
    count = 0
    while count < len(catalog) and catalog[count].max_us < before_us:
        count += 1
    return count


def surplus(stream: Stream) -> list[int]:
    """Return how many segments at the front of each partition exceed `max_bytes`."""
    counts = [0] * len(stream.partitions)
    limit = stream.settings.max_bytes
    if not limit:
        return counts
    total = sum(partition.size for partition in stream.partitions)
    while total > limit:
        oldest_us = NEVER
        oldest = -1
        for number, partition in enumerate(stream.partitions):
            if counts[number] < len(partition.catalog):
                segment = partition.catalog[counts[number]]
                if segment.max_us < oldest_us:
                    oldest, oldest_us = number, segment.max_us
        if oldest < 0:
            break
        total -= stream.partitions[oldest].catalog[counts[oldest]].size
        counts[oldest] += 1
    return counts


def apply(stream: Stream, now_us: int) -> int:
    """Remove segments that are due; return how many. A failure to seal is raised at the end."""
    removed = 0
    failure: OSError | None = None
    for partition in stream.partitions:
        try:
            partition.roll_if_due(now_us)
        except OSError as error:
            failure = error
        count = expired(partition, now_us)
        partition.remove_first(count)
        removed += count
    for partition, count in zip(stream.partitions, surplus(stream), strict=True):
        partition.remove_first(count)
        removed += count
    if failure is not None:
        raise failure
    return removed


def trim(stream: Stream, before: tuple[int, ...]) -> int:
    """Remove whole segments that end at or before these offsets, the active one included."""
    removed = 0
    for partition, offset in zip(stream.partitions, before, strict=True):
        removed += _remove_before(partition, offset)
        if offset >= partition.end and partition.roll():
            removed += _remove_before(partition, offset)
    return removed


def _remove_before(partition: Partition, offset: int) -> int:
    catalog = partition.catalog
    count = 0
    while count < len(catalog) and catalog[count].end <= offset:
        count += 1
    partition.remove_first(count)
    return count
