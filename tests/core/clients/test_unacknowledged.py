"""Clients that read and never acknowledge: what they make the broker keep is bounded."""

from __future__ import annotations

import pytest

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from mqtt_broker.core.clients.unacknowledged import ACKNOWLEDGES_NOTHING
from tests.core.peers import Peer, World, publish

LARGE = 100_000


def reader(world: World, client_id: str, topic: str, qos: int = 1, **fields: int) -> Peer:
    peer = world.client(client_id, receive_maximum=65_535, **fields)
    peer.subscribe(topic, qos=qos)
    peer.take()
    return peer


def send(world: World, publisher: Peer, topic: str, count: int, size: int = LARGE) -> None:
    for number in range(count):
        payload = b"%d " % number + bytes(size)
        publisher.send(publish(topic, payload, qos=1, packet_id=1 + number))
    publisher.take()


def numbers(peer: Peer) -> list[int]:
    return [int(payload.split(b" ")[0]) for payload in peer.payloads()]


def acknowledge(peer: Peer) -> list[int]:
    """Acknowledge all that has come, and what comes for it, in turn; returns what came."""
    got: list[int] = []
    while packets := peer.publishes():
        for packet in packets:
            got += [int(payload.split(b" ")[0]) for payload in packet.payloads()]
            peer.send(*[encode_ack(PUBACK, i) for i in packet.packet_ids()])
    return got


def test_what_one_client_does_not_acknowledge_is_bounded_and_the_rest_waits() -> None:
    world = World(inflight_bytes_max=1_000_000, queue_bytes_max=1 << 30)
    peer = reader(world, "s", "t")
    publisher = world.client("p")
    send(world, publisher, "t", 100)
    window = peer.connection.session.outbound.window
    assert window.bytes <= 1_000_000 and len(window) == 9
    assert world.broker.backlog.inflight_bytes == window.bytes
    assert acknowledge(peer) == list(range(100)), "nothing is lost, and all in order"
    assert window.bytes == world.broker.backlog.inflight_bytes == 0


def test_all_of_them_hold_to_their_limit_and_others_go_on() -> None:
    """By default 65,535 messages of 2 MB: 131 GB for each of them."""
    world = World(inflight_total_bytes_max=10_000_000)
    hogs = [reader(world, f"h{number}", f"t/{number}", number % 2 + 1) for number in range(30)]
    publisher = world.client("p")
    for number in range(30):
        send(world, publisher, f"t/{number}", 60)
    backlog = world.broker.backlog
    assert backlog.inflight_bytes <= 10_000_000
    assert backlog.queued_bytes > 100_000_000, "what is not under way waits"
    late = reader(world, "late", "late")
    send(world, publisher, "late", 5, size=1_000)
    assert acknowledge(late) == list(range(5))
    assert not any(hog.is_closed for hog in hogs)


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_message_to_many_is_under_way_to_all_of_them(count: int) -> None:
    """It is in memory once."""
    world = World(inflight_total_bytes_max=10_000_000)
    readers = [reader(world, f"r{number}", "news") for number in range(count)]
    send(world, world.client("p"), "news", 5)
    assert world.broker.backlog.inflight_bytes < 5 * (LARGE + 1_000 + 200 * count)
    assert all(numbers(one) == list(range(5)) for one in readers)


def test_who_acknowledges_nothing_under_pressure_is_closed() -> None:
    lines: list[str] = []
    world = World(log=lines.append, inflight_total_bytes_max=10_000_000, stalled_reader_s=40)
    hogs = [reader(world, f"h{number}", f"t/{number}") for number in range(20)]
    fair = reader(world, "fair", "fair")
    publisher = world.client("p")
    for number in range(20):
        send(world, publisher, f"t/{number}", 60)
    send(world, publisher, "fair", 60)
    got: list[int] = []
    for _ in range(10):
        world.wait(10)
        for packet in fair.publishes():
            got += [int(payload.split(b" ")[0]) for payload in packet.payloads()]
            fair.send(*[encode_ack(PUBACK, i) for i in packet.packet_ids()])
    closed = [hog for hog in hogs if hog.is_closed]
    assert closed and not fair.is_closed
    assert world.broker.backlog.inflight_bytes <= 5_000_000, "until there is no need"
    assert world.broker.counters.refused == {f"disconnect/{ACKNOWLEDGES_NOTHING}": len(closed)}
    for hog in closed:
        last = hog.take()[-1]
        assert isinstance(last, Disconnect) and last.reason == QUOTA_EXCEEDED
    said = [line for line in lines if "has acknowledged nothing of" in line]
    assert len(said) == len(closed)


def test_without_pressure_nobody_is_closed_for_it() -> None:
    world = World(stalled_reader_s=5)
    peer = reader(world, "s", "t")
    send(world, world.client("p"), "t", 100)
    world.wait(1_000)
    assert not peer.is_closed and world.timers < 20


def test_who_found_no_room_goes_on_when_others_have_acknowledged() -> None:
    """Nothing is under way to it, so no acknowledgement of its own would bring that about."""
    world = World(inflight_total_bytes_max=1_000_000, queue_bytes_max=1 << 30)
    hogs = [reader(world, f"h{number}", f"t/{number}") for number in range(20)]
    publisher = world.client("p")
    for number in range(20):
        send(world, publisher, f"t/{number}", 10, size=60_000)
    backlog = world.broker.backlog
    while 1_000_000 - backlog.inflight_bytes > 50_000:
        hogs.append(reader(world, f"h{len(hogs)}", f"t/{len(hogs)}"))
        send(world, publisher, f"t/{len(hogs) - 1}", 10, size=50_000)
    late = reader(world, "late", "late")
    send(world, publisher, "late", 3, size=200_000)
    assert numbers(late) == [] and late.connection.session.outbound in backlog.starved
    for hog in hogs:
        acknowledge(hog)
    assert acknowledge(late) == [0, 1, 2]
    assert not backlog.starved and backlog.inflight_bytes == 0


def test_a_session_that_ends_while_it_waits_for_others_is_forgotten() -> None:
    world = World(inflight_total_bytes_max=1_000_000)
    world.broker.backlog.inflight_bytes = 990_000
    late = reader(world, "late", "late")
    send(world, world.client("p"), "late", 3)
    assert world.broker.backlog.starved
    late.drop()
    assert not world.broker.backlog.starved and world.broker.backlog.inflight_bytes == 990_000


def test_packet_ids_that_are_never_completed_count_too() -> None:
    world = World()
    peer = reader(world, "s", "t", qos=2)
    publisher = world.client("p")
    for number in range(100):
        publisher.send(
            publish("t", b"%d" % number, qos=2, packet_id=1 + number % 20),
            b"\x62\x02" + (1 + number % 20).to_bytes(2, "big"),
        )
        for packet in peer.publishes():
            peer.send(*[encode_ack(PUBREC, i) for i in packet.packet_ids()])
    window = peer.connection.session.outbound.window
    assert len(window.releasing) == 100 and window.bytes == 100 * 100
    peer.send(*[encode_ack(PUBCOMP, i) for i in list(window.releasing)])
    assert window.bytes == world.broker.backlog.inflight_bytes == 0
