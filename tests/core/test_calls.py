"""What a PUBLISH costs, in Python function calls: the same on every machine.

A call is 50 to 100 ns; the ways of a message are short because they make few. Each number is
what it was when the line was written, with a tenth to spare: lower it when it falls.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqtt_broker.core import dispatch
from tests.core.peers import V5, V311, Peer, World, publish, subscribe
from tests.counting import count_calls


class Sink:
    """A link that costs one call a write."""

    peer = "192.0.2.1:1"

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.writes.append(data)
        return 0


def warm(world: World, peer: Peer, data: bytes) -> tuple[World, Peer, bytes]:
    """The first message fills the caches, and is not what a message costs."""
    peer.send(data)
    return world, peer, data


def qos_0(version: int) -> tuple[World, Peer, bytes]:
    world = World()
    world.client("s", version).subscribe("a/b")
    return warm(world, world.client("p", version), publish("a/b", b"x" * 20, version=version))


def qos_0_burst() -> tuple[World, Peer, bytes]:
    world, peer, data = qos_0(V5)
    return warm(world, peer, data * 100)


def qos_1() -> tuple[World, Peer, bytes]:
    world = World()
    world.client("s").subscribe("a/b", qos=1)
    return warm(world, world.client("p"), publish("a/b", b"x" * 20, qos=1, packet_id=7))


def qos_1_burst() -> tuple[World, Peer, bytes]:
    world, peer, _ = qos_1()
    packets = [publish("a/b", b"x" * 20, qos=1, packet_id=1 + n) for n in range(100)]
    return warm(world, peer, b"".join(packets))


def fan_out() -> tuple[World, Peer, bytes]:
    world = World()
    for number in range(100):
        world.client(f"s{number}").send(subscribe(V5, "a/b"))
    return warm(world, world.client("p"), publish("a/b", b"x" * 20))


def fan_out_qos_1() -> tuple[World, Peer, bytes]:
    world = World()
    for number in range(100):
        world.client(f"s{number}").send(subscribe(V5, "a/b", qos=1))
    return warm(world, world.client("p"), publish("a/b", b"x" * 20, qos=1, packet_id=7))


# What, and how many calls it may make: through `receive` and `flush`, writes included. Two of them
# are the recorder's, for each run of messages.
TABLE: list[tuple[str, Callable[[], tuple[World, Peer, bytes]], int]] = [
    ("QoS 0, one subscriber", lambda: qos_0(V5), 16),
    ("QoS 0, one subscriber, 3.1.1", lambda: qos_0(V311), 16),
    ("QoS 0, 100 in one chunk", qos_0_burst, 16),
    ("QoS 1, one subscriber", qos_1, 32),
    ("QoS 1, 100 in one chunk", qos_1_burst, 145),
    ("QoS 0 to 100 subscribers", fan_out, 232),
    ("QoS 1 to 100 subscribers", fan_out_qos_1, 684),
]


@pytest.mark.parametrize(("what", "prepare", "limit"), TABLE, ids=[row[0] for row in TABLE])
def test_calls_of_a_publish(
    what: str, prepare: Callable[[], tuple[World, Peer, bytes]], limit: int
) -> None:
    world, peer, data = prepare()
    sinks = []
    for connection in world.broker.connections.values():
        sink = Sink()
        sinks.append(sink)
        connection.outbox.write = sink.write
    receive, flush, connection = dispatch.receive, world.broker.flush, peer.connection

    def act() -> None:
        receive(connection, data, world.now)
        flush(world.now)

    calls = count_calls(act)
    assert sum(map(len, sinks[0].writes)) > 0
    assert calls <= limit
    assert calls > limit * 0.75, f"{what}: {calls} calls; lower the limit"


def test_calls_of_a_puback() -> None:
    world, peer, data = qos_1()
    subscriber = world.peers[0]
    ack = b"\x40\x02\x00\x02"
    peer.send(data)
    subscriber.send(ack)
    calls = count_calls(lambda: dispatch.receive(subscriber.connection, ack, world.now))
    assert calls <= 13
