"""What waits for clients that are away is held against them: others' messages still find room."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec.constants import PUBACK, V5
from mqtt_broker.codec.encode import encode_ack
from sessions.journal.journal import MEMORY
from tests.core.peers import Peer, World, publish
from tests.core.stored import StoredWorld

SIZE = 60_000


def away(world: World, client_id: str, *filters: str) -> None:
    """A stored session whose client has gone."""
    peer = world.client(client_id, clean=False, expiry=100_000)
    peer.subscribe(*filters, qos=1)
    if isinstance(world, StoredWorld):
        world.commit()
    peer.drop()


def back(world: World, client_id: str) -> Peer:
    peer = world.client(client_id, clean=False, expiry=100_000)
    if isinstance(world, StoredWorld):
        world.fold()
        world.page()
    return peer


def hogs(world: World, count: int, messages: int) -> Peer:
    """So many clients that are away, with so many messages each."""
    publisher = world.client("p")
    for number in range(count):
        away(world, f"hog{number}", f"hog/{number}")
        for message in range(messages):
            send(world, publisher, f"hog/{number}", message)
    return publisher


def send(world: World, publisher: Peer, topic: str, number: int) -> None:
    payload = b"%d " % number + bytes(SIZE)
    publisher.send(publish(topic, payload, qos=1, packet_id=1 + number % 60_000))
    if isinstance(world, StoredWorld) and number % 10 == 9:
        world.fold()
        world.page()


def numbers(peer: Peer) -> list[int]:
    return [int(payload.split(b" ")[0]) for payload in peer.payloads()]


def queued(world: World, client_id: str) -> int:
    session = world.broker.sessions.get(client_id)
    assert session is not None
    return session.outbound.queued


LIMITS: dict[str, Any] = {"queue_bytes_max": 4 << 20, "queue_total_bytes_max": 16 << 20}


@pytest.mark.parametrize("is_stored", [False, True])
def test_sixteen_clients_that_are_away_leave_room_for_another(is_stored: bool) -> None:
    """It gets all that is sent to it, and each of them keeps its newest messages."""
    settings = {**LIMITS, "queue_memory_bytes_max": 1 << 20}
    world = StoredWorld(**settings) if is_stored else World(**settings)
    publisher = hogs(world, 16, 80)
    backlog = world.broker.backlog
    assert backlog.queued_bytes > 15 << 20
    away(world, "late", "late")
    for number in range(12):
        send(world, publisher, "late", number)
    if isinstance(world, StoredWorld):
        world.fold()
        world.page()
    assert queued(world, "late") == 12
    assert backlog.queued_bytes <= 16 << 20 and not backlog.owed_bytes
    late = back(world, "late")
    assert numbers(late) == list(range(12))
    counts = [queued(world, f"hog{number}") for number in range(16)]
    assert min(counts) >= 5 and sum(counts) + 12 > 200
    for number in range(16):
        kept = numbers(back(world, f"hog{number}"))
        assert kept == list(range(80 - len(kept), 80))


@pytest.mark.parametrize("is_stored", [False, True])
def test_messages_that_no_store_has_find_memory(is_stored: bool) -> None:
    settings: dict[str, Any] = {"queue_memory_bytes_max": 4 << 20, "queue_total_bytes_max": 1 << 30}
    if is_stored:
        world: World = StoredWorld(durabilities=[("hog/#", MEMORY), ("late", MEMORY)], **settings)
    else:
        world = World(queue_bytes_max=2 << 20, **{**settings, "queue_total_bytes_max": 8 << 20})
    publisher = hogs(world, 16, 60)
    away(world, "late", "late")
    for number in range(20):
        send(world, publisher, "late", number)
    assert queued(world, "late") >= 7, "of 134 there is room for"
    assert world.broker.backlog.memory_bytes <= 8 << 20
    kept = numbers(back(world, "late"))
    assert kept == list(range(20 - len(kept), 20))


def test_a_shared_subscription_has_its_room_as_well() -> None:
    world = World(**LIMITS)
    publisher = hogs(world, 16, 80)
    away(world, "member", "$share/g/late")
    for number in range(12):
        send(world, publisher, "late", number)
    assert numbers(back(world, "member")) == list(range(12))
    away(world, "another", "$share/h/much")
    for number in range(70):
        send(world, publisher, "much", number)
    away(world, "later", "later")
    for number in range(12):
        send(world, publisher, "later", number)
    assert queued(world, "later") == 12
    kept = numbers(back(world, "another"))
    assert 5 < len(kept) < 70 and kept == list(range(70 - len(kept), 70))


def test_what_was_dropped_is_counted_and_a_connection_is_not_stuck_by_it() -> None:
    """A queue that has given up everything is none: what comes next need not wait behind it."""
    world = World(queue_total_bytes_max=1 << 20, outbox_bytes_max=1024, inflight_max=1)
    slow = world.client("slow", V5)
    slow.subscribe("slow", qos=1)
    publisher = world.client("p")
    for number in range(14):
        send(world, publisher, "slow", number)
    assert queued(world, "slow") == 13
    for number in range(30):
        away(world, f"a{number}", "all")
    for number in range(40):
        publisher.send(publish("all", bytes(1_000), qos=1, packet_id=1 + number))
    assert world.broker.backlog.dropped["queue_full"] >= 13 - queued(world, "slow")
    assert numbers(slow) == [0]
    slow.send(encode_ack(PUBACK, 1))
    for packet_id in range(2, 40):
        slow.send(encode_ack(PUBACK, packet_id))
    slow.take()
    assert queued(world, "slow") == 0
    send(world, publisher, "slow", 99)
    assert numbers(slow) == [99]
