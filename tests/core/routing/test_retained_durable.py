"""What a stored subscription brings is on disk with it, and leaves behind SUBACK."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Publish, Suback
from sessions.journal.journal import RELAXED
from tests.core.peers import V5, Peer, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

EXPIRY = 1000


def with_retained(*payloads: bytes, qos: int = 1, **options: Any) -> StoredWorld:
    """A world with these retained messages in r/0, r/1 and so on."""
    expiry = options.pop("expiry", None)
    properties = {prop.MESSAGE_EXPIRY_INTERVAL: expiry} if expiry else None
    world = StoredWorld(**options)
    publisher = world.client("p")
    for number, payload in enumerate(payloads):
        publisher.send(publish(f"r/{number}", payload, qos=qos, retain=True, properties=properties))
        if qos == 2:
            publisher.send(encode_ack(PUBCOMP - 1, 1))
    world.commit()
    return world


def here(world: StoredWorld, name: str = "s", **options: Any) -> Peer:
    peer = world.client(name, expiry=EXPIRY, clean=False, **options)
    world.page()
    world.commit()
    return peer


def each(peer: Peer) -> list[tuple[bytes, bool, bool]]:
    """Payload, RETAIN and DUP of what it got."""
    return [(m, p.retain, p.dup) for p in peer.publishes() for m in p.payloads()]


def shown(peer: Peer) -> list[Any]:
    found: list[Any] = []
    for packet in peer.take():
        found += packet.payloads() if isinstance(packet, Publish) else [type(packet)]
    return found


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("receive_maximum", [None, 1])
@pytest.mark.parametrize("goes", [False, True])
def test_a_crash_behind_suback(qos: int, receive_maximum: int | None, goes: bool) -> None:
    world = with_retained(b"0", b"1", qos=qos)
    peer = here(world, receive_maximum=receive_maximum)
    peer.send(subscribe(V5, "r/#", qos=qos))
    world.pack()
    assert peer.take() == []
    world.store.commit()
    world.settle()
    assert Suback in shown(peer)
    if goes:
        peer.drop()
    world.restart()
    peer = here(world)
    assert sorted(payload for payload, _, _ in each(peer)) == [b"0", b"1"]


@pytest.mark.parametrize(("qos", "live_qos"), [(0, 1), (1, 1), (1, 2), (2, 1), (2, 2)])
def test_the_order_on_the_wire(qos: int, live_qos: int) -> None:
    world = with_retained(b"0", b"1", qos=qos)
    peer = here(world)
    peer.send(subscribe(V5, "r/#", qos=2))
    world.client("q").send(publish("r/0", b"new", qos=live_qos))
    found = peer.take()
    assert len(found) == (not qos), "a live message waits for what is retained"
    world.commit()
    world.commit()
    found += peer.take()
    payloads = [m for p in found if isinstance(p, Publish) for m in p.payloads()]
    assert sorted(payloads) == [b"0", b"1", b"new"]
    if qos:
        assert isinstance(found[0], Suback) and payloads[-1] == b"new"
    else:
        assert isinstance(found[1], Suback) and payloads[0] == b"new"
    assert not any(p.dup for p in found if isinstance(p, Publish))
    session = world.broker.sessions.get("s")
    assert session is not None and not session.outbound.barriers and not session.outbound.resend


def test_without_anything_to_bring_nothing_waits() -> None:
    world = with_retained(b"0", qos=0)
    peer = here(world)
    peer.send(subscribe(V5, "live", qos=1), subscribe(V5, "r/#", qos=2))
    world.client("q").send(publish("live", b"x", qos=1))
    assert peer.payloads() == [b"x"]
    world.commit()
    assert shown(peer) == [Suback, Suback, b"0"]


@pytest.mark.parametrize("handling", [1, 2])
def test_retain_handling(handling: int) -> None:
    world = with_retained(b"0")
    peer = here(world)
    peer.send(subscribe(V5, "r/#", "$share/g/r/#", qos=1, retain_handling=handling))
    world.commit()
    assert each(peer) == ([(b"0", True, False)] if handling == 1 else [])
    peer.send(subscribe(V5, "r/#", qos=1, retain_handling=handling))
    world.commit()
    assert each(peer) == []


@pytest.mark.parametrize("queue_messages_max", [0, 2])
def test_what_has_room_in_the_window_is_not_dropped(queue_messages_max: int) -> None:
    payloads = [b"%d" % number for number in range(6)]
    world = with_retained(*payloads, queue_messages_max=queue_messages_max)
    peer = here(world, receive_maximum=8)
    peer.send(subscribe(V5, "r/#", qos=1))
    publisher = world.client("q")
    for number in range(2 + queue_messages_max):
        publisher.send(publish("r/live", b"live", qos=1, packet_id=number + 1))
    world.commit()
    assert sorted(peer.payloads()) == [*payloads, b"live", b"live"]
    session = world.broker.sessions.get("s")
    assert session is not None and session.outbound.queued == queue_messages_max
    assert not world.broker.backlog.dropped


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_the_connection_is_lost_before_suback(is_taken_over: bool) -> None:
    world = with_retained(b"0")
    peer = here(world)
    peer.send(subscribe(V5, "r/#", qos=1))
    if not is_taken_over:
        peer.drop()
    peer = world.client("s", expiry=EXPIRY, clean=False)
    world.commit()
    assert each(peer) == [(b"0", True, False)], "it was never sent before"
    session = world.broker.sessions.get("s")
    assert (
        session is not None and not session.outbound.barriers and not session.outbound.is_resuming
    )
    world.client("q").send(publish("r/0", b"x", qos=1))
    assert each(peer) == [(b"x", False, False)]


def test_a_resumption_and_a_subscription_at_once() -> None:
    world = with_retained(b"0")
    peer = here(world)
    peer.send(subscribe(V5, "other", qos=1))
    world.commit()
    world.client("q").send(publish("other", b"x", qos=1))
    peer.drop()
    peer = world.client("s", expiry=EXPIRY, clean=False)
    peer.send(subscribe(V5, "r/#", qos=1))
    session = world.broker.sessions.get("s")
    assert session is not None and session.outbound.barriers == 2
    assert shown(peer) == []
    world.commit()
    assert shown(peer) == [Suback, b"x", b"0"]
    assert session.outbound.barriers == 0


def test_two_subscriptions_before_a_commit() -> None:
    world = with_retained(b"0")
    peer = here(world)
    peer.send(subscribe(V5, "r/#", qos=1))
    world.pack()
    peer.send(subscribe(V5, "r/0", qos=1))
    world.store.commit()
    world.settle()
    assert shown(peer) == [Suback]
    world.commit()
    assert shown(peer) == [Suback, b"0", b"0"]


def test_unsubscribe_in_between() -> None:
    world = with_retained(b"0")
    peer = here(world)
    peer.send(subscribe(V5, "r/#", qos=1), unsubscribe(V5, "r/#"))
    world.commit()
    assert shown(peer)[0] is Suback
    world.restart()
    session = world.broker.sessions.get("s")
    assert session is not None and not session.subscriptions


def test_it_expires_before_suback() -> None:
    world = with_retained(b"0", expiry=5)
    peer = here(world)
    peer.send(subscribe(V5, "r/#", qos=1))
    world.wait(10)
    world.commit()
    assert shown(peer) == [Suback]
    assert world.broker.backlog.dropped == {"expired": 1}
    world.fold()
    assert not any(world.store.tables.deliveries.values())


def test_a_message_at_qos_2_expires_before_its_packet_id_is_on_disk() -> None:
    world = StoredWorld()
    peer = here(world)
    peer.send(subscribe(V5, "a", qos=2))
    world.commit()
    peer.take()
    found = {prop.MESSAGE_EXPIRY_INTERVAL: 5}
    publisher = world.client("q")
    publisher.send(publish("a", b"x", qos=2, properties=found))
    world.wait(10)
    world.commit()
    assert each(peer) == []
    assert [p.packet_type for p in publisher.take()] == [PUBREC]
    world.fold()
    assert not any(world.store.tables.deliveries.values())


def test_without_a_stored_session_and_without_commit_nothing_is_kept_back() -> None:
    world = with_retained(b"0")
    peer = world.client("fleeting")
    peer.subscribe("r/#", qos=1)
    assert shown(peer) == [Suback, b"0"]
    loose = with_retained(b"0", mode=RELAXED)
    peer = loose.client("s", expiry=EXPIRY)
    peer.subscribe("r/#", qos=1)
    assert shown(peer) == [Suback, b"0"]


def test_what_is_acknowledged_is_over() -> None:
    world = with_retained(b"0")
    peer = here(world)
    peer.send(subscribe(V5, "r/#", qos=1))
    world.commit()
    (packet,) = peer.publishes()
    peer.send(encode_ack(PUBACK, packet.packet_id))
    world.commit()
    world.restart()
    assert each(here(world)) == []


def test_a_slow_peer_gets_them_in_slices() -> None:
    world = with_retained(*[bytes(100_000)] * 10, outbox_bytes_max=300_000)
    peer = here(world)
    peer.is_slow = True
    peer.send(subscribe(V5, "r/#", qos=1))
    world.commit()
    assert len(peer.waiting) < 700_000, "the rest waits for the peer"
    while peer.waiting:
        peer.read()
    assert len(peer.publishes()) == 10
