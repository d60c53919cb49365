"""Parts of packets that connected clients never complete are bounded for all of them."""

from __future__ import annotations

import gc
import tracemalloc

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from mqtt_broker.core import dispatch
from sessions.messages.work import Work
from tests.core.peers import Peer, World, connect, publish, subscribe

LARGE = publish("t", bytes(1_000_000))


def held(world: World) -> int:
    return world.broker.state.incomplete.bytes


def part(world: World, client_id: str, size: int) -> Peer:
    peer = world.client(client_id)
    peer.send(LARGE[:size])
    return peer


def test_parts_of_packets_hold_to_the_limit_and_those_who_hold_most_go() -> None:
    """A thousand clients with two megabytes each were two gigabytes."""
    lines: list[str] = []
    world = World(log=lines.append, incomplete_bytes_max=5_000_000)
    gc.collect()
    tracemalloc.start()
    hogs = []
    for number in range(20):
        hogs.append(part(world, f"h{number}", 900_000))
        world.wait(1)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 8_000_000 and held(world) == 4 * 900_000
    assert [hog.is_closed for hog in hogs] == [True] * 16 + [False] * 4
    last = hogs[0].take()[-1]
    assert isinstance(last, Disconnect) and last.reason == QUOTA_EXCEEDED
    assert world.broker.counters.refused["disconnect/incomplete bytes"] == 16
    assert sum("that is not complete" in line for line in lines) == 16
    reader, writer = world.client("reader"), world.client("writer")
    reader.subscribe("t")
    writer.send(LARGE[:500_000])
    writer.send(LARGE[500_000:])
    assert len(reader.publishes()) == 1, "whoever completes packets is served"
    hogs[-1].drop()
    assert held(world) == 3 * 900_000
    for hog in hogs[16:19]:
        hog.send(LARGE[900_000:])
    assert held(world) == 0


def test_small_parts_are_left_alone() -> None:
    world = World(incomplete_bytes_max=100_000)
    peers = [part(world, f"s{number}", 4_000) for number in range(100)]
    assert held(world) == 0 and not any(peer.is_closed for peer in peers)


def test_who_sends_large_packets_one_after_the_other_is_not_the_oldest() -> None:
    world = World(incomplete_bytes_max=2_000_000)
    busy = part(world, "busy", 600_000)
    part(world, "hog", 600_000)
    world.wait(10)
    busy.send(LARGE[600_000:] + LARGE[:600_000])
    other = part(world, "other", 900_000)
    assert not busy.is_closed and not other.is_closed and world.peers[1].is_closed


def test_tiny_pieces_take_no_more_than_what_they_hold() -> None:
    world = World()
    peers = [world.client(f"c{number}") for number in range(20)]
    gc.collect()
    tracemalloc.start()
    for peer in peers:
        for at in range(0, 1_000, 2):
            peer.send(LARGE[at : at + 2])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20 * 4_000


def test_what_came_behind_a_connect_counts_once_it_is_connected() -> None:
    world = World()
    peer = world.peer()
    peer.send(connect("c") + LARGE[:300_000])
    assert held(world) == 300_000
    peer.send(LARGE[300_000:])
    assert held(world) == 0


def test_packets_that_wait_for_their_turn_count_as_they_are_decoded() -> None:
    """Behind much work of one client wait properties that take twenty times what came."""
    world = World(work=Work(1_000, 2_000), incomplete_bytes_max=5_000_000)
    pairs = {prop.USER_PROPERTY: [("a", "b")] * 5_000}
    behind = publish("t", b"x", properties=pairs)
    work = subscribe(V5, *[f"{number}/+" for number in range(2_000)])
    peers = [world.client(f"c{number}") for number in range(20)]
    gc.collect()
    tracemalloc.start()
    for peer in peers:
        dispatch.receive(peer.connection, work + behind, world.now)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held(world) <= 5_000_000
    closed = sum(peer.is_closed for peer in peers)
    assert 0 < closed < 20 and size < 2 * 5_000_000 + closed * 500_000
    for _ in range(10_000):
        if not world.broker.has_work:
            break
        world.settle()
    assert held(world) == 0
