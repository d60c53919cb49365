"""QoS 2 exchanges that clients open and never complete are bounded, of all sessions together."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.packets import Disconnect
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from tests.core.peers import Peer, World, connect, publish
from tests.core.stored import StoredWorld


def open_exchanges(peer: Peer, first: int, count: int, version: int = V311) -> None:
    world = peer.world
    for start in range(first, first + count, 500):
        ids = range(start, min(start + 500, first + count))
        data = b"".join([publish("t", b"x", qos=2, packet_id=one, version=version) for one in ids])
        peer.send(data)
        if isinstance(world, StoredWorld):
            world.commit()
        if peer.is_closed:
            return


def release(peer: Peer, first: int, count: int) -> None:
    for one in range(first, first + count):
        peer.send(b"\x62\x02" + one.to_bytes(2, "big"))


def kept(world: World) -> int:
    return world.broker.sessions.state.bytes


@pytest.mark.parametrize("is_stored", [False, True])
def test_exchanges_of_many_clients_hold_to_the_limit(is_stored: bool) -> None:
    """65,535 of each 3.1.1 client were six megabytes, and nothing counted them."""
    lines: list[str] = []
    limit = 4_000_000
    world: World = (
        StoredWorld(sessions_bytes_max=limit)
        if is_stored
        else World(log=lines.append, sessions_bytes_max=limit)
    )
    before = kept(world)
    gc.collect()
    tracemalloc.start()
    peers = []
    for number in range(12):
        peer = world.client(f"c{number}", V311)
        open_exchanges(peer, 1, 1_500)
        peers.append(peer)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert before <= kept(world) <= limit
    open_now = sum(len(session.inbound.ids) for session in world.broker.sessions)
    assert open_now >= 3_000 and open_now * 60 < kept(world)
    assert size < kept(world) * 2 + 3_000_000
    closed = [peer for peer in peers if peer.is_closed]
    assert closed
    said = sum("no memory for more than" in line for line in lines)
    assert said == (0 if is_stored else len(closed))
    refused = world.broker.counters.refused
    assert refused[f"disconnect/{reasons.name(QUOTA_EXCEEDED)}"] == len(closed)
    small = world.client("small", V311)
    open_exchanges(small, 1, 8)
    assert not small.is_closed


def test_room_is_given_back_when_exchanges_are_completed() -> None:
    world = World()
    peer = world.client("c", V311)
    before = kept(world)
    open_exchanges(peer, 1, 1_000)
    assert kept(world) - before > 1_000 * 60
    release(peer, 1, 1_000)
    assert kept(world) == before
    open_exchanges(peer, 1, 1_000)
    peer.drop()
    assert kept(world) == 0


def test_the_receive_maximum_is_what_it_was() -> None:
    world = World()
    peer = world.peer()
    peer.send(connect("c"))
    open_exchanges(peer, 1, 20, V5)
    assert not peer.is_closed
    open_exchanges(peer, 21, 1, V5)
    last = peer.take()[-1]
    assert isinstance(last, Disconnect) and last.reason == reasons.RECEIVE_MAXIMUM_EXCEEDED


def test_open_exchanges_survive_a_restart_and_count() -> None:
    world = StoredWorld()
    peer = world.client("c", V311, clean=False)
    world.commit()
    open_exchanges(peer, 1, 300)
    before = kept(world)
    world.fold()
    world.restart()
    assert kept(world) > 300 * 60 and before > 300 * 60
    session = world.broker.sessions.get("c")
    assert session is not None and len(session.inbound.ids) == 300
    again = world.client("c", V311, clean=False)
    world.commit()
    open_exchanges(again, 1, 400)
    assert len(session.inbound.ids) == 400
