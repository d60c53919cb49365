"""Snapshots of clients for the recorder's answers."""

from __future__ import annotations

from mqtt_broker.core.client_views import view_client
from tests.core.peers import World, publish


def test_a_client_with_messages_in_flight_and_queued() -> None:
    world = World(inflight_max=1)
    device = world.client("c", expiry=100)
    device.subscribe("a/b", qos=1, no_local=True)
    app = world.client("app")
    for number in range(3):
        app.send(publish("a/b", b"x", qos=1, packet_id=1 + number))
    view = view_client(world.broker.state, "c")
    assert view.is_known and view.is_online and view.is_whole
    assert [(one.filter, one.qos, one.no_local) for one in view.subscriptions] == [("a/b", 1, True)]
    at_ms = int(world.now * 1000)
    assert view.in_flight == {("a/b", at_ms): 1}
    assert view.waiting == {("a/b", at_ms): 2}


def test_a_client_that_nobody_knows() -> None:
    view = view_client(World().broker.state, "nobody")
    assert not view.is_known
    assert view.subscriptions == []
