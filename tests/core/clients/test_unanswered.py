"""How long acknowledgements have waited for the store: the oldest is found, whoever lost it."""

from __future__ import annotations

import pytest

from mqtt_broker.core.clients import ack_queue
from sessions.journal.journal import MEMORY
from sessions.journal.transaction import PublishTransaction
from tests.core.peers import V5 as VERSION
from tests.core.peers import Peer, World, publish, subscribe
from tests.core.stored import StoredWorld


def with_a_session(world: StoredWorld) -> StoredWorld:
    """Somebody who is away is to get what is published to `a`."""
    away = world.client("away", clean=False, expiry=1000)
    away.send(subscribe(VERSION, "a", qos=1))
    world.commit()
    away.drop()
    world.commit()
    return world


def age(world: World) -> float:
    """A second passes, and the oldest is looked for."""
    world.wait(1)
    world.broker.unanswered.check(world.now)
    since = world.broker.unanswered.since
    return world.now - since if since else 0.0


def put(peer: Peer, packet_id: int, topic: str = "a", qos: int = 1) -> None:
    peer.send(publish(topic, b"x", qos=qos, packet_id=packet_id))


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_store_does_not_take_grows_old(qos: int) -> None:
    world = with_a_session(StoredWorld())
    one = world.client("p")
    put(one, 1, qos=qos)
    assert [age(world) for _ in range(4)] == [0, 1, 2, 3]
    world.pack()
    assert age(world) == 4
    world.commit()
    assert age(world) == 0


def test_under_load_nothing_is_old() -> None:
    world = with_a_session(StoredWorld())
    peers = [world.client(f"p{number}") for number in range(3)]
    for second in range(1, 20):
        for peer in peers:
            put(peer, second)
        assert age(world) == 0
        world.commit()


def test_the_oldest_of_many_is_found_though_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal has lost one group; all that came before and comes after is answered."""
    monkeypatch.setattr(ack_queue, "CHECKED_MAX", 4)  # and there are more than that
    world = with_a_session(StoredWorld())
    peers = [world.client(f"p{number}") for number in range(10)]
    unlucky = peers[7]
    put(unlucky, 9)
    (lost,) = [entry for entry in world.journal._entries if isinstance(entry, PublishTransaction)]
    world.journal._entries.remove(lost)
    ages = []
    for second in range(1, 30):
        for peer in peers:
            if peer is not unlucky:
                put(peer, second)
        ages.append(age(world))
        world.commit()
    assert ages[-1] > 20 and ages[-5:] == [ages[-1] - 4 + later for later in range(5)]
    unlucky.drop()
    assert age(world) == 0


@pytest.mark.parametrize("mode", ["memory", "no store"])
def test_without_a_store_nobody_waits(mode: str) -> None:
    world = StoredWorld(mode=MEMORY) if mode == "memory" else World()
    world.client("s").subscribe("a", qos=1)
    one = world.client("p", clean=False, expiry=1000)
    for second in range(1, 5):
        put(one, second, qos=2)
        assert age(world) == 0


def test_who_comes_and_goes_leaves_nothing() -> None:
    world = with_a_session(StoredWorld())
    for number in range(100):
        one = world.client(f"p{number}")
        put(one, 1)
        one.drop()
    assert age(world) == 0
    assert len(world.broker.unanswered) == 0


def test_a_connection_that_is_gone_is_forgotten_though_nobody_looks() -> None:
    """An embedded broker has no watchdog."""
    world = with_a_session(StoredWorld())
    one = world.client("p")
    put(one, 1)
    assert len(world.broker.unanswered) == 1
    one.drop()
    assert len(world.broker.unanswered) == 0
