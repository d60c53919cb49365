"""A connection that ends leaves nothing for the garbage collector, whichever way it ends.

15,000 that go at once would be collected in one piece, which takes a second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from mqtt_broker.codec.packets import Will
from tests.core.fairness import Member, crowd
from tests.core.peers import V5, World, disconnect, publish, subscribe

ENDS: Final[dict[str, Callable[[Member, float], None]]] = {
    "lost": lambda member, now: member.lose(now),
    "DISCONNECT": lambda member, now: member.receive(disconnect(), now),
    "a violation": lambda member, now: member.receive(b"\x00\x00", now),
    "kicked": lambda member, now: member.connection.end(now, 0x98),
}


@pytest.fixture
def world() -> Iterator[World]:
    world = World(inflight_max=100)
    world.client("publisher").subscribe("$share/g/t")  # the group outlives the others
    gc.collect()
    gc.disable()
    yield world
    gc.enable()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("fields", [{}, {"will": Will("w", b"gone", 1)}, {"expiry": 10}])
def test_nothing_is_left(world: World, end: str, fields: dict[str, Any]) -> None:
    packets = subscribe(V5, "+/1", "t"), subscribe(V5, "$share/g/t", qos=1), publish("a", b"x")
    members = crowd(world.broker, world.now, 5, *packets, **fields)
    world.peers[0].send(publish("t", b"to all of them", qos=1, packet_id=1))
    world.settle()
    gc.collect()
    for member in members:
        ENDS[end](member, world.now)
        if not member.link.is_closed:
            member.lose(world.now)
    del members, member
    world.settle()
    world.wait(20)
    assert gc.collect() == 0


def test_nothing_is_left_of_one_that_never_connected(world: World) -> None:
    member = Member(world.broker, world.now)
    member.receive(b"\x10\x05", world.now)
    member.lose(world.now)
    del member
    assert gc.collect() == 0
