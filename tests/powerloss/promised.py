"""What a broker has promised, read from the packets that it was sent and that it sent.

`Promised.play` goes through the calls of a trace; at any moment its clients say what has to be
found after a loss of power: subscriptions, messages that wait, packet ids, what is retained,
what stands in the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from mqtt_broker.topics.names import matches
from tests.powerloss.traces import Call

_PORT: Final = re.compile(r"^(\d+)")


@dataclass(eq=False)
class Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    publisher: str
    seq: int  # when it came
    is_acknowledged: bool = False
    due: set[str] = field(default_factory=set)  # clients that have to have it
    waits: set[str] = field(default_factory=set)  # and have not taken it yet


@dataclass(eq=False)
class Promise:
    """What one client was told of its session."""

    name: str
    expiry: int = 0
    has_session: bool = False  # something was acknowledged that is in it
    filters: dict[str, int] = field(default_factory=dict)  # acknowledged: filter, QoS
    unsure: set[str] = field(default_factory=set)  # asked for, or asked to go
    open_ids: set[int] = field(default_factory=set)  # PUBREC left
    free_ids: set[int] = field(default_factory=set)  # PUBCOMP left
    sent: dict[int, Message] = field(default_factory=dict)  # to it, under these ids
    released: set[int] = field(default_factory=set)  # PUBREL left
    taken: set[bytes] = field(default_factory=set)  # at QoS 2, and PUBREL left
    is_unsure: bool = False  # a CONNECT came, and no CONNACK left


def _from_client() -> Decoder:
    """It begins with CONNECT."""
    decoder = Decoder(version=V5)
    decoder.version = 0
    return decoder


@dataclass(eq=False)
class Talk:
    """One connection."""

    client: Promise | None = None
    heard: Decoder = field(default_factory=_from_client)
    said: Decoder = field(default_factory=lambda: Decoder(from_server=True, version=V5))
    asked: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    came: dict[int, Message] = field(default_factory=dict)  # by packet id


class Promised:
    def __init__(self) -> None:
        self.clients: dict[str, Promise] = {}
        self.messages: dict[bytes, Message] = {}  # by payload
        self.retained: dict[str, list[Message]] = {}  # by topic, as they came
        self.seq = 0
        self._talks: dict[tuple[int, int], Talk] = {}

    @property
    def acknowledged(self) -> int:
        return sum(message.is_acknowledged for message in self.messages.values())

    def on_call(self, call: Call) -> None:
        """The next call, as it begins; what is received counts then, what is sent too."""
        self.seq += 1
        if call.name in ("accept", "accept4"):
            self._talks[call.life, call.result] = Talk()
            return
        if call.name not in ("recvfrom", "recvmsg", "sendto", "sendmsg", "close"):
            return
        found = _PORT.match(call.args)
        talk = self._talks.get((call.life, int(found[1]))) if found is not None else None
        if talk is None:
            return
        if call.name == "close":
            self._end(call)
        elif call.name in ("recvfrom", "recvmsg"):
            for packet in talk.heard.feed(b"".join(call.texts)[: call.result]):
                assert not isinstance(packet, Violation), packet
                self._hear(talk, packet)
        else:
            data = b"".join(call.texts)
            for packet in talk.said.feed(data[: call.result] if call.end is not None else data):
                assert not isinstance(packet, Violation), packet
                self._say(talk, packet)

    def _end(self, call: Call) -> None:
        talk = self._talks.pop((call.life, call.number(0)))
        if talk.client is not None and not talk.client.expiry:
            self._forget(talk.client)

    def end_life(self) -> None:
        """The process was killed."""
        for talk in self._talks.values():
            if talk.client is not None and not talk.client.expiry:
                self._forget(talk.client)
        self._talks.clear()

    def _forget(self, client: Promise) -> None:
        for message in self.messages.values():
            message.due.discard(client.name)
            message.waits.discard(client.name)
        client.has_session = False
        client.filters.clear()
        client.unsure.clear()
        client.open_ids.clear()
        client.free_ids.clear()
        client.sent.clear()
        client.released.clear()
        client.taken.clear()

    # What the broker heard.

    def _hear(self, talk: Talk, packet: Packet) -> None:
        if isinstance(packet, Connect):
            known = self.clients.setdefault(packet.client_id, Promise(packet.client_id))
            talk.client = known
            known.is_unsure = True
            known.expiry = packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)
            return
        client = talk.client
        assert client is not None
        if isinstance(packet, Publish):
            self._on_publish(talk, client, packet)
        elif isinstance(packet, Subscribe):
            talk.asked[packet.packet_id] = [(one.filter, one.qos) for one in packet.requests]
            client.unsure.update(one.filter for one in packet.requests)
        elif isinstance(packet, Unsubscribe):
            talk.asked[packet.packet_id] = [(text, -1) for text in packet.filters]
            for text in packet.filters:
                client.filters.pop(text, None)
                client.unsure.add(text)
            self._withdraw(client)
        elif isinstance(packet, Ack):
            self._on_ack(client, packet)
        elif isinstance(packet, Disconnect):
            expiry = packet.properties.get(prop.SESSION_EXPIRY_INTERVAL)
            if expiry is not None:
                client.expiry = packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)

    def _withdraw(self, client: Promise) -> None:
        """It asks to get no more of something: what waits may go or stay."""
        for message in self.messages.values():
            if not any(matches(text, message.topic) for text in client.filters):
                message.due.discard(client.name)

    def _on_publish(self, talk: Talk, client: Promise, packet: Publish) -> None:
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            client.free_ids.discard(packet_id)
            message = self.messages.get(payload)
            if message is None:
                message = Message(
                    packet.topic, payload, packet.qos, packet.retain, client.name, self.seq
                )
                self.messages[payload] = message
                for other in self.clients.values():
                    best = max(
                        (q for t, q in other.filters.items() if matches(t, packet.topic)),
                        default=0,
                    )
                    if min(best, packet.qos) and not other.is_unsure:
                        message.due.add(other.name)
                        message.waits.add(other.name)
                if packet.retain:
                    self.retained.setdefault(packet.topic, []).append(message)
            talk.came[packet_id] = message

    def _on_ack(self, client: Promise, packet: Ack) -> None:
        for packet_id in packet.packet_ids:
            if packet.packet_type == PUBREL:
                client.open_ids.discard(packet_id)
            elif packet.packet_type == PUBCOMP:
                client.released.discard(packet_id)
                client.sent.pop(packet_id, None)
            elif packet_id in client.sent:
                client.sent[packet_id].waits.discard(client.name)
                if packet.packet_type == PUBACK:
                    del client.sent[packet_id]

    # What the broker said.

    def _say(self, talk: Talk, packet: Packet) -> None:
        client = talk.client
        assert client is not None
        if isinstance(packet, Connack):
            if not packet.session_present:
                self._forget(client)
            client.is_unsure = False
        elif isinstance(packet, Suback | Unsuback):
            for text, qos in talk.asked.pop(packet.packet_id, ()):
                client.unsure.discard(text)
                if qos >= 0:
                    client.filters[text] = qos
            client.has_session = client.expiry > 0
        elif isinstance(packet, Publish) and packet.qos:
            ids = packet.packet_ids()
            for packet_id, payload in zip(ids, packet.payloads(), strict=True):
                if payload in self.messages:
                    client.sent[packet_id] = self.messages[payload]
        elif isinstance(packet, Ack):
            self._acknowledge(talk, client, packet)

    def _acknowledge(self, talk: Talk, client: Promise, packet: Ack) -> None:
        for packet_id in packet.packet_ids:
            if packet.packet_type in (PUBACK, PUBREC) and packet.reason < 0x80:
                if packet_id in talk.came:
                    talk.came.pop(packet_id).is_acknowledged = True
                if packet.packet_type == PUBREC:
                    client.open_ids.add(packet_id)
                    client.has_session = client.expiry > 0
            elif packet.packet_type == PUBCOMP:
                client.free_ids.add(packet_id)
            elif packet.packet_type == PUBREL and packet_id in client.sent:
                client.released.add(packet_id)
                client.taken.add(client.sent[packet_id].payload)
