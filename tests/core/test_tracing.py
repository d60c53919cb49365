"""Traces of a broker: taps that come and go."""

from __future__ import annotations

from mqtt_broker.core.tracing import Tracing
from mqtt_broker.recorder.traces import Trace
from tests.core.peers import Peer, World, publish


def tracing_of(world: World) -> Tracing:
    return Tracing(world.broker.state, lambda: world.now)


def has_tap(peer: Peer) -> bool:
    return peer.connection.tap is not None


def packets(trace: Trace) -> list[tuple[object, object]]:
    return [(line["direction"], line["packet"]) for line in trace.take(100, 0.0)]


def test_packets_of_a_client_in_both_directions() -> None:
    world = World()
    device, other = world.client("c"), world.client("d")
    trace = tracing_of(world).begin(world.now, client_id="c")
    device.subscribe("a")
    other.send(publish("a", b"x"))
    assert packets(trace) == [
        ("received", "SUBSCRIBE"),
        ("sent", "SUBACK"),
        ("sent", "PUBLISH"),
    ]
    assert other.connection.tap is None


def test_a_client_that_comes_later() -> None:
    world = World()
    trace = tracing_of(world).begin(world.now, address="192.0.2.1")
    world.client("c").subscribe("a")
    assert packets(trace) == [
        ("sent", "CONNACK"),
        ("received", "SUBSCRIBE"),
        ("sent", "SUBACK"),
    ]


def test_publications_of_a_topic_and_whom_they_matched() -> None:
    world = World()
    world.client("s").subscribe("a/#")
    trace = tracing_of(world).begin(world.now, topic="a/+", has_payloads=True)
    world.client("p").send(publish("a/b", b"x"), publish("b", b"y"), publish("a/c", b"z"))
    found = trace.take(9, 0.0)
    assert [(line["topic"], line["payload"], line["receivers"]) for line in found] == [
        ("a/b", "x", ["s"]),
        ("a/c", "z", ["s"]),
    ]


def test_nothing_looks_at_packets_once_no_trace_runs() -> None:
    world = World()
    device = world.client("c")
    tracing = tracing_of(world)
    write = device.connection.outbox.write
    first = tracing.begin(world.now, client_id="c", for_s=10.0)
    second = tracing.begin(world.now, client_id="c", for_s=600.0)
    assert has_tap(device)
    world.now += 11
    world.broker.tick(world.now)
    assert first.is_over
    device.subscribe("a")
    assert packets(first) == []
    assert len(packets(second)) == 2
    assert tracing.remove(second.number)
    assert not has_tap(device)
    assert device.connection.outbox.write == write
    assert world.broker.state.tracer is None


def test_a_client_that_goes_takes_its_tap_along() -> None:
    world = World()
    device = world.client("c")
    tracing = tracing_of(world)
    trace = tracing.begin(world.now, client_id="c")
    device.drop()
    world.client("c").subscribe("a")
    assert ("received", "SUBSCRIBE") in packets(trace)
    tracing.remove(trace.number)
