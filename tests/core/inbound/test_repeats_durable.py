"""What is asked again changes nothing in memory: its answer waits for what was changed before."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Suback, Unsuback
from mqtt_broker.core.interfaces.access import Allow
from sessions.journal.journal import RELAXED
from tests.core.peers import V5, V311, Peer, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

EXPIRY = 1000


def kept(world: StoredWorld, name: str, **options: Any) -> Peer:
    peer = world.client(name, expiry=EXPIRY, clean=False, **options)
    world.commit()
    peer.take()
    return peer


def retained(world: StoredWorld) -> list[bytes]:
    return [message.payload for message in world.broker.retained.values()]


def acks(peer: Peer) -> list[tuple[int, list[int], int]]:
    return [(p.packet_type, p.packet_ids, p.reason) for p in peer.take() if isinstance(p, Ack)]


def answered(peer: Peer, kind: int) -> list[int]:
    return [i for found, ids, _ in acks(peer) if found == kind for i in ids]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("first_qos", [0, 1, 2])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_removal_of_what_was_just_removed(
    version: int, first_qos: int, qos: int, is_stored: bool
) -> None:
    world = StoredWorld()
    world.client("q").send(publish("r", b"x", qos=1, retain=True))
    world.commit()
    publisher = kept(world, "p") if is_stored else world.client("p")
    publisher.send(publish("r", qos=first_qos, retain=True, packet_id=1))
    other = world.client("other", version)
    other.send(publish("r", qos=qos, retain=True, packet_id=2, version=version))
    publisher.send(publish("r", qos=qos, retain=True, packet_id=3))
    world.pack()
    assert [type(p) for p in (*other.take(), *publisher.take())] == []
    world.commit()
    kind = PUBACK if qos == 1 else PUBREC
    assert answered(other, kind) == [2]
    assert answered(publisher, kind)[-1] == 3
    world.restart()
    assert retained(world) == []


def test_a_removal_of_what_expired() -> None:
    world = StoredWorld(retained_sweep_s=10)
    properties = {prop.MESSAGE_EXPIRY_INTERVAL: 5}
    world.client("q").send(publish("r", b"x", qos=1, retain=True, properties=properties))
    world.commit()
    world.wait(20)
    peer = world.client("p")
    peer.send(publish("r", qos=1, retain=True))
    assert peer.take() == []
    world.commit()
    assert len(acks(peer)) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_a_removal_that_rests_on_nothing_is_answered_at_once(qos: int) -> None:
    world = StoredWorld()
    peer = world.client("p")
    peer.send(publish("r", qos=qos, retain=True))
    assert len(acks(peer)) == 1
    loose = StoredWorld(mode=RELAXED)
    peer = loose.client("p")
    peer.send(publish("r", b"x", retain=True), publish("r", qos=qos, retain=True))
    assert len(acks(peer)) == 1


def test_a_run_of_removals() -> None:
    world = StoredWorld()
    peer = world.client("p")
    peer.send(publish("r", b"x", qos=1, retain=True))
    world.commit()
    peer.take()
    peer.send(b"".join(publish("r", qos=1, retain=True, packet_id=n) for n in (1, 2, 3)))
    assert peer.take() == []
    world.commit()
    assert sum(len(ids) for _, ids, _ in acks(peer)) == 3


def test_the_same_retained_message_again() -> None:
    world = StoredWorld()
    peer = world.client("p")
    peer.send(publish("r", b"x", qos=1, retain=True, packet_id=1))
    peer.send(publish("r", b"x", qos=1, retain=True, packet_id=2))
    assert peer.take() == []
    world.commit()
    world.restart()
    assert retained(world) == [b"x"]


def test_a_retained_message_that_is_refused_promises_nothing() -> None:
    world = StoredWorld(retained_messages_max=1)
    peer = world.client("p")
    peer.send(publish("r", b"x", qos=1, retain=True, packet_id=1))
    other = world.client("o")
    other.send(publish("s", b"x", qos=1, retain=True, packet_id=2))
    assert acks(other) == [(PUBACK, [2], 0x97)]


def test_unsubscribe_twice() -> None:
    world = StoredWorld()
    peer = kept(world, "s")
    peer.send(subscribe(V5, "a", qos=1))
    world.commit()
    peer.take()
    peer.send(unsubscribe(V5, "a"), unsubscribe(V5, "a"))
    world.pack()
    assert peer.take() == []
    world.commit()
    assert [p.reasons for p in peer.take() if isinstance(p, Unsuback)] == [[0], [0x11]]
    world.restart()
    session = world.broker.sessions.get("s")
    assert session is not None and not session.subscriptions


def test_subscribe_twice() -> None:
    world = StoredWorld()
    peer = kept(world, "s")
    peer.send(subscribe(V5, "a", qos=1), subscribe(V5, "a", qos=1))
    world.pack()
    assert peer.take() == []
    world.commit()
    assert sum(isinstance(p, Suback) for p in peer.take()) == 2
    world.restart()
    session = world.broker.sessions.get("s")
    assert session is not None and list(session.subscriptions) == ["a"]


def test_unsubscribe_on_the_next_connection() -> None:
    world = StoredWorld()
    peer = kept(world, "s")
    peer.send(subscribe(V5, "a", qos=1))
    world.commit()
    peer.send(unsubscribe(V5, "a"))
    peer.drop()
    peer = world.client("s", expiry=EXPIRY, clean=False)
    peer.send(unsubscribe(V5, "a"))
    assert peer.take() == []
    world.commit()
    assert len(peer.take()) == 1


def test_publish_and_pubrel_at_qos_2_twice() -> None:
    world = StoredWorld()
    peer = kept(world, "p")
    peer.send(publish("a", b"x", qos=2, packet_id=9), publish("a", b"x", qos=2, packet_id=9))
    world.pack()
    assert peer.take() == []
    world.commit()
    assert answered(peer, PUBREC) == [9, 9]
    peer.send(encode_ack(PUBREL, 9), encode_ack(PUBREL, 9))
    world.pack()
    assert peer.take() == []
    world.commit()
    assert answered(peer, PUBCOMP) == [9, 9]


def test_pubrec_twice() -> None:
    world = StoredWorld()
    peer = kept(world, "s")
    peer.send(subscribe(V5, "a", qos=2))
    world.client("p").send(publish("a", b"x", qos=2))
    world.commit()
    (packet,) = peer.publishes()
    peer.send(encode_ack(PUBREC, packet.packet_id), encode_ack(PUBREC, packet.packet_id))
    world.pack()
    assert peer.take() == []
    world.commit()
    assert answered(peer, PUBREL) == [packet.packet_id] * 2


class Rules:
    """Lets everybody publish, until it does not."""

    guards_topics = True
    is_open = True

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return self.is_open

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return True

    def connect(self, request: Any) -> Any:
        return Allow()


def test_an_id_that_was_refused_when_it_was_repeated_is_free_after_a_crash() -> None:
    world = StoredWorld()
    rules = Rules()
    world.broker.state.authorizer.access = rules
    world.broker.state.authorizer.guarded = True
    peer = kept(world, "p")
    reader = kept(world, "s")
    reader.send(subscribe(V5, "a", qos=2))
    peer.send(publish("a", b"x", qos=2, packet_id=9))
    world.commit()
    peer.take()
    rules.is_open = False
    world.broker.reauthorize(world.now)
    peer.send(publish("a", b"x", qos=2, packet_id=9))
    assert peer.take() == []
    world.commit()
    assert acks(peer) == [(PUBREC, [9], 0x87)]
    world.restart()
    session = world.broker.sessions.get("p")
    assert session is not None and session.inbound.ids == set()
