"""A core as the content of a number, on PostgreSQL."""

from __future__ import annotations

from mqtt_broker.codec.packets import Ack
from tests.cluster.content.cluster_world import ClusterWorld
from tests.core.peers import publish


def test_what_is_acknowledged_is_there_after_a_crash(world: ClusterWorld) -> None:
    one = world.node(1).at(1)
    world.node(2)
    away = one.client("away", expiry=1_000)
    away.subscribe("a/#", qos=1)
    world.run(0.5)
    away.drop()
    publisher = one.client("publisher")
    publisher.send(*(publish("a/b", b"%d" % n, qos=1, packet_id=n) for n in range(1, 6)))
    world.run(0.5)
    assert [p for p in publisher.take() if isinstance(p, Ack)]
    world.kill(1)
    heir = world.inherited(1)
    back = heir.client("away", clean=False, expiry=1_000)
    world.run(0.5)
    assert back.payloads() == [b"1", b"2", b"3", b"4", b"5"]
