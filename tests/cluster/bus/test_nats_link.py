"""A connection through a network that breaks it, in one direction and in both."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from mqtt_broker.cluster.bus import nats_bus
from mqtt_broker.cluster.bus.nats_bus import CONNECTION_LOST
from mqtt_broker.cluster.frames.bodies import encode_ping
from mqtt_broker.cluster.frames.layout import PING, Drop
from tests.cluster.bus.nats_faults import NatsFaults
from tests.cluster.bus.nats_server import NatsServer
from tests.cluster.bus.nodes import Node, Nodes
from tests.cluster.proxy import DOWN, UP, Bytes, Proxy


@pytest.fixture
def proxy(nats: NatsServer) -> Iterator[Proxy]:
    with Proxy(nats.address) as found:
        yield found


def pair(nats: NatsServer, proxy: Proxy, nodes: Nodes, cluster: str) -> tuple[Node, Node]:
    """A node behind the proxy, and one beside it, both connected."""
    one = nodes.add([1], proxy.url("nats"), cluster=cluster)
    two = nodes.add([2], nats.url, cluster=cluster)
    nodes.until(lambda: one.bus.is_connected and two.bus.is_connected)
    return one, two


def test_frames_are_lost_doubled_delayed_and_exchanged(
    nats: NatsServer, proxy: Proxy, nodes: Nodes
) -> None:
    seeds = iter(range(1, 100))

    def faults() -> NatsFaults:
        rng = random.Random(next(seeds))
        return NatsFaults(rng, lose=0.1, double=0.2, delay=0.3, swap=0.3, delay_s=0.02)

    for direction in (UP, DOWN):
        proxy.damage(direction, faults)
    one, two = pair(nats, proxy, nodes, "faults")
    for number in range(300):
        assert one.ping(1, 2, number) and two.ping(2, 1, number)
        if number % 10 == 0:
            nodes.run_for(0)
    last = 1_000

    def has_come() -> bool:
        one.ping(1, 2, last)
        two.ping(2, 1, last)
        return last in one.bodies and last in two.bodies

    nodes.until(has_come)
    for node in (one, two):
        bodies = [int(str(body)) for body in node.bodies if body != last]
        assert 200 < len(bodies) < 300
        assert len(set(bodies)) == len(bodies)
        assert bodies != sorted(bodies)
        assert node.bus.reader.dropped[Drop.REPEATED] > 0
        assert node.bus.reader.missing > 0
    assert one.bus.connects == 1


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_connection_that_is_cut_in_one_direction(
    nats: NatsServer,
    proxy: Proxy,
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
) -> None:
    one, two = pair(nats, proxy, nodes, f"cut-{direction}")
    monkeypatch.setattr(nats_bus, "CHECK_S", 0.1)
    monkeypatch.setattr(nats_bus, "CONNECT_S", 0.2)
    proxy.pause(direction)
    nodes.until(lambda: "silent" in one.bus.problem)
    assert two.bus.is_connected
    nodes.until(lambda: "does not answer" in one.bus.problem)
    proxy.resume()
    monkeypatch.undo()
    nodes.until(lambda: one.bus.is_connected)
    assert one.ping(1, 2, 7) and two.ping(2, 1, 8)
    nodes.until(lambda: 7 in two.bodies and 8 in one.bodies)


def test_a_pause_loses_nothing(nats: NatsServer, proxy: Proxy, nodes: Nodes) -> None:
    one, two = pair(nats, proxy, nodes, "pause")
    proxy.pause(UP)
    for number in range(50):
        assert one.bus.send(1, 2, PING, encode_ping(number))
    nodes.run_for(0.05)
    assert not two.frames
    proxy.resume()
    nodes.until(lambda: len(two.frames) == 50)
    assert one.bus.connects == 1


def test_a_reset_connection_is_made_again(nats: NatsServer, proxy: Proxy, nodes: Nodes) -> None:
    one, two = pair(nats, proxy, nodes, "reset")
    for number in range(1, 4):
        proxy.disconnect()
        nodes.until(lambda: not one.bus.is_connected)
        nodes.until(lambda: one.bus.is_connected)
        assert one.ping(1, 2, number)
        nodes.until(lambda: len(two.frames) == number)  # noqa: B023
    assert one.bus.connects == 4
    proxy.refuse()
    nodes.until(lambda: one.bus.problem)
    proxy.accept()
    nodes.until(lambda: one.bus.is_connected)


def test_frames_that_wait_for_a_lost_connection_are_counted(
    nats: NatsServer, proxy: Proxy, nodes: Nodes
) -> None:
    one, _ = pair(nats, proxy, nodes, "waiting")
    proxy.pause(UP)
    body = bytes(500_000)
    while one.bus.queued_bytes < 4_000_000:
        assert one.bus.send(1, 2, PING, body)
    proxy.disconnect()
    nodes.until(lambda: not one.bus.is_connected)
    assert one.bus.dropped_out[CONNECTION_LOST] >= 8
    assert one.bus.queued_bytes == 0
    proxy.resume()


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_no_bytes_do_more_than_end_the_connection(
    nats: NatsServer, proxy: Proxy, nodes: Nodes, direction: str
) -> None:
    seeds = iter(range(1, 1_000))
    numbers = iter(range(1_000_000))
    proxy.damage(direction, lambda: Bytes(random.Random(next(seeds)), 0.05))
    one = nodes.add([1], proxy.url("nats"), cluster=f"bytes-{direction}")
    two = nodes.add([2], nats.url, cluster=f"bytes-{direction}")

    def talk() -> bool:
        one.ping(1, 2, next(numbers))
        two.ping(2, 1, next(numbers))
        return one.bus.connects == 3

    nodes.until(talk)
    for node in (one, two):
        bodies = [int(str(body)) for body in node.bodies]
        assert bodies == sorted(set(bodies)) and bodies
