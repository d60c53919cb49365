"""Commands of operators."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.codec.properties import Properties, encode_properties
from mqtt_broker.core.commands import Operator
from mqtt_broker.core.interfaces.rows import NewMessage
from sessions.messages.work import Work
from tests.core.peers import World, publish


def new(topic: str, payload: bytes = b"x", **values: Any) -> NewMessage:
    given = {"qos": 1, "retain": False, "section": b"", **values}
    return NewMessage(topic, payload, **given)


@pytest.mark.parametrize("remove_session", [False, True])
def test_a_kick_with_and_without_the_session(remove_session: bool) -> None:
    world = World()
    operator = Operator(world.broker.state)
    peer = world.client("c", expiry=60)
    assert operator.kick("c", 0x98, world.now, remove_session=remove_session)
    world.settle()
    (said,) = peer.take()
    assert isinstance(said, Disconnect) and said.reason == 0x98
    assert (world.broker.sessions.get("c") is None) is remove_session
    if not remove_session:
        assert operator.kick("c", 0x98, world.now, remove_session=True)
        world.settle()
        assert world.broker.sessions.get("c") is None
    assert not operator.kick("c", 0x98, world.now, remove_session=True)
    world.wait(100)
    assert world.timers == World().timers


def test_only_a_session_that_is_away_expires() -> None:
    world = World()
    operator = Operator(world.broker.state)
    peer = world.client("c", expiry=60)
    assert not operator.expire("c", world.now)
    peer.drop()
    world.settle()
    assert operator.expire("c", world.now) and not operator.expire("nobody", world.now)
    world.settle()
    assert world.broker.sessions.get("c") is None
    world.wait(100)
    assert world.broker.counters.clients_expired == 1


def test_a_queue_is_cleared_and_what_is_in_flight_stays() -> None:
    world = World(work=Work(share=500))
    operator = Operator(world.broker.state)
    peer = world.client("c", expiry=60, receive_maximum=2)
    peer.subscribe("t", qos=1)
    sender = world.client("s")
    for number in range(300):
        sender.send(publish("t", b"x" * 500, qos=1, packet_id=number + 1))
    world.settle()
    session = world.broker.sessions.get("c")
    assert session is not None and session.outbound.queued == 298
    assert operator.clear_queue("c", world.now) == 298
    world.settle()
    assert session.outbound.queued == 0 and len(session.outbound.window) == 2
    assert world.broker.backlog.queued_messages == world.broker.backlog.queued_bytes == 0
    assert world.broker.backlog.dropped == {"queue_cleared": 298}
    assert session.outbound.dropped == 298
    assert operator.clear_queue("nobody", world.now) is None
    assert operator.clear_queue("c", world.now) == 0


def test_retained_messages_are_cleared_by_filter() -> None:
    world = World(work=Work(share=500))
    peer = world.client("p")
    for number in range(200):
        peer.send(publish(f"a/{number}", b"x", retain=True) + publish(f"b/{number}", b"x"))
    peer.send(publish("b", b"x", retain=True))
    world.settle()
    counts: list[int] = []
    Operator(world.broker.state).clear_retained("a/+", counts.append)
    world.settle()
    assert counts == [200] and len(world.broker.retained) == 1


def test_a_message_is_published() -> None:
    world = World()
    peer = world.client("c")
    peer.subscribe("t/#", qos=1)
    operator = Operator(world.broker.state)
    section = encode_properties(Properties({prop.CONTENT_TYPE: "text/plain"}))
    done = operator.publish(new("t/a", retain=True, section=section), "$api/x", world.now)
    assert done == (0, 1, "")
    world.settle()
    (got,) = peer.publishes()
    assert got.topic == "t/a" and got.properties.text(prop.CONTENT_TYPE) == "text/plain"
    kept = world.broker.retained.get("t/a")
    assert kept is not None and kept.envelope.publisher == "$api/x"
    nobody = operator.publish(new("other"), "$api/x", world.now)
    assert nobody == (reasons.NO_MATCHING_SUBSCRIBERS, 0, "")
    refused = operator.publish(new("$SYS/x"), "$api/x", world.now)
    assert refused.reason_code == reasons.NOT_AUTHORIZED and refused.why
    deep = operator.publish(new("/" * 1_000), "$api/x", world.now)
    assert deep.reason_code == reasons.TOPIC_NAME_INVALID
