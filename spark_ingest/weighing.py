"""How far a number of bytes reaches in the log: the limit that triggers have by size.

Files are walked by the headers of their batches, which are read and the rest is not. On another
machine, where even that would be sent, the first batches say how long a message is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqtt_broker.streams.errors import Damaged
from mqtt_broker.streams.reader import Reader
from mqtt_broker.streams.remote import RemoteReader
from mqtt_broker.streams.source import Source
from spark_ingest.reading import LogSource

_SAMPLE_BYTES: Final = 64 << 10


def share_bytes(
    source: LogSource, starts: Sequence[int], ends: Sequence[int], bytes_max: int
) -> tuple[int, ...]:
    """Ends that are about so many bytes further, shared by what waits; one message at least."""
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
        return end  # whoever reads is told, or leaves it out


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
