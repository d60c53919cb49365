"""Encode publications with their stamps.

The stamp is the last property and the parts that are fixed for a flow are cached, so that a
message is built in one pass.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from iot_sim.devices.device import Publication
from iot_sim.judge.ledger import Flow, WillFlow
from iot_sim.judge.stamps import PROPERTY, PROPERTY_HEAD, append, stamp
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import ID_BYTES, publish_head
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import Properties, encode_each
from mqtt_broker.codec.strings import encode_string, encode_varint

_NO_TOPIC: Final = b"\x00\x00"


class Message:
    """A message with its stamp, encoded so that it can be sent again."""

    __slots__ = (
        "body", "flow", "late_us", "payload", "retain", "sent_us", "sequence", "version"
    )  # fmt: skip

    def __init__(
        self,
        flow: Flow,
        sequence: int,
        sent_us: int,
        publication: Publication,
        version: int,
        retain: bool,
        late_us: int = 0,
    ) -> None:
        self.flow = flow
        self.late_us = late_us  # how much later than it was due it is sent
        self.sequence = sequence
        self.sent_us = sent_us
        self.version = version
        self.retain = retain
        payload = publication.payload
        text = stamp(flow.key, sequence, sent_us, payload, late_us)
        if version == V5:
            self.payload = payload
            self.body = b"%b%b%b%b" % (
                _own_properties(publication),
                PROPERTY_HEAD,
                len(text).to_bytes(2, "big"),
                text,
            )
        else:
            self.payload = append(payload, text)
            self.body = b""

    @property
    def topic(self) -> str:
        return self.flow.topic


def encode_message(
    message: Message, packet_id: int, dup: bool, alias: int, is_known: bool
) -> bytes:
    """Encode a PUBLISH; with an alias that the broker knows the topic is left out."""
    flow = message.flow
    topic = _NO_TOPIC if is_known else _encoded_topic(flow.topic)
    if message.version == V5:
        body = message.body
        if alias:
            body = b"\x23" + ID_BYTES[alias] + body
        middle = encode_varint(len(body)) + body
    else:
        middle = b""
    if flow.qos:
        middle = ID_BYTES[packet_id] + middle
    payload = message.payload
    head = publish_head(topic, flow.qos, message.retain, dup, len(middle) + len(payload))
    return head + middle + payload


def encode_will(
    version: int, publication: Publication, delay_s: int, flow: WillFlow, number: int, now_us: int
) -> Will:
    text = stamp(flow.key, number, now_us, publication.payload)
    if version != V5:
        return Will(
            publication.topic,
            append(publication.payload, text),
            publication.qos,
            publication.retain,
        )
    properties = properties_of(publication)
    if delay_s:
        properties[prop.WILL_DELAY_INTERVAL] = delay_s
    properties[prop.USER_PROPERTY] = [*publication.user, (PROPERTY, text.decode())]
    return Will(
        publication.topic, publication.payload, publication.qos, publication.retain, properties
    )


def properties_of(publication: Publication) -> Properties:
    """Return the properties of a publication without those of the stamp."""
    found = Properties()
    if publication.content_type:
        found[prop.CONTENT_TYPE] = publication.content_type
    if publication.response_topic:
        found[prop.RESPONSE_TOPIC] = publication.response_topic
    if publication.correlation:
        found[prop.CORRELATION_DATA] = publication.correlation
    if publication.user:
        found[prop.USER_PROPERTY] = list(publication.user)
    return found


def _own_properties(publication: Publication) -> bytes:
    if publication.response_topic or publication.correlation or publication.user:
        return encode_each(properties_of(publication))
    content_type = publication.content_type
    return _content_type(content_type) if content_type else b""


@lru_cache(256)
def _content_type(text: str) -> bytes:
    return b"\x03" + encode_string(text)


@lru_cache(65_536)
def _encoded_topic(topic: str) -> bytes:
    return encode_string(topic)
