"""Whatever happens while retained messages are on their way, each subscriber gets what stands.

Clients subscribe, subscribe anew, unsubscribe, stop reading, go, come back and are taken over;
topics change, go and expire; the process dies. Shares of work are so small that all of it happens
between two slices. What has to hold:

- Nothing older comes behind something newer of its topic, and nothing behind its removal.
- What has expired is not brought, nor anything to a shared subscription.
- What has stood since a SUBSCRIBE was answered is brought, over lost connections and crashes.
- In the end nothing is left that works, waits, or holds messages back.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Connack, Publish, Suback, Unsuback
from mqtt_broker.core import dispatch
from mqtt_broker.core.routing.retained_delivery import delivery_to
from mqtt_broker.topics.names import matches
from sessions.messages.message import single
from sessions.messages.work import Work
from tests.core.peers import V5, Peer, World, connect, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

FILTERS: Final = ("#", "+/+", "1/#", "+/3", "2/2", "$share/g/$quiet/+")
TOPICS: Final = [f"{number % 5}/{number}" for number in range(40)]
HOUR_S: Final = 3_600
NEVER: Final = float("inf")


class Subscriber:
    """What a client was promised, and what it got."""

    def __init__(self, name: str, expiry: int) -> None:
        self.name = name
        self.expiry = expiry
        self.peer: Peer | None = None
        self.asked: list[tuple[str, int, int]] = []  # (filter, handling, when), without SUBACK
        self.promised: dict[str, int] = {}  # filter: since when all that stands has to come
        self.filters: set[str] = set()
        self.got: dict[str, dict[int, int]] = defaultdict(dict)  # topic: serial: when last
        self.newest: dict[str, int] = {}
        self.newest_live: dict[str, int] = {}
        self.left: list[str] = []  # filters, without UNSUBACK
        # Filters that it may have, as nobody answered: since when what stands has come if it does.
        self.unsure: dict[str, float] = {}

    def begin_anew(self) -> None:
        self.asked.clear()
        self.promised.clear()
        self.filters.clear()
        self.newest.clear()
        self.newest_live.clear()
        self.got.clear()
        self.unsure.clear()
        self.left.clear()

    def lose(self) -> None:
        """Have no answers any more."""
        for text in self.left:
            self.unsure[text] = NEVER
        for text, handling, at in self.asked:
            if text not in self.filters:
                self.unsure.setdefault(text, at if handling < 2 else NEVER)
        self.asked.clear()
        self.left.clear()

    def brings(self, text: str, handling: int) -> bool:
        return handling == 0 or (handling == 1 and text not in {*self.filters, *self.unsure})


class Play:
    def __init__(self, seed: int, *, is_stored: bool) -> None:
        self.rng = rng = random.Random(seed)
        share = rng.choice([1, 30, 200])
        limits: dict[str, Any] = {
            "outbox_bytes_max": rng.choice([2_000, 4 << 20]),
            "queue_messages_max": 100_000,
            "retained_sweep_s": 7,
        }
        work = Work(share, 2 * share)
        self.is_stored = is_stored
        self.is_ending = False
        self.died_at = 0
        self.world: World = (
            StoredWorld(work=work, **limits) if is_stored else World(work=work, **limits)
        )
        self.qos = 1 if is_stored else rng.choice([0, 1, 2])
        self.clock = 0
        self.stands: dict[str, tuple[int, int, float]] = {}  # topic: serial, since, expires at
        self.removed: dict[str, list[int]] = defaultdict(list)
        self.expiry: dict[int, float] = {}
        self.subscribers = [
            Subscriber("a", HOUR_S), Subscriber("b", HOUR_S), Subscriber("c", 0)
        ]  # fmt: skip
        self.publisher = self.world.peer()
        self.connect_publisher()
        quiet = single("$quiet/1", b"0", qos=1, retain=True, now=self.world.now)
        self.world.broker.retained.put(quiet, None)
        for _ in range(60):
            self.publish()
        self.turn(500)

    # What happens.

    def connect_publisher(self) -> None:
        self.publisher = self.world.peer()
        self.send(self.publisher, connect("p"))

    def send(self, peer: Peer, *packets: bytes) -> None:
        dispatch.receive(peer.connection, b"".join(packets), self.world.now)

    def turn(self, count: int = 1) -> None:
        world = self.world
        for _ in range(count):
            world.broker.work(world.now)
            world.broker.flush(world.now)
            for peer in world.peers:
                if peer.is_closed and not peer.is_lost:
                    peer.is_lost = True
                    peer.connection.lost(world.now)
            self.commit(self.rng.random() < 0.3)
            self.read()

    def commit(self, does: bool = True) -> None:
        if does and isinstance(self.world, StoredWorld):
            self.world.journal.flush(self.world.now)
            self.world.store.commit()
            self.world.store.fold()
            while self.world.journal.pages_wanted:
                self.world.ask_page(self.world.journal.pages_wanted.pop())
                self.world.store.answer()

    def publish(self) -> None:
        self.clock += 1
        topic = self.rng.choice(TOPICS)
        kind = self.rng.random()
        found: dict[int, Any] | None = None
        expires_at = NEVER
        if kind < 0.2:
            found = {prop.MESSAGE_EXPIRY_INTERVAL: 3}
            expires_at = self.world.now + 3
        if kind > 0.8:
            self.stands.pop(topic, None)
            self.removed[topic].append(self.clock)
            payload = b""
        else:
            self.stands[topic] = (self.clock, self.clock, expires_at)
            self.expiry[self.clock] = expires_at
            payload = b"%d" % self.clock
        packet_id = self.clock % 60_000 + 1
        packet = publish(
            topic, payload, qos=self.qos, retain=True, packet_id=packet_id, properties=found
        )
        self.send(self.publisher, packet)
        if self.qos == 2:
            self.send(self.publisher, encode_ack(PUBREL, packet_id))

    def connect(self, one: Subscriber) -> None:
        clean = one.peer is None or self.rng.random() < 0.3
        peer = self.world.peer()
        peer.is_slow = self.rng.random() < 0.2
        one.lose()
        if not self.qos:
            one.promised.clear()  # the rest is lost with the connection
        if clean or not one.expiry:
            one.begin_anew()
        one.peer = peer
        maximum = self.rng.choice([2, 20, 60_000])
        packet = connect(one.name, clean=clean, expiry=one.expiry, receive_maximum=maximum)
        self.send(peer, packet)

    def subscribe(self, one: Subscriber) -> None:
        assert one.peer is not None
        self.clock += 1
        text = self.rng.choice(FILTERS)
        handling = self.rng.randrange(3)
        one.asked.append((text, handling, self.clock))
        self.send(one.peer, subscribe(V5, text, qos=self.qos, retain_handling=handling))

    def unsubscribe(self, one: Subscriber) -> None:
        assert one.peer is not None
        text = self.rng.choice(FILTERS)
        one.promised.pop(text, None)
        # Whether a SUBSCRIBE before it has been answered by now does not matter any more.
        one.asked = [("", 2, at) if item == text else (item, h, at) for item, h, at in one.asked]
        one.filters.discard(text)
        one.left.append(text)
        self.send(one.peer, unsubscribe(V5, text))

    def drop(self, one: Subscriber) -> None:
        assert one.peer is not None
        one.peer.is_closed = one.peer.is_lost = True
        one.peer.connection.lost(self.world.now)
        one.lose()

    def crash(self) -> None:
        assert isinstance(self.world, StoredWorld)
        self.world.restart()
        self.died_at = self.clock
        self.connect_publisher()
        for one in self.subscribers:
            one.peer = None if not one.expiry else one.peer
            one.newest.clear()  # QoS 1 is repeated
            one.newest_live.clear()
            if one.peer is not None:
                self.resume(one)
        self.turn(20)
        for topic in list(self.stands):  # what was not acknowledged may be lost
            found = self.world.broker.retained.get(topic)
            if found is None or found.payload != b"%d" % self.stands[topic][0]:
                del self.stands[topic]

    def resume(self, one: Subscriber) -> None:
        peer = self.world.peer()
        one.peer = peer
        one.lose()
        if not self.qos:
            one.promised.clear()
        self.send(peer, connect(one.name, clean=False, expiry=one.expiry))

    # What is seen.

    def read(self) -> None:
        for one in self.subscribers:
            peer = one.peer
            if peer is None or peer.is_lost:
                continue
            if peer.is_slow and (self.is_ending or self.rng.random() < 0.2):
                size = len(peer.waiting) if self.is_ending else 500
                taken = bytes(peer.waiting[:size])
                del peer.waiting[:size]
                peer.received += peer.decoder.feed(taken)
                peer.connection.on_written(len(peer.waiting), self.world.now)
            for packet in peer.take():
                self.on_packet(one, peer, packet)
        self.publisher.take()

    def on_packet(self, one: Subscriber, peer: Peer, packet: Any) -> None:
        if isinstance(packet, Connack):
            assert not packet.reason
            if not packet.session_present:
                asked, left = one.asked[:], one.left[:]  # behind CONNECT already
                one.begin_anew()
                one.asked, one.left = asked, left
        elif isinstance(packet, Suback):
            text, handling, at = one.asked.pop(0)
            if text and not text.startswith("$share"):
                if one.brings(text, handling):
                    one.promised[text] = at
                elif handling == 1 and self.qos and one.unsure.get(text, NEVER) < NEVER:
                    one.promised[text] = int(one.unsure[text])  # if it was there, it was complete
                one.unsure.pop(text, None)
                one.filters.add(text)
        elif isinstance(packet, Unsuback):
            one.unsure.pop(one.left.pop(0), None)
        elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
            self.send(peer, *[encode_ack(PUBCOMP, i) for i in packet.packet_ids])
        elif isinstance(packet, Publish):
            if packet.qos:
                kind = PUBACK if packet.qos == 1 else PUBREC
                self.send(peer, *[encode_ack(kind, i) for i in packet.packet_ids()])
            for payload in packet.payloads():
                self.on_message(one, peer, packet, payload)

    def on_message(self, one: Subscriber, peer: Peer, packet: Publish, payload: bytes) -> None:
        newest = one.newest.get(packet.topic, 0)
        if not payload:
            assert not packet.retain, "a removal is no retained message"
            later = [serial for serial in self.removed[packet.topic] if serial > newest]
            if later and not packet.dup:
                one.newest[packet.topic] = later[0]
            return
        serial = int(payload)
        one.got[packet.topic][serial] = self.clock
        if packet.dup:
            return
        # A copy may be newer than what several messages, delivered together, bring live behind it.
        floor = newest if packet.retain else one.newest_live.get(packet.topic, 0)
        assert serial >= floor, f"{packet.topic} {serial} behind {floor}"
        one.newest[packet.topic] = max(serial, newest)
        if not packet.retain:
            one.newest_live[packet.topic] = serial
        if packet.retain and not peer.is_slow and not self.is_stored:
            # The broker counts from when it came to the PUBLISH.
            assert self.world.now <= self.expiry[serial] + 2, "it has expired"

    # The play.

    def step(self) -> None:
        rng = self.rng
        one = rng.choice(self.subscribers)
        kind = rng.random()
        if kind < 0.4:
            self.publish()
        elif one.peer is None or one.peer.is_lost:
            self.connect(one)
        elif kind < 0.6:
            self.subscribe(one)
        elif kind < 0.65:
            self.unsubscribe(one)
        elif kind < 0.68:
            self.drop(one)
        elif kind < 0.7:
            self.connect(one)
        elif kind < 0.72:
            self.world.now += 1
            self.world.broker.tick(self.world.now)
        elif kind < 0.725 and self.is_stored:
            self.crash()
        self.turn(rng.choice([0, 1, 1, 3, 20]))

    def finish(self) -> None:
        self.is_ending = True
        for one in self.subscribers:
            if one.peer is not None and one.peer.is_lost and one.expiry:
                self.resume(one)
        for _ in range(5_000):
            self.turn()
            self.commit()
            if not (self.world.broker.has_work or any(map(self.is_waiting, self.subscribers))):
                break
        self.turn(3)
        self.check()

    def is_waiting(self, one: Subscriber) -> bool:
        if one.peer is None or one.peer.is_lost:
            return False
        return bool(one.peer.waiting or one.peer.connection.session.outbound.has_waiting)

    def check(self) -> None:
        for one in self.subscribers:
            if one.peer is None or one.peer.is_lost:
                continue
            session = self.world.broker.sessions.get(one.name)
            assert session is not None and delivery_to(session) is None
            assert not session.outbound.barriers and not session.outbound.has_waiting
            assert not one.peer.connection.is_held and not one.asked
            for text, since in one.promised.items():
                for topic, (serial, _, expires_at) in self.stands.items():
                    if expires_at < NEVER or not matches(text, topic):
                        continue
                    if serial > since and (not self.qos or serial <= self.died_at):
                        continue  # live: dropped if nobody reads, or never acknowledged
                    came = one.got[topic].get(serial, -1)
                    has_come = came >= 0 if serial > since else came >= since
                    assert has_come, f"{one.name}: {topic} {serial} of {text}, {since}: {came}"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_stored", [False, True], ids=["memory", "stored"])
def test_what_stands_comes_and_nothing_older(seed: int, is_stored: bool) -> None:
    play = Play(seed, is_stored=is_stored)
    for _ in range(300):
        play.step()
    play.finish()
