"""What does not reach a client is published under `$dlq/`, with the reason, when that is wanted."""

from __future__ import annotations

from typing import Any

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Publish
from tests.core.interfaces.test_payload_checks import Even
from tests.core.peers import Peer, World, publish

ALL = {"dead_letters": "all"}


def letters(peer: Peer) -> list[tuple[str, bytes, dict[str, str]]]:
    return [
        (packet.topic, payload, dict(packet.properties.user))
        for packet in peer.publishes()
        for payload in packet.payloads()
    ]


def watched(**settings: Any) -> tuple[World, Peer]:
    world = World(**{**ALL, **settings})
    watcher = world.client("watcher")
    watcher.subscribe("$dlq/#", qos=2)
    watcher.take()
    return world, watcher


def away(world: World, *filters: str) -> None:
    peer = world.client("away", clean=False, expiry=1000)
    peer.subscribe(*filters, qos=1)
    peer.drop()


def test_a_full_queue_gives_up_its_oldest() -> None:
    world, watcher = watched(queue_messages_max=2)
    away(world, "t/#")
    publisher = world.client("p")
    for n in range(1, 5):
        publisher.send(publish("t/a", b"%d" % n, qos=1, packet_id=n))
    found = letters(watcher)
    assert [(topic, payload) for topic, payload, _ in found] == [
        ("$dlq/queue_full/t/a", b"1"),
        ("$dlq/queue_full/t/a", b"2"),
    ]
    assert found[0][2] == {
        "dlq-reason": "queue_full",
        "dlq-client": "away",
        "dlq-time": f"{world.now:.3f}",
    }


def test_a_full_queue_turns_away_what_is_new() -> None:
    world, watcher = watched(queue_messages_max=1, queue_full="drop_new")
    away(world, "t/#")
    for n in (1, 2):
        world.client("p").send(publish("t/a", b"%d" % n, qos=1, packet_id=n))
    assert [payload for _, payload, _ in letters(watcher)] == [b"2"]


def test_what_expires_while_it_waits() -> None:
    world, watcher = watched()
    away(world, "t/#")
    properties = {
        prop.MESSAGE_EXPIRY_INTERVAL: 5,
        prop.CONTENT_TYPE: "text/plain",
        prop.USER_PROPERTY: [("a", "b")],
    }
    world.client("p").send(publish("t/a", b"x", qos=1, properties=properties))
    world.wait(6)
    world.client("away", clean=False, expiry=1000)
    packet = watcher.publishes()[0]
    assert isinstance(packet, Publish)
    assert packet.topic == "$dlq/expired/t/a"
    assert packet.properties[prop.CONTENT_TYPE] == "text/plain"
    assert packet.properties.user[0] == ("a", "b")
    assert prop.MESSAGE_EXPIRY_INTERVAL not in packet.properties
    assert packet.qos == 1


def test_what_a_schema_rejects() -> None:
    world, watcher = watched(checks=Even())
    world.client("p").send(publish("t/a", b"3", qos=1, packet_id=3))
    topic, payload, user = letters(watcher)[0]
    assert (topic, payload) == ("$dlq/schema/t/a", b"3")
    assert user["dlq-reason"] == "3 is odd"
    assert user["dlq-client"] == "p"


def test_a_shared_subscription_s_queue() -> None:
    world, watcher = watched(queue_messages_max=1)
    away(world, "$share/g/t/#")
    for n in (1, 2):
        world.client("p").send(publish("t/a", b"%d" % n, qos=1, packet_id=n))
    topic, payload, user = letters(watcher)[0]
    assert (topic, payload) == ("$dlq/queue_full/t/a", b"1")
    assert user["dlq-client"] == "$share/g/t/#"


def test_only_the_reasons_that_are_wanted() -> None:
    world, watcher = watched(dead_letters="expired,schema", queue_messages_max=1)
    away(world, "t/#")
    for n in (1, 2):
        world.client("p").send(publish("t/a", b"%d" % n, qos=1, packet_id=n))
    assert letters(watcher) == []


def test_a_dead_letter_has_no_dead_letter() -> None:
    world, watcher = watched(queue_messages_max=1)
    away(world, "$dlq/#")
    other = world.client("other", clean=False, expiry=1000)
    other.subscribe("t/#", qos=1)
    other.drop()
    for n in range(1, 5):
        world.client("p").send(publish("t/a", b"%d" % n, qos=1, packet_id=n))
    assert [payload for _, payload, _ in letters(watcher)] == [b"1", b"2", b"3"]


def test_a_topic_that_is_as_long_as_it_may_be() -> None:
    world, watcher = watched(queue_messages_max=1, topic_levels_max=65_535)
    away(world, "#")
    topic = "t" * 65_530
    for n in (1, 2):
        world.client("p").send(publish(topic, b"%d" % n, qos=1, packet_id=n))
    assert [topic for topic, _, _ in letters(watcher)] == ["$dlq/queue_full"]
