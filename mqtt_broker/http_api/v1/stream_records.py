"""`/api/v1/streams/NAME/messages`: some messages of a stream as JSON, for people to look at.

Programs read a stream by `/streams/NAME/pK` or by MQTT: these send what is in the files.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final, TypedDict

from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.open_streams import partition_map
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source

_LIMIT: Final = 50
_LIMIT_MAX: Final = 200
_PAYLOAD_MAX: Final = 64 << 10  # bytes of a payload that are sent
_BATCH_BYTES: Final = 64 << 10  # of one read


@dataclass(frozen=True, slots=True)
class RecordsQuery:
    """Where to begin, and how many messages."""

    at: Annotated[
        str,
        Limits(
            chars_max=12_000,
            text="earliest, latest, an ISO 8601 time, or offsets as JSON; empty: the last messages",
        ),
    ] = ""
    limit: Annotated[int, Limits(1, _LIMIT_MAX, text=f"at most {_LIMIT_MAX} messages")] = _LIMIT


class RecordItem(TypedDict):
    """A message of a stream."""

    partition: int
    offset: int
    received_at: float
    topic: str
    client: str
    qos: int
    retain: bool
    payload_bytes: int
    payload_base64: Annotated[str, Limits(text="the first 64 KiB of the payload")]


class Records(TypedDict):
    """Messages by the time they were received, and where the next ones begin."""

    items: list[RecordItem]
    next: Annotated[dict[str, int], Limits(text="offsets, for `at` of the next request")]


def operations(site: Site) -> list[Operation]:
    """Return the operation that shows messages of a stream."""

    async def show(name: str, query: RecordsQuery) -> Records:
        """Show messages of a stream: the last ones, or those from an offset or a time on."""

        def work(source: Source) -> Records:
            return read_records(source, query.at, query.limit)

        return await site.in_thread(site.streams().use, name, work)

    return [get("/api/v1/streams/{name}/messages", show)]


def read_records(source: Source, at: str, limit: int) -> Records:
    """Read at most `limit` messages of all partitions, in the order in which they were received."""
    if not at:
        return _last_records(source, limit)
    following = list(source.resolve(at).ends)
    kept = list(islice(_merged(source, following, source.ends().ends, limit), limit))
    for number, record in kept:
        following[number] = record.offset + 1
    return {"items": [_item(*one) for one in kept], "next": partition_map(following)}


def _last_records(source: Source, limit: int) -> Records:
    ends = source.ends().ends
    starts = [max(a, z - limit) for a, z in zip(source.starts().ends, ends, strict=True)]
    kept = heapq.nlargest(limit, _merged(source, starts, ends, limit), key=_received)
    return {"items": [_item(*one) for one in reversed(kept)], "next": partition_map(ends)}


def _merged(
    source: Source, starts: Sequence[int], ends: Sequence[int], limit: int
) -> Iterator[tuple[int, Record]]:
    """Yield the messages of all partitions by the time they were received."""
    return heapq.merge(
        *(
            _records(source, number, start, end, limit)
            for number, (start, end) in enumerate(zip(list(starts), ends, strict=True))
        ),
        key=_received,
    )


def _received(one: tuple[int, Record]) -> tuple[int, int]:
    return one[1].received_us, one[1].offset


def _records(
    source: Source, number: int, start: int, end: int, limit: int
) -> Iterator[tuple[int, Record]]:
    """Yield the next records of a partition, at most `limit` of them."""
    if start >= end:
        return
    left = limit
    with Reader(source, number, start, end) as reader:
        while left > 0 and (batches := reader.read(_BATCH_BYTES)):
            for batch in batches:
                for record in islice(records(batch), left):
                    left -= 1
                    yield number, record


def _item(partition: int, record: Record) -> RecordItem:
    return {
        "partition": partition,
        "offset": record.offset,
        "received_at": record.received_us / 1e6,
        "topic": record.topic,
        "client": record.client_id,
        "qos": record.qos,
        "retain": record.retain,
        "payload_bytes": len(record.payload),
        "payload_base64": base64.b64encode(record.payload[:_PAYLOAD_MAX]).decode(),
    }
