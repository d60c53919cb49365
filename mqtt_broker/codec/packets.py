"""Packet classes: plain data, for both directions and all versions.

PUBLISH and the acknowledgements represent *runs*: consecutive packets that differ only in payload
and packet id are one object, so that a burst costs one pass through the broker. A single packet
is a run of one. Fields of MQTT 5 are empty in 3.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mqtt_broker.codec.properties import NO_PROPERTIES, USER_PROPERTY, Properties

_CONNECT_BYTES: Final = 600  # of a decoded CONNECT, beside its strings


@dataclass(slots=True)
class Will:
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES
    section: bytes = field(default=b"", compare=False)  # the properties as received


@dataclass(slots=True)
class Connect:
    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    properties: Properties = NO_PROPERTIES
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None

    @property
    def size(self) -> int:
        """The bytes that it takes in memory, about: strings are counted as they are kept."""
        size = _CONNECT_BYTES + self.client_id.__sizeof__()
        if self.username is not None:
            size += self.username.__sizeof__()
        if self.password is not None:
            size += len(self.password)
        for value in self.properties.values():
            size += value.__sizeof__()
        if self.will is not None:
            will = self.will
            size += will.topic.__sizeof__() + len(will.payload) + len(will.section)
            for value in will.properties.values():
                size += value.__sizeof__()
        return size

    def forget_user_properties(self) -> None:
        """Drop the decoded user properties: nobody asks for them, and many short ones take twenty
        times the bytes that they came in. A will keeps its own as they came.
        """
        self.properties.pop(USER_PROPERTY, None)
        if self.will is not None:
            self.will.properties.pop(USER_PROPERTY, None)


@dataclass(slots=True)
class Connack:
    session_present: bool
    reason: int
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True, init=False)
class Publish:
    """A run of `count` PUBLISH packets of `size` bytes each, as received, in `raw`.

    They differ only in packet id and payload. In each packet the id is at `id_at` (QoS 1 and 2)
    and the payload begins at `payload_at`.
    """

    topic: str
    qos: int
    retain: bool
    dup: bool
    properties: Properties
    raw: bytes
    count: int
    size: int
    id_at: int
    payload_at: int

    # Not a dataclass, whose generated methods are never compiled: that costs 0.4 us a packet.
    def __init__(
        self,
        topic: str,
        qos: int,
        retain: bool,
        dup: bool,
        properties: Properties,
        raw: bytes,
        count: int,
        size: int,
        id_at: int,
        payload_at: int,
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.properties = properties
        self.raw = raw
        self.count = count
        self.size = size
        self.id_at = id_at
        self.payload_at = payload_at

    def packet_ids(self) -> list[int]:
        raw = self.raw
        return [raw[at] << 8 | raw[at + 1] for at in range(self.id_at, len(raw), self.size)]

    def payloads(self) -> list[bytes]:
        raw, size, skip = self.raw, self.size, self.payload_at
        if self.count == 1:
            return [raw[skip:]]
        return [raw[at + skip : at + size] for at in range(0, len(raw), size)]

    def part(self, first: int, end: int) -> Publish:
        """Return the packets from `first` to `end` as a run."""
        if end - first == self.count:
            return self
        return Publish(
            self.topic,
            self.qos,
            self.retain,
            self.dup,
            self.properties,
            self.raw[first * self.size : end * self.size],
            end - first,
            self.size,
            self.id_at,
            self.payload_at,
        )

    @property
    def section(self) -> bytes:
        """The properties as received, with their length; empty in 3.1.1."""
        return self.raw[self.id_at + (2 if self.qos else 0) : self.payload_at]

    @property
    def payload(self) -> bytes:
        """The first message's payload."""
        return self.raw[self.payload_at : self.size]

    @property
    def packet_id(self) -> int:
        """The first message's packet id; 0 at QoS 0."""
        if not self.qos:
            return 0
        return self.raw[self.id_at] << 8 | self.raw[self.id_at + 1]


@dataclass(slots=True, init=False)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (`packet_type`) for each of `packet_ids`."""

    packet_type: int
    packet_ids: list[int]
    reason: int
    properties: Properties

    def __init__(
        self,
        packet_type: int,
        packet_ids: list[int],
        reason: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.packet_type = packet_type
        self.packet_ids = packet_ids
        self.reason = reason
        self.properties = properties


@dataclass(slots=True)
class SubscriptionRequest:
    """A Topic Filter of a SUBSCRIBE with the fields of its options byte."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    requests: list[SubscriptionRequest]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Suback:
    packet_id: int
    reasons: list[int]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: list[str]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsuback:
    packet_id: int
    reasons: list[int] = field(default_factory=list)
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pingreq:
    pass


@dataclass(slots=True)
class Pingresp:
    pass


@dataclass(slots=True)
class Disconnect:
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
