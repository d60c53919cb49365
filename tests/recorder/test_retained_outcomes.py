"""The outcomes of retained messages at the SUBSCRIBEs of a client."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.recorder.kinds import RETAINED
from mqtt_broker.recorder.retained_outcomes import HANDLING_2, SHARED
from sessions.messages.message import single
from tests.core.peers import Peer, World, publish
from tests.recorder.histories import ask
from tests.recorder.test_inquiry import Access, at_noon, pump

FROM_APP = "published to `a/b` by `app` at 12:00:00"


def with_retained(topic: str = "a/b", payload: bytes = b"x", qos: int = 1, **options: Any) -> World:
    """A minute after noon, with a retained message of noon."""
    world = at_noon(**options)
    app = world.client("app")
    app.send(publish(topic, payload, qos=qos, packet_id=1, retain=True))
    world.now += 60
    return world


def subscribed(world: World, text: str = "a/+", qos: int = 1, **options: Any) -> Peer:
    device = pump(world)
    device.subscribe(text, qos=qos, **options)
    world.now += 1
    return device


def why(world: World, topic: str = "a/b") -> str:
    return ask(world, "pump-7", topic).sentence


def test_delivered_and_acknowledged() -> None:
    world = with_retained()
    device = subscribed(world)
    delivered = (
        f"{FROM_APP}, delivered as retained at the SUBSCRIBE of 12:01:00 to `a/+` of `pump-7`"
    )
    assert why(world) == f"{delivered}, QoS 1, never acknowledged"
    device.send(encode_ack(PUBACK, 1))
    assert why(world) == f"{delivered}, QoS 1, acknowledged 12:01:01"


def test_delivered_at_qos0() -> None:
    world = with_retained()
    subscribed(world, qos=0)
    assert why(world).endswith("`a/+` of `pump-7`, QoS 0, which nobody acknowledges")


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("a/+", {"retain_handling": 2}, HANDLING_2),
        ("$share/g/a/+", {}, SHARED),
    ],
)
def test_not_sent(text: str, options: dict[str, Any], reason: str) -> None:
    world = with_retained()
    subscribed(world, text, **options)
    assert why(world) == (
        "a retained message of `a/b` (published by `app` at 12:00:00) existed but was not sent at "
        f"the SUBSCRIBE of 12:01:00 to `{text}` of `pump-7`: {reason}"
    )


def test_the_subscription_existed_already() -> None:
    world = with_retained()
    device = subscribed(world, retain_handling=1)
    assert "delivered as retained at the SUBSCRIBE of 12:01:00" in why(world)
    device.subscribe("a/+", qos=1, retain_handling=1)
    said = why(world)
    assert "not sent at the SUBSCRIBE of 12:01:01" in said
    assert said.endswith("Retain Handling 1, and the subscription existed already")


def test_the_subscribe_was_denied() -> None:
    world = at_noon(access=Access())
    pump(world).subscribe("secret/#")
    assert "denied to subscribe to `secret/#`" in why(world, "secret/1")
    message = single("secret/1", b"x", retain=True, publisher="app", now=world.now)
    assert world.broker.state.retained.put(message, None)
    world.now += 60
    world.peers[-1].subscribe("secret/#")
    assert why(world, "secret/1") == (
        "a retained message of `secret/1` (published by `app` at 12:00:00) existed but was not "
        "sent at the SUBSCRIBE of 12:01:00 to `secret/#` of `pump-7`: the SUBSCRIBE was denied by "
        "rule 12 of acl.toml"
    )


def test_it_was_too_large() -> None:
    world = with_retained(payload=b"x" * 500)
    device = world.client("pump-7", clean=False, expiry=100, packet_bytes_max=100)
    device.subscribe("a/+", qos=1)
    assert why(world) == (
        f"{FROM_APP}, to be delivered as retained at the SUBSCRIBE of 12:01:00 to `a/+` of "
        "`pump-7`, dropped (packet too large)"
    )


def test_it_had_expired() -> None:
    world = at_noon()
    app = world.client("app")
    expires = {prop.MESSAGE_EXPIRY_INTERVAL: 5}
    app.send(publish("a/b", b"x", retain=True, properties=expires))
    world.now += 60
    subscribed(world)
    assert why(world).endswith("of `pump-7`: it had expired")


def test_no_local() -> None:
    world = at_noon()
    device = pump(world)
    device.send(publish("a/b", b"x", retain=True))
    world.now += 60
    device.subscribe("a/+", no_local=True)
    assert why(world).endswith("it is its own message, and the subscription says No Local")


def test_it_was_replaced_since() -> None:
    """The message that stood there is known by its publication."""
    world = with_retained()
    subscribed(world, retain_handling=2)
    world.now += 60
    world.client("other").send(publish("a/b", b"y", retain=True))
    told = ask(world, "pump-7", "a/b").sentences
    assert any("(published by `app` at 12:00:00) existed but was not sent" in one for one in told)


def test_it_was_removed_before() -> None:
    world = with_retained()
    world.peers[0].send(publish("a/b", b"", retain=True))
    world.now += 60
    subscribed(world)
    assert "retained message" not in why(world)


def test_the_second_filter_brings_it() -> None:
    world = with_retained()
    device = pump(world)
    device.subscribe("a/#", retain_handling=2)
    device.subscribe("a/+")
    assert "delivered as retained" in why(world)
    assert len([one for one in ask(world, "pump-7", "a/b").sentences if "retained at" in one]) == 1


def test_very_many() -> None:
    """Beyond the first hundred the recorder has their number, and the tree has the message."""
    world = at_noon()
    app = world.client("app")
    for number in range(150):
        app.send(publish(f"a/{number:03d}", b"x", retain=True))
    world.now += 60
    subscribed(world, "a/#", qos=0)
    recorder = world.broker.recorder
    assert recorder is not None
    answer = ask(world, "pump-7")
    assert answer.sentences == [
        "150 retained messages were delivered at the SUBSCRIBE of 12:01:00 to `a/#` of `pump-7`"
    ]
    assert sum(fact.count for fact in answer.facts if fact.kind == RETAINED) == 150
    for number in range(150):
        assert "delivered as retained at" in why(world, f"a/{number:03d}")


def test_a_live_message_since_then_answers() -> None:
    world = with_retained()
    device = subscribed(world)
    device.send(encode_ack(PUBACK, 1))
    device.drop()
    world.now += 60
    world.peers[0].send(publish("a/b", b"y", qos=1, packet_id=2))
    assert "queued (away since 12:01:01)" in why(world)


def test_in_flight_for_a_month() -> None:
    """A cell holds no age of 24 days and more."""
    world = with_retained()
    world.now += 40 * 86_400.0
    subscribed(world)
    assert why(world).endswith("never acknowledged")
