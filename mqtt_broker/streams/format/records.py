"""Read the messages of a batch one by one, for tools.

A record costs about a microsecond; code that can use columns uses those of the batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, decode_properties
from mqtt_broker.codec.strings import encode_varint
from mqtt_broker.streams.format.batch import NULL, Batch

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RETAIN: Final = 4


class Record(NamedTuple):
    """A message of a stream, with its offset and times."""

    offset: int
    received_us: int
    event_us: int  # NULL: unknown, here and below
    sent_us: int
    topic: str
    client_id: str
    payload: bytes
    qos: int
    retain: bool
    section: bytes  # the properties in the encoding of MQTT 5, without their length

    def properties(self) -> Properties:
        if not self.section:
            return NO_PROPERTIES
        data = encode_varint(len(self.section)) + self.section
        return decode_properties(data, 0, len(data), PUBLISH)[0]


def records(batch: Batch) -> Iterator[Record]:
    """Yield the wanted records of a batch."""
    rows = batch.wanted()
    nulls = [NULL] * batch.count
    flags = batch.flags()
    columns = (
        batch.offsets(),
        batch.received(),
        batch.event() or nulls,
        batch.sent() or nulls,
        batch.topics(),
        batch.client_ids(),
        batch.payloads(),
        flags,
        batch.properties(),
    )
    for offset, received, event, sent, topic, client, payload, about, section in zip(
        *[column[rows] for column in columns], strict=True
    ):
        yield Record(
            offset,
            received,
            event,
            sent,
            topic.decode(),
            client.decode(),
            payload,
            about & 3,
            bool(about & _RETAIN),
            section,
        )


def time_text(at_us: int) -> str | None:
    """Format a time as ISO 8601 in UTC, to the microsecond."""
    if at_us == NULL:
        return None
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")


def as_dict(record: Record, partition: int) -> dict[str, Any]:
    """Return a record for JSON lines; a payload that is not text is base64."""
    found: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "received": time_text(record.received_us),
        "event": time_text(record.event_us),
        "sent": time_text(record.sent_us),
        "topic": record.topic,
        "client_id": record.client_id,
        "qos": record.qos,
        "retain": record.retain,
    }
    try:
        found["payload"] = record.payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = base64.b64encode(record.payload).decode()
    for key, value in record.properties().items():
        name = prop.TABLE[key].name.replace("-", "_")
        if key == prop.USER_PROPERTY:
            found["user_properties"] = [list(pair) for pair in record.properties().user]
        elif isinstance(value, bytes):
            found[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            found[name] = value
    return {key: value for key, value in found.items() if value is not None}
