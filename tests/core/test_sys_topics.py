"""Values under `$SYS` that count messages on their way."""

from __future__ import annotations

import re

from mqtt_broker.codec.constants import PUBACK, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core.sys_topics import gauges
from tests.core.peers import V311, World, publish


def test_messages_in_flight_are_counted() -> None:
    world = World()
    subscriber = world.client("s", expiry=100)
    subscriber.subscribe("a", qos=1)
    world.client("p").send(*[publish("a", b"x", qos=1, packet_id=1 + n) for n in range(3)])

    def value(name: str) -> str:
        return gauges(world.broker.state, world.now)[name]

    assert value("messages/inflight") == "3"
    ids = [packet_id for packet in subscriber.publishes() for packet_id in packet.packet_ids()]
    subscriber.send(encode_ack(PUBACK, ids[0]))
    assert value("messages/inflight") == "2"
    subscriber.drop()
    assert value("messages/inflight") == "0"  # it is not connected
    world.client("s", clean=False, expiry=100)
    assert value("messages/inflight") == "2"


def test_what_is_unread_is_counted() -> None:
    world = World()
    slow = world.client("s")
    slow.subscribe("a")
    slow.is_slow = True
    world.client("p").send(publish("a", b"x" * 100))
    found = gauges(world.broker.state, world.now)
    assert found["packet/out/count"] == "1" and int(found["packet/out/bytes"]) > 100
    world.client("p").send(*[publish("a", b"x" * 100) for _ in range(9)])
    found = gauges(world.broker.state, world.now)
    assert found["packet/out/count"] == "10"
    assert found["packet/out/bytes"] == found["publish/bytes/sent"]


def test_bytes_of_publishes_are_counted_whichever_way_they_go() -> None:
    world = World()
    receivers = [
        world.client("old", V311),
        world.client("plain"),
        world.client("aliases", alias_maximum=3),
    ]
    for qos, peer in enumerate(receivers):
        peer.subscribe("a/#", qos=qos)
    receivers[1].subscribe("$share/g/a", qos=1)
    receivers[2].subscribe("a", qos=1, identifier=5)
    publisher = world.client("p")
    for qos in (0, 1, 2):
        for count in (1, 3):
            ids = range(1 + 3 * qos, 1 + 3 * qos + count)
            publisher.send(*[publish("a", b"x" * 9, qos=qos, packet_id=n) for n in ids])
            publisher.send(*[encode_ack(PUBREL, n) for n in ids if qos == 2])
    sent = sum(len(packet.raw) for peer in receivers for packet in peer.publishes())
    assert int(gauges(world.broker.state, world.now)["publish/bytes/sent"]) == sent


def test_the_time_of_the_build_is_a_time() -> None:
    world = World()
    found = gauges(world.broker.state, world.now)["timestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0000", found)
