"""A client that roams between numbers, and one that stays, which live through the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Connack, Publish
from tests.cluster.content.cluster_world import ClusterWorld, NumberWorld
from tests.core.peers import Peer, connect, publish, subscribe, unsubscribe

FILTERS = ("t/#", "t/a", "t/+", "u")


class Twin:
    """A client, what it has received, and what it has still to answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.got: list[Any] = []
        self.unanswered: list[tuple[int, int]] = []  # the kind of the answer, and the packet id

    def come(self, world: ClusterWorld, number: NumberWorld) -> None:
        self.peer = number.peer()
        self.unanswered.clear()
        self.peer.send(connect(self.name, clean=False, expiry=5_000, receive_maximum=3))
        world.until(lambda: self.peer is not None and len(self.peer.received) > 0)

    def go(self) -> None:
        assert self.peer is not None
        self.read()
        self.peer.drop()
        self.peer = None

    def read(self) -> None:
        """Note what has come, without packet ids, which each broker assigns as it likes."""
        for packet in [] if self.peer is None else self.peer.take():
            if isinstance(packet, Connack):
                self.got.append(("CONNACK", packet.reason, packet.session_present))
            elif isinstance(packet, Publish):
                kind = PUBACK if packet.qos == 1 else PUBREC
                for payload, packet_id in zip(packet.payloads(), packet.packet_ids(), strict=True):
                    self.got.append((packet.topic, payload, packet.qos, packet.dup))
                    self.unanswered.append((kind, packet_id))
            elif isinstance(packet, Ack):
                for packet_id in packet.packet_ids:
                    if packet.packet_type == PUBREL:
                        self.got.append("PUBREL")
                        self.unanswered.append((PUBCOMP, packet_id))
                    else:
                        self.got.append((packet.packet_type, packet_id, packet.reason))

    def answer(self, count: int) -> None:
        """Answer the first of what has come."""
        if self.peer is not None:
            for kind, packet_id in self.unanswered[:count]:
                self.peer.send(encode_ack(kind, packet_id))
            del self.unanswered[:count]

    def send(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.send(data)


def play(world: ClusterWorld, seed: int, steps: int) -> tuple[Twin, Twin]:
    rng = random.Random(seed)
    numbers = [world.node(own).at(own) for own in (1, 2)]
    senders = [number.client(f"sender {number.hosted.number}") for number in numbers]
    twins = stays, roams = Twin("stays"), Twin("roams")
    at = numbers[0]
    for twin in twins:
        twin.come(world, at)
        twin.send(subscribe(V5, "t/#", qos=2))
    for serial in range(steps):
        world.run(0.2)
        for twin in twins:
            twin.read()
        assert stays.got == roams.got, f"step {serial}"
        kind = rng.choice(["publish"] * 4 + ["answer"] * 4 + ["inbound", "subscribe", "go", "come"])
        if kind == "publish":
            topic, qos, count = (
                rng.choice(["t/a", "t/b", "u"]),
                rng.choice([1, 2]),
                rng.choice([1, 5]),
            )
            for number, sender in zip(numbers, senders, strict=True):
                if number in (numbers[0], at):
                    sender.send(*(
                        publish(topic, b"%d/%d" % (serial, n), qos=qos, packet_id=serial * 8 + n)
                        for n in range(1, count + 1)
                    ))  # fmt: skip
                    world.run(0.1)
                    sender.send(*(encode_ack(PUBREL, serial * 8 + n) for n in range(1, count + 1)))
        elif kind == "answer":
            count = rng.choice([1, 2, 9])
            for twin in twins:
                twin.answer(count)
        elif kind == "inbound":
            data = rng.choice([
                publish("nowhere", b"x", qos=2, packet_id=rng.randint(1, 3)),
                encode_ack(PUBREL, rng.randint(1, 3)),
            ])  # fmt: skip
            for twin in twins:
                twin.send(data)
        elif kind == "subscribe":
            text = rng.choice(FILTERS)
            wants = rng.random() < 0.7
            data = subscribe(V5, text, qos=rng.randint(1, 2)) if wants else unsubscribe(V5, text)
            for twin in twins:
                twin.send(data)
        elif kind == "go" and stays.peer is not None:
            for twin in twins:
                twin.go()
        elif kind == "come":
            for twin in twins:
                if twin.peer is not None:  # taken over: what is on its way is lost with it
                    twin.go()
            world.run(0.1)
            at = rng.choice(numbers)
            stays.come(world, numbers[0])
            roams.come(world, at)
    return stays, roams


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 40), *(pytest.param(seed, 150, marks=pytest.mark.slow) for seed in range(2, 12))],
)
def test_a_client_that_roams_receives_what_it_would_have_received(
    world: ClusterWorld, seed: int, steps: int
) -> None:
    stays, roams = play(world, seed, steps)
    assert len(stays.got) > steps // 2 and stays.got == roams.got
