"""Random histories of a broker, and a plain model of what its clients saw.

The model knows nothing of the broker: it notes what was published, and what each client received,
with which DUP, and acknowledged, at its end of the connection. The recorder's outcomes are then
compared with it. Each message carries its number as its payload.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Publish
from mqtt_broker.core.client_views import inquire
from mqtt_broker.recorder import outcomes
from mqtt_broker.recorder.inquiry import Answer, Inquiry
from mqtt_broker.recorder.outcomes import Outcome
from tests.core.peers import Peer, World, publish

TOPICS = ("a/1", "a/2", "b/1")
FILTERS = ("a/+", "a/1", "b/#")


def ask(world: World, client_id: str, topic: str = "", since: float = 0.0) -> Answer:
    """Ask why, in one go."""
    question = inquiry(world, client_id, topic, since)
    assert question.answer is not None
    return question.answer


def inquiry(world: World, client_id: str, topic: str = "", since: float = 0.0) -> Inquiry:
    recorder = world.broker.recorder
    assert recorder is not None
    question = inquire(world.broker.state, recorder, client_id, topic, since, world.now)
    for _ in question.steps():
        pass
    return question


@dataclass
class Seen:
    """What one client saw of one message."""

    received: int = 0
    dups: int = 0
    acknowledged_ms: int = 0


@dataclass
class Sent:
    """A message as it was published."""

    number: int
    at_ms: int
    topic: str
    publisher: str
    qos: int
    away: frozenset[str]  # the clients that were not connected


@dataclass
class Device:
    """A client, and what it saw."""

    client_id: str
    peer: Peer | None = None
    seen: dict[int, Seen] = field(default_factory=dict)
    unanswered: list[tuple[int, int, int]] = field(default_factory=list)  # id, QoS, message


class History:
    """A world in which things happen at random."""

    def __init__(self, seed: int, recorder_bytes: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(recorder_bytes_max=recorder_bytes, queue_messages_max=5, inflight_max=4)
        self.devices = [Device(f"d{number}") for number in range(3)]
        self.sent: list[Sent] = []
        self.world.now += 0.5
        self.publishers = [self.world.client(f"p{number}") for number in range(2)]
        for device in self.devices:
            self.come(device)
            assert device.peer is not None
            for text in self.rng.sample(FILTERS, 2):
                device.peer.subscribe(text, qos=self.rng.randrange(3))
            self.pass_time()

    def pass_time(self) -> None:
        self.world.now += self.rng.choice((0.002, 0.01, 0.4, 1.5, 30.0))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.pass_time()
            device = self.rng.choice(self.devices)
            act = self.rng.randrange(10)
            if act < 5:
                self.publish()
            elif act < 8:
                self.acknowledge(device)
            elif device.peer is None:
                self.come(device)
            elif act == 9:
                device.peer.drop()
                device.peer, device.unanswered = None, []
            self.look()

    def come(self, device: Device) -> None:
        device.peer = self.world.client(device.client_id, clean=False, expiry=10**6)
        self.look()

    def publish(self) -> None:
        index = self.rng.randrange(2)
        qos, topic = self.rng.randrange(3), self.rng.choice(TOPICS)
        number = len(self.sent)
        away = frozenset(d.client_id for d in self.devices if d.peer is None)
        at_ms = int(self.world.now * 1000)
        self.sent.append(Sent(number, at_ms, topic, f"p{index}", qos, away))
        publisher = self.publishers[index]
        publisher.send(publish(topic, str(number).encode(), qos=qos, packet_id=1 + number % 60_000))
        if qos == 2:
            publisher.send(encode_ack(PUBREL, 1 + number % 60_000))
        publisher.take()

    def look(self) -> None:
        """Let every client look at what came."""
        for device in self.devices:
            if device.peer is None:
                continue
            for packet in device.peer.take():
                if isinstance(packet, Publish):
                    self._see(device, packet)
                elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
                    done = [encode_ack(PUBCOMP, one) for one in packet.packet_ids]
                    device.peer.send(*done)

    def _see(self, device: Device, packet: Publish) -> None:
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            number = int(payload)
            seen = device.seen.setdefault(number, Seen())
            seen.received += 1
            seen.dups += packet.dup
            if packet.qos:
                device.unanswered.append((packet_id, packet.qos, number))

    def acknowledge(self, device: Device) -> None:
        if device.peer is None or not device.unanswered:
            return
        count = self.rng.randint(1, len(device.unanswered))
        if self.rng.random() < 0.3:  # out of order
            self.rng.shuffle(device.unanswered)
        taken, device.unanswered = device.unanswered[:count], device.unanswered[count:]
        at_ms = int(self.world.now * 1000)
        for packet_id, qos, number in taken:
            seen = device.seen[number]
            seen.acknowledged_ms = seen.acknowledged_ms or at_ms
            device.peer.send(encode_ack(PUBACK if qos == 1 else PUBREC, packet_id))

    # Comparing.

    def check(self) -> int:
        """Compare every outcome with the model; returns how many were certain."""
        certain = 0
        for device in self.devices:
            for topic in TOPICS:
                question = inquiry(self.world, device.client_id, topic)
                for outcome in question.outcomes:
                    certain += self._check_outcome(device, outcome)
        return certain

    def _check_outcome(self, device: Device, outcome: Outcome) -> int:
        publication = outcome.publication
        messages = [
            one
            for one in self.sent
            if one.topic == publication.topic
            and one.publisher == publication.client
            and one.qos == publication.code & 3
            and publication.at_ms <= one.at_ms <= publication.until_ms
        ]
        assert len(messages) == publication.count, (outcome.state, messages, publication.count)
        seen = [device.seen.get(one.number, Seen()) for one in messages]
        state = outcome.state
        if state == outcomes.ACKNOWLEDGED:
            assert all(one.acknowledged_ms for one in seen), (state, messages, seen)
            if outcome.acknowledged_ms:
                assert max(one.acknowledged_ms for one in seen) <= outcome.acknowledged_ms
                assert outcome.acknowledged_ms - min(one.acknowledged_ms for one in seen) <= 2_000
        elif state in (outcomes.IN_FLIGHT, outcomes.WAITING):
            assert any(not one.acknowledged_ms for one in seen), (state, messages, seen)
        elif state == outcomes.DROPPED:
            assert not any(one.received for one in seen), (state, messages, seen)
        elif state == outcomes.AWAY_QOS0:
            assert all(device.client_id in one.away for one in messages), messages
        elif state == outcomes.SENT_QOS0:
            assert all(one.received for one in seen), (state, messages, seen)
        elif state == outcomes.UNMATCHED:
            assert not any(one.received for one in seen), (state, messages, seen)
        if outcome.resent_ms and publication.count == 1:
            assert seen[0].dups, (messages, seen)
        return state != outcomes.NOT_KNOWN
