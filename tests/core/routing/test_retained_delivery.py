"""Retained messages that a SUBSCRIBE brings a slice a turn, and what happens in between."""

from __future__ import annotations

import gc
import random
from collections import Counter
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import PINGREQ_BYTES, encode_ack
from mqtt_broker.codec.packets import Pingresp, Publish, Suback, Unsuback
from mqtt_broker.core import dispatch
from mqtt_broker.core.routing.retained_delivery import delivery_to
from sessions.journal.journal import RELAXED
from sessions.messages.message import single
from sessions.messages.work import Work
from sessions.session import Session
from tests.core.peers import V5, Peer, World, connect, disconnect, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

COUNT = 30
TINY = 1  # unit: each step ends the share


def retain(world: World, count: int = COUNT, *, qos: int = 1, size: int = 0) -> None:
    for number in range(count):
        message = single(
            f"r/{number}", b"%d" % number + bytes(size), qos=qos, retain=True, now=world.now
        )
        world.broker.retained.put(message, None)


def turn(world: World) -> None:
    world.broker.work(world.now)
    world.broker.flush(world.now)


def send(peer: Peer, *packets: bytes) -> None:
    """Send packets that one turn reads; the next turns are up to the test."""
    dispatch.receive(peer.connection, b"".join(packets), peer.world.now)
    peer.world.broker.flush(peer.world.now)


def topics(peer: Peer) -> list[str]:
    return [packet.topic for packet in peer.take() if isinstance(packet, Publish)]


def is_known(client_id: str) -> bool:
    """Tell whether anything in this process still has a session of this client.

    Other tests of the process may leave sessions, so the client's name must be nobody else's.
    """
    gc.collect()
    return any(
        isinstance(found, Session) and found.client_id == client_id for found in gc.get_objects()
    )


def finish(world: World) -> None:
    while world.broker.has_work:
        turn(world)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_slices_come_behind_suback_and_bring_each_once(qos: int) -> None:
    world = World(work=Work(TINY, TINY))
    retain(world, qos=qos)
    peer = world.client("s")
    send(peer, subscribe(V5, "r/#", qos=2))
    (answer, *early) = peer.take()
    assert isinstance(answer, Suback) and len(early) <= 1
    turns, found = 0, [p.topic for p in early]
    while world.broker.has_work:
        turn(world)
        new = topics(peer)
        assert len(new) <= 1
        found += new
        turns += 1
    assert turns >= COUNT
    assert Counter(found) == Counter(f"r/{number}" for number in range(COUNT))
    assert delivery_to(peer.connection.session) is None


def test_the_client_is_served_meanwhile() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    peer, other = world.client("s"), world.client("o")
    other.subscribe("from/s")
    other.take()
    send(peer, subscribe(V5, "r/#", qos=1))
    peer.take()
    send(peer, publish("from/s", b"1"), PINGREQ_BYTES)
    for _ in range(6):
        turn(world)
    assert any(isinstance(packet, Pingresp) for packet in peer.take())
    assert other.payloads() == [b"1"] and world.broker.has_work


def test_several_subscriptions_are_served_one_after_the_other() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    peer = world.client("s")
    send(peer, subscribe(V5, "r/#"), subscribe(V5, "r/+", "r/3"), subscribe(V5, "+/4"))
    finish(world)
    found = Counter(topics(peer))
    assert found["r/5"] == 2 and found["r/3"] == 3 and found["r/4"] == 3


def test_asked_for_again_it_comes_again() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    peer = world.client("s")
    send(peer, subscribe(V5, "r/#"))
    for _ in range(10):
        turn(world)
    seen = len(topics(peer))
    send(peer, subscribe(V5, "r/#", identifier=7))
    finish(world)
    again = [packet for packet in peer.take() if isinstance(packet, Publish)]
    assert 5 < seen < COUNT and seen + len(again) == 2 * COUNT
    last = again[-COUNT:]
    assert all(packet.properties.subscription_ids == [7] for packet in last)
    assert not any(packet.properties.subscription_ids for packet in again[:-COUNT])


def test_asked_for_again_and_again_it_comes_as_often_as_is_needed() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    peer = world.client("s")
    for _ in range(50):
        send(peer, *[subscribe(V5, "r/#")] * 20)
        for _ in range(25):
            world.broker.work(world.now)
        delivery = delivery_to(peer.connection.session)
        assert delivery is not None and delivery.wanted <= 16 + 2
    peer.take()
    finish(world)
    assert set(topics(peer)) == {f"r/{number}" for number in range(COUNT)}


def test_asked_for_again_without_retained_messages_it_goes_on() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    peer = world.client("s")
    send(peer, subscribe(V5, "r/#", qos=1))
    for _ in range(10):
        turn(world)
    send(peer, subscribe(V5, "r/#", qos=0, retain_handling=2))
    finish(world)
    found = [packet for packet in peer.take() if isinstance(packet, Publish)]
    assert Counter(packet.topic for packet in found).keys() == {f"r/{n}" for n in range(COUNT)}
    assert len(found) == COUNT


def test_unsubscribe_ends_it() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    peer = world.client("s")
    send(peer, subscribe(V5, "r/#", "r/1"))
    for _ in range(8):
        turn(world)
    send(peer, unsubscribe(V5, "r/#"))
    while not any(isinstance(packet, Unsuback) for packet in peer.take()):
        turn(world)
    finish(world)
    assert topics(peer) in ([], ["r/1"])


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world)
    for goodbye in (disconnect(), b""):
        peer = world.client("who goes")
        send(peer, subscribe(V5, "r/#"))
        assert world.broker.has_work and is_known("who goes")
        if goodbye:
            send(peer, goodbye)
        else:
            peer.connection.lost(world.now)
        finish(world)
        world.peers.clear()
        del peer
        assert not is_known("who goes")


@pytest.mark.parametrize("kind", ["memory", "relaxed"])
def test_the_rest_goes_into_the_queue_of_a_session_that_lives_on(kind: str) -> None:
    work = Work(TINY, TINY)
    world = World(work=work) if kind == "memory" else StoredWorld(work=work, mode=RELAXED)
    retain(world)
    peer = world.client("s", expiry=100, receive_maximum=5)
    send(peer, subscribe(V5, "r/#", qos=1))
    for _ in range(4):
        turn(world)
    peer.connection.lost(world.now)
    finish(world)
    session = world.broker.sessions.get("s")
    assert session is not None and delivery_to(session) is None
    assert session.outbound.queued + len(session.outbound.window) == COUNT
    again = world.client("s", clean=False, expiry=100)
    world.settle()
    assert sorted(topics(again)) == sorted(f"r/{number}" for number in range(COUNT))


def test_a_new_connection_gets_the_rest() -> None:
    world = World(work=Work(TINY, TINY))
    retain(world, qos=0)
    peer = world.client("s", expiry=100)
    send(peer, subscribe(V5, "r/#"))
    for _ in range(4):
        turn(world)
    again = world.peer()
    again.is_slow = True

    dispatch.receive(again.connection, connect("s", clean=False, expiry=100), world.now)
    finish(world)
    again.is_slow = False
    again.read()
    assert len(topics(peer)) + len(topics(again)) == COUNT


@pytest.mark.parametrize("qos", [0, 1])
def test_a_reader_that_stops_is_waited_for(qos: int) -> None:
    """Nothing is dropped, what it has unread is bounded, and nobody works meanwhile."""
    world = World(outbox_bytes_max=20_000, queue_messages_max=10)
    retain(world, 200, qos=qos, size=1_000)
    peer = world.client("s", receive_maximum=50)
    peer.is_slow = True
    send(peer, subscribe(V5, "r/#", qos=1))
    finish(world)
    assert len(peer.waiting) < 70_000 and delivery_to(peer.connection.session) is not None
    found: list[str] = []
    while peer.waiting:
        peer.read(5_000)
        for packet in peer.take():
            if isinstance(packet, Publish):
                found.append(packet.topic)
                if packet.qos:
                    for packet_id in packet.packet_ids():
                        peer.send(encode_ack(PUBACK, packet_id))
        assert peer.connection.session.outbound.queued <= 10
    assert Counter(found) == Counter(f"r/{number}" for number in range(200))
    assert not world.broker.backlog.dropped
    assert delivery_to(peer.connection.session) is None


def test_a_client_that_acknowledges_late_is_waited_for() -> None:
    world = World(queue_messages_max=10)
    retain(world, 100)
    peer = world.client("s", receive_maximum=2)
    send(peer, subscribe(V5, "r/#", qos=1))
    finish(world)
    found: list[str] = []
    while True:
        packets = [packet for packet in peer.take() if isinstance(packet, Publish)]
        if not packets:
            break
        assert peer.connection.session.outbound.queued <= 10
        for packet in packets:
            found.append(packet.topic)
            peer.send(*[encode_ack(PUBACK, packet_id) for packet_id in packet.packet_ids()])
    assert Counter(found) == Counter(f"r/{number}" for number in range(100))
    assert not world.broker.backlog.dropped


@pytest.mark.parametrize("end", ["drop", "takeover", "kick", "stall"])
def test_the_end_of_a_reader_that_is_waited_for(end: str) -> None:
    world = World(outbox_bytes_max=20_000, stalled_reader_s=5)
    retain(world, 200, qos=0, size=1_000)
    peer = world.client("s")
    peer.is_slow = True
    send(peer, subscribe(V5, "r/#"))
    finish(world)
    session = peer.connection.session
    assert delivery_to(session) is not None
    if end == "drop":
        peer.drop()
    elif end == "takeover":
        world.client("s")
    elif end == "kick":
        world.broker.kick("s", world.now)
    else:
        world.wait(20)
    world.settle()
    assert not world.broker.has_work and delivery_to(session) is None
    assert world.broker.sessions.get("s") is not session


@pytest.mark.parametrize("live_qos", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_older_comes_behind_something_newer(seed: int, live_qos: int) -> None:
    """Topics change between the slices; some go, and come again."""
    world = World(work=Work(40, 100))
    rng = random.Random(seed)
    publisher, peer = world.client("p"), world.client("s")
    serial = 0
    for number in range(60):
        publisher.send(publish(f"{number % 7}/{number}", b"0", qos=live_qos, retain=True))
    send(peer, subscribe(V5, "#", qos=1), subscribe(V5, "+/+", qos=1))
    newest: dict[str, int] = {}
    while world.broker.has_work:
        for _ in range(2):
            serial += 1
            number = rng.randrange(60)
            gone = rng.random() < 0.2
            send(
                publisher,
                publish(
                    f"{number % 7}/{number}",
                    b"" if gone else b"%d" % serial,
                    qos=live_qos,
                    retain=True,
                ),
            )
        turn(world)
        for packet in peer.take():
            if isinstance(packet, Publish):
                for payload in packet.payloads():
                    if payload:
                        assert int(payload) >= newest.get(packet.topic, 0)
                        newest[packet.topic] = int(payload)
                for packet_id in packet.packet_ids() if packet.qos else ():
                    send(peer, encode_ack(PUBACK, packet_id))
    assert len(newest) > 40


# Stored sessions, whose SUBACK says that what they are brought is on disk.


def stored(count: int = COUNT, **settings: Any) -> StoredWorld:
    world = StoredWorld(work=Work(TINY, TINY), **settings)
    publisher = world.client("p")
    for number in range(count):
        publisher.send(publish(f"r/{number}", b"%d" % number, qos=1, retain=True))
    world.commit()
    return world


def test_suback_follows_the_last_slice() -> None:
    world = stored()
    peer = world.client("s", expiry=100)
    world.commit()
    peer.take()
    send(peer, subscribe(V5, "r/#", qos=1), PINGREQ_BYTES, publish("from/s", b"1"))
    turns = 0
    while peer.connection.operation is not None:
        assert peer.is_paused, "what it sends comes behind"
        turn(world)
        world.journal.flush(world.now)
        world.store.commit()
        turns += 1
        assert turns < 10 * COUNT
    assert turns > COUNT
    finish(world)
    world.commit()
    world.commit()
    kinds = [type(packet) for packet in peer.take()]
    assert kinds[0] in (Suback, Pingresp) and kinds.count(Publish) == COUNT
    assert kinds.index(Suback) < kinds.index(Publish)
    world.restart()
    assert len(topics(returned(world))) == COUNT


def returned(world: StoredWorld) -> Peer:
    peer = world.client("s", clean=False, expiry=100)
    world.page()
    world.commit()
    world.page()
    world.commit()
    return peer


@pytest.mark.parametrize("turns", [0, 5, 25, 60, 70])
def test_a_crash_between_slices(turns: int) -> None:
    """Without SUBACK nothing was promised; with it, everything is there."""
    world = stored()
    peer = world.client("s", expiry=100)
    world.commit()
    peer.take()
    send(peer, subscribe(V5, "r/#", qos=1))
    for _ in range(turns):
        turn(world)
        world.commit()
    is_told = any(isinstance(packet, Suback) for packet in peer.take())
    world.restart()
    peer = returned(world)
    found = topics(peer)
    assert len(found) == len(set(found))
    if is_told:
        assert len(found) == COUNT


@pytest.mark.parametrize("how", ["lost", "kick", "takeover"])
def test_a_connection_that_ends_between_slices(how: str) -> None:
    world = stored()
    peer = world.client("s", expiry=100)
    world.commit()
    send(peer, subscribe(V5, "r/#", qos=1))
    for _ in range(12):
        turn(world)
    assert peer.connection.operation is not None
    session = peer.connection.session
    if how == "lost":
        peer.connection.lost(world.now)
    elif how == "kick":
        world.broker.kick("s", world.now)
    else:
        again = world.peer()

        dispatch.receive(again.connection, connect("s", clean=False, expiry=100), world.now)
    finish(world)
    world.commit()
    finish(world)
    assert not session.outbound.barriers or how == "takeover"
    peer = returned(world)
    assert world.broker.sessions.get("s") is session
    assert not session.outbound.barriers and not peer.connection.is_held
    found = topics(peer)
    assert len(found) == len(set(found))
    world.client("q").send(publish("r/0", b"live", qos=1))
    world.commit()
    assert peer.payloads()[-1:] == [b"live"], "it is subscribed, and nothing keeps it back"


@pytest.mark.parametrize("turns", [0, 5, 25, 60, 70])
@pytest.mark.parametrize("end", ["crash", "lost", "takeover"])
def test_a_subscription_that_is_there_has_brought_everything(end: str, turns: int) -> None:
    """A client that asks for retained messages of new subscriptions alone misses none."""
    world = stored()
    peer = world.client("s", expiry=100)
    world.commit()
    peer.take()
    send(peer, subscribe(V5, "r/+", "r/#", qos=1, retain_handling=1))
    for _ in range(turns):
        turn(world)
        world.journal.flush(world.now)
        world.store.commit()
    found = topics(peer)
    if end == "crash":
        world.restart()
    elif end == "lost":
        peer.connection.lost(world.now)
        finish(world)
        world.commit()
    peer = returned(world)
    peer.send(subscribe(V5, "r/+", "r/#", qos=1, retain_handling=1))
    finish(world)
    for _ in range(3):
        world.commit()
        finish(world)
    count = Counter(found + topics(peer))
    assert len(count) == COUNT and min(count.values()) >= 2


def test_it_waits_for_a_disk_that_is_behind() -> None:
    """What waits for the disk is bounded, and nobody works meanwhile."""
    world = stored(100, journal_bytes_max=1_000)
    world.fold()
    peer = world.client("s", expiry=100)
    world.commit()
    peer.take()
    send(peer, subscribe(V5, "r/#", qos=1))
    rounds = 0
    while not any(isinstance(packet, Suback) for packet in peer.take()):
        finish(world)
        assert peer.connection.operation is None or world.journal.is_behind
        world.now += 1
        world.broker.tick(world.now)
        finish(world)
        world.journal.flush(world.now)
        world.store.commit()
        world.store.fold()
        world.now += 1
        world.broker.tick(world.now)
        rounds += 1
        assert rounds < 100
    assert rounds > 5, "a thousand bytes a round"
    for _ in range(5):
        world.commit()
        finish(world)
    assert len(returned(world).connection.session.outbound.window) == 100


def test_who_goes_while_the_disk_is_behind_does_not_wait_for_it() -> None:
    world = stored(100, journal_bytes_max=1_000)
    world.fold()
    peer = world.client("s", expiry=100)
    world.commit()
    send(peer, subscribe(V5, "r/#", qos=1))
    finish(world)
    assert world.journal.is_behind and peer.connection.operation is not None
    peer.connection.lost(world.now)
    world.now += 1
    world.broker.tick(world.now)
    finish(world)
    world.commit()
    session = world.broker.sessions.get("s")
    assert session is not None and not session.outbound.is_online
    assert session.outbound.queued + len(session.outbound.window) == 100


def test_live_messages_wait_behind_what_is_recorded() -> None:
    world = stored()
    peer, publisher = world.client("s", expiry=100), world.client("q")
    world.commit()
    peer.take()
    send(peer, subscribe(V5, "r/#", qos=1))
    for number in range(20):
        turn(world)
        send(publisher, publish(f"r/{number}", b"live", qos=1, retain=True))
    finish(world)
    for _ in range(5):
        world.commit()
        finish(world)
    (first, *rest) = peer.take()
    assert isinstance(first, Suback)
    last = {p.topic: p.payloads()[-1] for p in rest if isinstance(p, Publish)}
    assert sum(payload == b"live" for payload in last.values()) == 20
    assert len(last) == COUNT


# The sweep.


def test_a_sweep_takes_turns_and_leaves_what_lives() -> None:
    world = World(work=Work(200, 200), retained_sweep_s=60)
    found = {prop.MESSAGE_EXPIRY_INTERVAL: 30}
    publisher = world.client("p")
    for number in range(500):
        publisher.send(
            publish(f"{number}/x", b"1", retain=True, properties=found if number % 2 else None)
        )
    publisher.send(publish("$hidden/x", b"1", retain=True, properties=found))
    world.now += 61
    world.broker.tick(world.now)
    turns = 0
    while world.broker.has_work:
        turn(world)
        turns += 1
        if turns == 2:
            send(publisher, publish("499/x", b"2", retain=True), publish("new", b"2", retain=True))
    assert turns > 5
    assert len(world.broker.retained) == 252
    world.wait(70)
    assert len(world.broker.retained) == 252, "and the next one comes in its time"


def test_nothing_is_swept_where_nothing_expires() -> None:
    world = World(work=Work(TINY, TINY), retained_sweep_s=60)
    retain(world)
    world.now += 61
    world.broker.tick(world.now)
    assert not world.broker.has_work
