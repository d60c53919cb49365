"""An application message on its way, and its bytes for each kind of receiver.

A burst of messages that differ only in payload shares one `Envelope`; a `Message` is an
envelope and a payload. The envelope is encoded once for each wire layout (version, QoS, retain
flag, subscription identifiers), however many receivers there are: encoding for each costs
211 ns, sharing 7.
"""

from __future__ import annotations

from typing import Final, Protocol

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.encode import NO_PROPERTIES_V5, publish_head
from mqtt_broker.codec.properties import (
    NO_PROPERTIES,
    Properties,
    encode_each,
    encode_properties,
    without,
)
from mqtt_broker.codec.strings import encode_string, encode_varint

# Properties of one hop, which are not forwarded.
_HOP: Final = frozenset(
    {
        prop.TOPIC_ALIAS,
        prop.SUBSCRIPTION_IDENTIFIER,
        prop.MESSAGE_EXPIRY_INTERVAL,
        prop.WILL_DELAY_INTERVAL,
    }
)
Ids = tuple[int, ...]
_LAYOUTS_MAX: Final = 32  # of one envelope: a retained message meets every identifier there is
MESSAGE_OVERHEAD_BYTES: Final = 120  # of a queued message, beside topic and payload


class Share(Protocol):
    """A shared subscription; `name` is its whole filter, `$share/<group>/<filter>`."""

    name: str
    session_number: int  # in the store; 0: nothing of it is there


class DeliveryOptions:
    """The QoS, retain flag and identifiers with which a message goes to one session.

    `group` is the shared subscription that it comes from, None for an ordinary one.
    """

    __slots__ = ("group", "qos", "retain", "subscription_ids")

    def __init__(
        self, qos: int, retain: bool = False, subscription_ids: Ids = (), group: Share | None = None
    ) -> None:
        self.qos = qos
        self.retain = retain
        self.subscription_ids = subscription_ids
        self.group = group


OptionsByQos = tuple[DeliveryOptions, DeliveryOptions, DeliveryOptions]  # by the QoS of the message


def options_by_qos(
    qos: int, retain: bool, subscription_ids: Ids, group: Share | None = None
) -> OptionsByQos:
    """Return the options of a subscription at `qos` for messages at QoS 0, 1 and 2.

    They have the smaller QoS, and the identifiers of all. [MQTT-3.8.4-8], [MQTT-3.3.4-4]
    """
    return (
        DeliveryOptions(0, retain, subscription_ids, group),
        DeliveryOptions(min(1, qos), retain, subscription_ids, group),
        DeliveryOptions(min(2, qos), retain, subscription_ids, group),
    )


class Envelope:
    """The topic, properties and flags that the messages of one burst share."""

    __slots__ = (
        "_forwarded",
        "_layouts",
        "_own_key",
        "_own_layout",
        "_topic_bytes",
        "expires_at",
        "expiry_interval",
        "payload_bytes",
        "properties",
        "publisher",
        "qos",
        "received_at",
        "retain",
        "section",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        qos: int,
        retain: bool,
        properties: Properties,
        section: bytes,
        payload_bytes: int,
        publisher: str,
        now: float,
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.payload_bytes = payload_bytes
        self.publisher = publisher
        self.received_at = now
        self.expiry_interval = -1
        self.expires_at = 0.0  # 0: never
        if properties and prop.MESSAGE_EXPIRY_INTERVAL in properties:
            self.expiry_interval = properties.number(prop.MESSAGE_EXPIRY_INTERVAL)
            self.expires_at = now + self.expiry_interval
        self.section = section  # the properties as they came
        self._topic_bytes = b""
        self._forwarded: bytes | None = None
        self._layouts: dict[object, tuple[bytes, bytes]] | None = None
        self._own_key = -1
        self._own_layout = (b"", b"")

    @property
    def size(self) -> int:
        """The bytes that one waiting message of this burst counts against the memory limits."""
        return MESSAGE_OVERHEAD_BYTES + len(self.topic) + len(self.section) + self.payload_bytes

    def is_expired(self, now: float) -> bool:
        return self.expiry_interval >= 0 and now >= self.expires_at

    def layout(self, v5: bool, options: DeliveryOptions, now: float) -> tuple[bytes, bytes]:
        """Return the head up to the topic and the property section; a packet id goes between.

        For a message that is sent the first time, which is without DUP. [MQTT-4.3.3-2]
        """
        plain = options.qos << 2 | options.retain << 1 | v5
        key: object = plain
        if options.subscription_ids or self.expires_at:
            key = (plain, options.subscription_ids, int(now - self.received_at))
        elif plain == self._own_key:
            return self._own_layout
        layouts = self._layouts
        if layouts is None:
            layouts = self._layouts = {}
        found = layouts.get(key)
        if found is None:
            if len(layouts) >= _LAYOUTS_MAX:
                layouts.clear()
            found = layouts[key] = self.encode(v5, options, now, alias=0, known=False, dup=False)
        return found

    def use_layout(self, v5: bool, qos: int, head: bytes, section: bytes) -> None:
        """Use the bytes of the publisher for receivers with the same version and QoS."""
        self._own_key = qos << 2 | v5
        self._own_layout = (head, section)

    def encode(
        self, v5: bool, options: DeliveryOptions, now: float, *, alias: int, known: bool, dup: bool
    ) -> tuple[bytes, bytes]:
        """Encode a layout that is not shared: one with an alias, or of a repeated message."""
        section = self._encode_section(options.subscription_ids, now, alias) if v5 else b""
        behind = (2 if options.qos else 0) + len(section) + self.payload_bytes
        topic = b"\x00\x00" if known else self.topic_bytes
        return publish_head(topic, options.qos, options.retain, dup, behind), section

    def encode_qos0(
        self, v5: bool, options: DeliveryOptions, payloads: list[bytes], now: float
    ) -> bytes:
        """Encode messages of the burst at QoS 0 without DUP, back to back. [MQTT-4.3.1-1]"""
        head, section = self.layout(v5, options, now)
        head += section
        if len(payloads) == 1:
            return head + payloads[0]
        return b"".join([head + payload for payload in payloads])

    @property
    def topic_bytes(self) -> bytes:
        if not self._topic_bytes:
            self._topic_bytes = encode_string(self.topic)
        return self._topic_bytes

    @property
    def forwarded(self) -> bytes:
        """The properties that are forwarded to receivers, as they came, without their length."""
        if self._forwarded is None:
            self._forwarded = without(self.section, _HOP) if self.properties else b""
        return self._forwarded

    def _encode_section(self, subscription_ids: Ids, now: float, alias: int) -> bytes:
        """Encode the properties of the publisher, in their order, and ours behind them.

        Response Topic [MQTT-3.3.2-15], Correlation Data [MQTT-3.3.2-16], User Properties
        [MQTT-3.3.2-17] and Content Type [MQTT-3.3.2-20] are forwarded as they came.
        """
        forwarded = self.forwarded
        if not (forwarded or subscription_ids or alias or self.expiry_interval >= 0):
            return NO_PROPERTIES_V5
        ours = Properties()
        if self.expiry_interval >= 0:  # [MQTT-3.3.2-6]
            waited = max(0, int(now - self.received_at))  # the clock may have been set back
            ours[prop.MESSAGE_EXPIRY_INTERVAL] = max(0, self.expiry_interval - waited)
        if alias:
            ours[prop.TOPIC_ALIAS] = alias
        if subscription_ids:  # [MQTT-3.3.4-3]
            ours[prop.SUBSCRIPTION_IDENTIFIER] = list(subscription_ids)
        body = forwarded + encode_each(ours)
        return encode_varint(len(body)) + body


class Message:
    """An application message."""

    __slots__ = ("envelope", "message_number", "payload")

    def __init__(self, envelope: Envelope, payload: bytes) -> None:
        self.envelope = envelope
        self.payload = payload
        self.message_number = 0  # in the store; 0: it is not there


def single(
    topic: str,
    payload: bytes,
    *,
    qos: int = 0,
    retain: bool = False,
    properties: Properties = NO_PROPERTIES,
    section: bytes = b"",
    publisher: str = "",
    now: float = 0.0,
) -> Message:
    """Build a message that is no part of a burst: a will, a `$SYS` value, one of our own."""
    if properties and not section:
        section = encode_properties(properties)
    envelope = Envelope(topic, qos, retain, properties, section, len(payload), publisher, now)
    return Message(envelope, payload)
