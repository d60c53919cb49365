"""An application message, and its bytes for each kind of receiver.

The messages of a burst that differ only in payload share one `Envelope`; a `Message` is an
envelope and a payload. The envelope is encoded once for each wire layout (version, QoS, retain
flag, subscription identifiers), not for each receiver: encoding costs 211 ns, sharing 7 ns.
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
    properties_of,
    without,
)
from mqtt_broker.codec.strings import decode_varint, encode_string, encode_varint

# Properties that are not forwarded.
_HOP: Final = frozenset(
    {
        prop.TOPIC_ALIAS,
        prop.SUBSCRIPTION_IDENTIFIER,
        prop.MESSAGE_EXPIRY_INTERVAL,
        prop.WILL_DELAY_INTERVAL,
    }
)
Ids = tuple[int, ...]
# Of one envelope: a retained message meets every identifier there is. Of large ones less is kept.
_LAYOUTS_MAX: Final = 32
_LAYOUTS_BYTES_MAX: Final = 4096
_FORWARDED_BYTES_MAX: Final = 256
# Of a message that waits, beside what came with it: measured. Its objects are 300 bytes, its place
# in a queue or window 100.
MESSAGE_OVERHEAD_BYTES: Final = 400
_SECTION_OVERHEAD_BYTES: Final = 200  # more for a message with properties
_SETTLED_BYTES: Final = 340  # of a message and its envelope, without any text or bytes


class Share(Protocol):
    """A shared subscription; `name` is its full filter, `$share/<group>/<filter>`."""

    name: str
    session_number: int  # in the store; 0: nothing is stored


class DeliveryOptions:
    """The QoS, retain flag and identifiers with which a message goes to one session.

    `group` is the shared subscription that the message comes from; None: an ordinary one.
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

    The QoS is the smaller of both. [MQTT-3.8.4-8], [MQTT-3.3.4-4] Options without identifiers and
    group, which nearly all are, are shared objects.
    """
    if group is None and not subscription_ids:
        return _PLAIN_OPTIONS[2 * qos + retain]
    return _options_by_qos(qos, retain, subscription_ids, group)


def _options_by_qos(
    qos: int, retain: bool, subscription_ids: Ids, group: Share | None
) -> OptionsByQos:
    return (
        DeliveryOptions(0, retain, subscription_ids, group),
        DeliveryOptions(min(1, qos), retain, subscription_ids, group),
        DeliveryOptions(min(2, qos), retain, subscription_ids, group),
    )


_PLAIN_OPTIONS: Final = [
    _options_by_qos(qos, retain, (), None) for qos in (0, 1, 2) for retain in (False, True)
]


class Envelope:
    """The topic, properties and flags that the messages of one burst share."""

    __slots__ = (
        "_first_key",
        "_first_layout",
        "_forwarded",
        "_has_hop",
        "_own_key",
        "_own_layout",
        "_topic_bytes",
        "expires_at",
        "expiry_interval",
        "is_settled",
        "layouts",
        "payload_bytes",
        "properties",
        "publisher",
        "qos",
        "received_at",
        "retain",
        "section",
        "size",
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
        self.properties = properties  # until it is published; then `decoded`
        self.payload_bytes = payload_bytes
        self.publisher = publisher
        self.received_at = now
        self.expiry_interval = -1
        self.expires_at = 0.0  # 0: never
        self._has_hop = False
        if properties:
            self._has_hop = not _HOP.isdisjoint(properties)
            if prop.MESSAGE_EXPIRY_INTERVAL in properties:
                self.expiry_interval = properties.number(prop.MESSAGE_EXPIRY_INTERVAL)
                self.expires_at = now + self.expiry_interval
        self.section = section  # the properties as they came
        # What one waiting message of this burst counts against the limits of memory. Topic and
        # properties are there twice, as they came and as they are sent.
        self.size = (
            MESSAGE_OVERHEAD_BYTES
            + 2 * topic.__sizeof__()
            + 2 * len(section)
            + len(publisher)
            + payload_bytes
        )
        if section:
            self.size += _SECTION_OVERHEAD_BYTES
        self.is_settled = False
        self._topic_bytes = b""
        self._forwarded: bytes | None = None
        self.layouts: dict[object, tuple[bytes, bytes]] | None = None
        self._first_key: object = None
        self._first_layout = (b"", b"")
        self._own_key = -1
        self._own_layout = (b"", b"")

    def forget_properties(self) -> None:
        """Keep them as they came and no more: decoded, they take up to twenty times as much."""
        self.properties = NO_PROPERTIES

    def decoded(self) -> Properties:
        """Return the properties, decoded again if need be."""
        return self.properties or (properties_of(self.section) if self.section else NO_PROPERTIES)

    def is_expired(self, now: float) -> bool:
        return self.expiry_interval >= 0 and now >= self.expires_at

    def layout(self, v5: bool, options: DeliveryOptions, now: float) -> tuple[bytes, bytes]:
        """Return the head, up to the topic, and the property section; the packet id goes between.

        It is for messages that are sent for the first time, without DUP. [MQTT-4.3.3-2]
        """
        plain = options.qos << 2 | options.retain << 1 | v5
        key: object = plain
        if options.subscription_ids or self.expires_at:
            key = (plain, options.subscription_ids, int(now - self.received_at))
        elif plain == self._own_key:
            return self._own_layout
        layouts = self.layouts
        if layouts is None:  # with one kind of receiver there is one layout, and no table
            if self._first_key == key:
                return self._first_layout
            if self.is_settled:
                return self.encode(v5, options, now, alias=0, known=False, dup=False)
            if self._first_key is None:
                self._first_key = key
                self._first_layout = self.encode(v5, options, now, alias=0, known=False, dup=False)
                return self._first_layout
            layouts = self.layouts = {}
        found = layouts.get(key)
        if found is None:
            if layouts and (
                len(layouts) >= _LAYOUTS_MAX
                or len(layouts) * (len(self.section) + len(self.topic)) >= _LAYOUTS_BYTES_MAX
            ):
                layouts.clear()
            found = layouts[key] = self.encode(v5, options, now, alias=0, known=False, dup=False)
        return found

    def use_layout(self, v5: bool, qos: int, head: bytes, section: bytes) -> None:
        """Use the bytes of the publisher for receivers with the same version and QoS."""
        self._own_key = qos << 2 | v5
        self._own_layout = (head, section)

    def share_topic(self, topic: str) -> None:
        """Use this object for the topic, which is the same text: of one topic it is kept once."""
        self.topic = topic

    def settle(self) -> None:
        """Drop what was made for receivers, and keep nothing of it from now on.

        For a message that stays once it is delivered.
        """
        self.is_settled = True
        self.properties = NO_PROPERTIES
        self.layouts = self._forwarded = None
        self._topic_bytes = b""
        self._first_key = None
        self._own_key = -1
        self._first_layout = self._own_layout = (b"", b"")

    def encode(
        self, v5: bool, options: DeliveryOptions, now: float, *, alias: int, known: bool, dup: bool
    ) -> tuple[bytes, bytes]:
        """Encode a layout that is not shared: with a Topic Alias, or with DUP."""
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
        if self._topic_bytes:
            return self._topic_bytes
        encoded = encode_string(self.topic)
        if not self.is_settled:
            self._topic_bytes = encoded
        return encoded

    @property
    def forwarded(self) -> bytes:
        """The properties that are forwarded to receivers, as they came, without their length."""
        section = self.section
        if not section:
            return b""
        found = self._forwarded
        if found is None:
            if self._has_hop:
                found = without(section, _HOP)
            else:
                found = section[decode_varint(section, 0, len(section))[1] :]
            if len(found) <= _FORWARDED_BYTES_MAX and not self.is_settled:
                self._forwarded = found
        return found

    def _encode_section(self, subscription_ids: Ids, now: float, alias: int) -> bytes:
        """Encode the publisher's properties in their order, followed by ours.

        Response Topic [MQTT-3.3.2-15], Correlation Data [MQTT-3.3.2-16], User Properties
        [MQTT-3.3.2-17] and Content Type [MQTT-3.3.2-20] are forwarded unchanged.
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

    __slots__ = ("envelope", "holders", "message_number", "payload")

    def __init__(self, envelope: Envelope, payload: bytes) -> None:
        self.envelope = envelope
        self.payload = payload
        self.holders = 0  # windows of clients that it is under way to
        self.message_number = 0  # in the store; 0: not stored

    @property
    def settled_bytes(self) -> int:
        """About the bytes that the message keeps when it is settled, without its topic."""
        return _SETTLED_BYTES + len(self.payload) + len(self.envelope.section)


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
    """Build a message that is not part of a burst: a will, a `$SYS` value, a dead letter."""
    if properties and not section:
        section = encode_properties(properties)
    envelope = Envelope(topic, qos, retain, properties, section, len(payload), publisher, now)
    return Message(envelope, payload)
