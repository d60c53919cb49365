"""An honest MQTT client with its own Session State, as plain as can be.

It answers in the order asked, keeps to the server's Receive Maximum, repeats what it has to
after a reconnect and nothing else, and lets go of everything when the server says that there
was no session. What the application got stands in `got`.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V31
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import PINGREQ_BYTES, encode_ack, encode_from_client, encode_publish
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
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from tests.sim.wire import Wire

if TYPE_CHECKING:
    from tests.sim.world import World

ALLOWED_REASONS = {0x8E, 0x8D, 0x8B}  # taken over, keep alive, shutting down
TIGHT_BYTES = 1 << 20  # unread of all: one turn of these clients may bring more than less


class Sent:
    """A message of ours that the server has not finished."""

    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool, expiry: int) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.expiry = expiry


class Client:
    def __init__(self, world: World, name: str, version: int) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.version = version
        self.is_persistent = rng.random() < 0.7
        self.expiry = 0
        if self.is_persistent:
            self.expiry = rng.choice([0xFFFF_FFFF, 0xFFFF_FFFE, 3])
        if version < V5 and self.is_persistent:
            self.expiry = 0xFFFF_FFFF
        self.receive_maximum = rng.choice([1, 2, 5, 65_535]) if version == V5 else 65_535
        self.packet_bytes_max = rng.choice([0, 0, 200]) if version == V5 else 0
        self.alias_maximum = rng.choice([0, 0, 1, 3]) if version == V5 else 0
        self.keep_alive = rng.choice([0, 0, 4])
        self.will_delay = rng.choice([None, None, 0, 2])
        self.read_pause_s = rng.choice([0.0, 0.0, 0.5, 3.0])
        self.ack_pause_s = rng.choice([0.0, 0.0, 0.1, 1.0])
        self.wants: dict[str, SubscriptionRequest] = {}
        self.identifiers: dict[str, int] = {}
        # The session.
        self.unacked: dict[int, Sent] = {}
        self.released: dict[int, None] = {}
        self.received: set[int] = set()  # QoS 2 ids of the server that are open
        self._last_id = 0
        self.waiting: deque[Sent] = deque()
        self.asked: dict[int, Subscribe | Unsubscribe] = {}
        # The connection.
        self.wire: Wire | None = None
        self.is_online = False
        self.is_stopped = False  # does not come back by itself
        self.clean = not self.is_persistent
        self.left_at = world.now
        self.is_fresh = False  # knows that its session has ended
        self._decoder: Decoder
        self._answers: deque[bytes] = deque()
        self._answering = False
        self._send_limit = 65_535
        self._alias_limit = 0
        self._aliases: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._serial = 0
        # The application.
        self.got: Counter[tuple[str, bytes, int]] = Counter()

    # Coming and going.

    def connect(self) -> None:
        assert self.wire is None
        self.wire = self.world.wire(self)
        self._decoder = Decoder(from_server=True, version=self.version)
        self._answers.clear()
        self._aliases.clear()
        self._names.clear()
        self.asked.clear()
        if self.version == V5 and self.world.now >= self.left_at + self.expiry:
            # Our own copy ends in time as well: a CONNACK that is lost on its way would
            # else hide that the server has begun anew.
            self.is_fresh = True
        found = Properties()
        if self.version == V5:
            if self.expiry:
                found[prop.SESSION_EXPIRY_INTERVAL] = self.expiry
            if self.receive_maximum < 65_535:
                found[prop.RECEIVE_MAXIMUM] = self.receive_maximum
            if self.packet_bytes_max:
                found[prop.MAXIMUM_PACKET_SIZE] = self.packet_bytes_max
            if self.alias_maximum:
                found[prop.TOPIC_ALIAS_MAXIMUM] = self.alias_maximum
        clean = self.clean or self.is_fresh
        packet = Connect(self.version, self.name, clean, self.keep_alive, found, self._will())
        self.wire.send(encode_from_client(self.version, packet))

    def _will(self) -> Will | None:
        if self.will_delay is None or self.world.is_draining:
            return None
        found = Properties()
        if self.will_delay and self.version == V5:
            found[prop.WILL_DELAY_INTERVAL] = self.will_delay
        self._serial += 1
        payload = f"will {self.name} {self._serial}".encode()
        return Will("m/will", payload, self.world.rng.randrange(3), False, found)

    def vanish(self) -> None:
        """The network fails."""
        if self.wire is not None:
            wire, rng = self.wire, self.world.rng
            wire.cut(tell_s=rng.choice([0.0, 0.1, 5.0, None]))
            self.on_end(wire)

    def leave(self) -> None:
        """DISCONNECT, and close in order."""
        if self.wire is not None and self.is_online:
            self.wire.send(encode_from_client(self.version, Disconnect(0)))
            wire = self.wire
            wire.finish()
            self.on_end(wire)

    def on_end(self, wire: Wire) -> None:
        if wire is not self.wire:
            return
        self.wire = None
        self.is_online = False
        self.left_at = self.world.now
        if not self.is_stopped:
            self.world.after(self.world.rng.choice([0.0, 0.5, 4.0]), self._return)

    def _return(self) -> None:
        if self.wire is None and not self.is_stopped:
            self.connect()

    # What arrives.

    def on_bytes(self, wire: Wire, data: bytes) -> None:
        if wire is not self.wire:
            return
        for packet in self._decoder.feed(data):
            if isinstance(packet, Violation):
                raise AssertionError(f"{self.name}: the broker wrote nonsense: {packet}")
            self._on_packet(packet)
            if self.wire is not wire:
                return

    def _on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Publish):
            self._on_publish(packet)
        elif isinstance(packet, Ack):
            for packet_id in packet.packet_ids:
                self._on_ack(packet.packet_type, packet_id, packet.reason)
            self._pump()
        elif isinstance(packet, Suback | Unsuback):
            request = self.asked.pop(packet.packet_id)
            if isinstance(packet, Suback):
                assert isinstance(request, Subscribe)
                assert packet.reasons == [one.qos for one in request.requests], packet
        elif isinstance(packet, Disconnect):
            is_tight = self.world.settings.outbox_total_bytes_max < TIGHT_BYTES
            allowed = ALLOWED_REASONS | ({QUOTA_EXCEEDED} if is_tight else set())
            assert packet.reason in allowed, f"{self.name}: {packet}"

    def _on_connack(self, packet: Connack) -> None:
        assert packet.reason == 0, packet
        self.is_online = True
        self._send_limit = packet.properties.number(prop.RECEIVE_MAXIMUM, 65_535)
        self._alias_limit = packet.properties.number(prop.TOPIC_ALIAS_MAXIMUM)
        is_kept = packet.session_present
        if self.version == V31:  # it is not told
            is_kept = not self.clean
        self.is_fresh = False
        if not is_kept:
            self.unacked.clear()
            self.released.clear()
            self.received.clear()
        self._resend()
        if not is_kept or self.version == V31:
            for text in list(self.wants):
                self.subscribe(text)
        if self.keep_alive:
            wire = self.wire
            assert wire is not None
            self.world.after(self.keep_alive / 2, lambda: self._ping(wire))
        self._pump()

    def _resend(self) -> None:
        assert self.wire is not None
        for packet_id, sent in self.unacked.items():
            self.wire.send(self._encode(packet_id, sent, dup=True))
        for packet_id in self.released:
            self.wire.send(encode_ack(PUBREL, packet_id))

    def _ping(self, wire: Wire) -> None:
        if self.wire is wire and not wire.is_cut:
            wire.send(PINGREQ_BYTES)
            self.world.after(self.keep_alive / 2, lambda: self._ping(wire))

    def _on_publish(self, packet: Publish) -> None:
        topic = packet.topic
        alias = packet.properties.number(prop.TOPIC_ALIAS)
        if alias:
            assert alias <= self.alias_maximum
            topic = topic or self._names[alias]
            self._names[alias] = topic
        assert topic
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            if packet.qos == 1:
                self._answer(encode_ack(PUBACK, packet_id))
            elif packet.qos == 2:
                self._answer(encode_ack(PUBREC, packet_id))
                if packet_id in self.received:
                    continue
                self.received.add(packet_id)
            self.on_message(topic, payload, packet.qos)

    def on_message(self, topic: str, payload: bytes, qos: int) -> None:
        """The application gets it."""
        self.got[topic, payload, qos] += 1

    def _on_ack(self, packet_type: int, packet_id: int, reason: int) -> None:
        assert reason in (0, 0x10), f"{self.name}: refused with 0x{reason:02X}"
        if packet_type == PUBREL:
            self.received.discard(packet_id)
            self._answer(encode_ack(PUBCOMP, packet_id))
        elif packet_type == PUBACK:
            assert self.unacked.pop(packet_id).qos == 1
        elif packet_type == PUBREC:
            # A repeated PUBLISH may be answered twice; the second finds it released.
            if packet_id in self.unacked:
                assert self.unacked.pop(packet_id).qos == 2
                self.released[packet_id] = None
            assert packet_id in self.released
            assert self.wire is not None
            self.wire.send(encode_ack(PUBREL, packet_id))
        else:
            self.released.pop(packet_id, None)

    def _answer(self, data: bytes) -> None:
        """Acknowledge in order, perhaps later."""
        self._answers.append(data)
        if not self._answering:
            self._answering = True
            pause = 0.0 if self.world.is_draining else self.ack_pause_s
            self.world.after(self.world.rng.random() * pause, self._answer_now)

    def _answer_now(self) -> None:
        self._answering = False
        answers, self._answers = self._answers, deque()
        if self.wire is not None and answers:
            self.wire.send(b"".join(answers))

    # What we send.

    def publish(self, topic: str, qos: int, *, retain: bool = False, size: int = 0) -> None:
        self._serial += 1
        payload = f"{self.name} {self._serial}".encode()
        if retain and self.world.rng.random() < 0.2:
            payload = b""
        elif size:
            payload += b" " + b"." * size
        expiry = -1
        if self.version == V5 and self.world.rng.random() < 0.1:
            expiry = self.world.rng.choice([0, 2, 1000])
        self.waiting.append(Sent(topic, payload, qos, retain, expiry))
        if self.is_online:
            self._pump()

    def _pump(self) -> None:
        if not self.is_online or self.wire is None:
            return
        out = []
        while self.waiting and len(self.unacked) + len(self.released) < self._send_limit:
            sent = self.waiting.popleft()
            packet_id = 0
            if sent.qos:
                packet_id = self._next_id()
                self.unacked[packet_id] = sent
            out.append(self._encode(packet_id, sent, dup=False))
        if out:
            self.wire.send(b"".join(out))

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % self.world.ids_max + 1
            if self._last_id not in self.unacked and self._last_id not in self.released:
                if self._last_id not in self.asked:
                    return self._last_id

    def _encode(self, packet_id: int, sent: Sent, *, dup: bool) -> bytes:
        found = Properties()
        topic = sent.topic
        if sent.expiry >= 0:
            found[prop.MESSAGE_EXPIRY_INTERVAL] = sent.expiry
        if topic in self._aliases:
            found[prop.TOPIC_ALIAS] = self._aliases[topic]
            topic = ""
        elif len(self._aliases) < self._alias_limit and self.world.rng.random() < 0.3:
            self._aliases[topic] = found[prop.TOPIC_ALIAS] = len(self._aliases) + 1
        return encode_publish(
            self.version,
            topic,
            sent.payload,
            qos=sent.qos,
            retain=sent.retain,
            dup=dup,
            packet_id=packet_id,
            properties=found,
        )

    def subscribe(self, text: str) -> None:
        if self.wire is None or not self.is_online:
            return
        found = NO_PROPERTIES
        if self.version == V5 and self.identifiers.get(text):
            found = Properties({prop.SUBSCRIPTION_IDENTIFIER: [self.identifiers[text]]})
        packet = Subscribe(self._next_id(), [self.wants[text]], found)
        self.asked[packet.packet_id] = packet
        self.wire.send(encode_from_client(self.version, packet))

    def unsubscribe(self, text: str) -> None:
        del self.wants[text]
        if self.wire is None or not self.is_online:
            self.wants[text] = SubscriptionRequest(text)  # it stays what it was, at another QoS
            return
        packet = Unsubscribe(self._next_id(), [text])
        self.asked[packet.packet_id] = packet
        self.wire.send(encode_from_client(self.version, packet))
