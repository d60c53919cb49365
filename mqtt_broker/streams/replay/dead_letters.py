"""Make the message that goes to the dead letters when a record is given up."""

from __future__ import annotations

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.codec.properties import Properties, decode_properties, encode_each
from mqtt_broker.codec.strings import encode_varint
from sessions.messages.message import Message, single
from sessions.sources import SourcedMessage


def dead_letter_of(message: SourcedMessage, stream: str, failures: int, now: float) -> Message:
    """Return the record with its own properties, and its place in the log."""
    envelope = message.envelope
    user = [
        ("stream", stream),
        ("stream-partition", str(message.partition)),
        ("stream-offset", str(message.offset)),
        ("deliveries", str(failures)),
    ]
    body = message.properties + encode_each(Properties({prop.USER_PROPERTY: user}))
    section = encode_varint(len(body)) + body
    properties, _ = decode_properties(section, 0, len(section), PUBLISH)
    return single(
        envelope.topic,
        message.payload,
        qos=1,
        properties=properties,
        section=section,
        publisher=envelope.publisher,
        now=now,
    )
