"""A packet of very many Topic Filters is refused before they are decoded: they take twenty times
the bytes that they came in, and wait for their turn.
"""

from __future__ import annotations

import tracemalloc

import pytest

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Disconnect, Suback, Unsubscribe
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from tests.core.peers import Peer, World, subscribe


def asking(version: int, count: int, kind: str) -> bytes:
    filters = [f"{number % 400}" for number in range(count)]
    if kind == "SUBSCRIBE":
        return subscribe(version, *filters)
    return encode_from_client(version, Unsubscribe(1, filters))


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
@pytest.mark.parametrize("version", [V5, V311])
def test_very_many_filters_in_one_packet_close_the_connection(version: int, kind: str) -> None:
    """40 clients with 390,000 each made the broker keep more than a gigabyte."""
    world = World(subscriptions_max=2_000)
    peer = world.client("c", version)
    data = asking(version, 50_000, kind)
    tracemalloc.start()
    peer.send(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peer.is_closed and peak < 3 * len(data)
    if version == V5:
        last = peer.take()[-1]
        assert isinstance(last, Disconnect) and last.reason == QUOTA_EXCEEDED


@pytest.mark.parametrize(("most", "count"), [(3, 1_000), (2_000, 2_000)])
def test_as_many_as_a_client_may_have_are_answered_one_by_one(most: int, count: int) -> None:
    world = World(subscriptions_max=most)
    peer: Peer = world.client("c")
    peer.send(asking(V5, count, "SUBSCRIBE"))
    for _ in range(100):
        if peer.received:
            break
        world.settle()
    [answer] = peer.take()
    assert isinstance(answer, Suback) and len(answer.reasons) == count
    peer.send(asking(V5, max(most, 1_000) + 1, "SUBSCRIBE"))
    assert peer.is_closed
