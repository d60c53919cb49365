"""Topic Aliases of many clients are bounded, and few short ones always find room."""

from __future__ import annotations

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_from_client, encode_publish
from mqtt_broker.codec.packets import Connect, Disconnect
from mqtt_broker.codec.properties import Properties
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from tests.core.peers import Peer, World, publish


def with_alias(topic: str, alias: int) -> bytes:
    return encode_publish(V5, topic, b"x", properties=Properties({prop.TOPIC_ALIAS: alias}))


def held(world: World) -> int:
    return world.broker.state.aliases.bytes


def test_long_names_of_many_clients_hold_to_the_limit() -> None:
    """Ten names of 64 KB each were 64 GB of 100,000 clients."""
    lines: list[str] = []
    world = World(log=lines.append, aliases_bytes_max=4_000_000)
    hogs = [world.client(f"h{number}") for number in range(40)]
    for hog in hogs:
        for alias in range(1, 11):
            if not hog.is_closed:
                hog.send(with_alias(f"{alias}/" + "t" * 60_000, alias))
    assert held(world) <= 4_000_000
    closed = [hog for hog in hogs if hog.is_closed]
    assert closed
    last = closed[0].take()[-1]
    assert isinstance(last, Disconnect) and last.reason == QUOTA_EXCEEDED
    refused = world.broker.counters.refused
    assert refused[f"disconnect/{reasons.name(QUOTA_EXCEEDED)}"] == len(closed)
    assert sum("Topic Aliases of" in line for line in lines) == len(closed)
    small = world.client("small")
    for alias in range(1, 11):
        small.send(with_alias(f"fleet/7/{alias}", alias))
    assert not small.is_closed
    for peer in (*hogs, small):
        peer.drop()
    assert held(world) == 0


def test_names_towards_clients_count_and_are_sent_in_full_without_room() -> None:
    world = World(aliases_bytes_max=1_000_000)
    readers: list[Peer] = []
    for number in range(10):
        peer = world.peer()
        found = Properties({prop.TOPIC_ALIAS_MAXIMUM: 100})
        peer.send(encode_from_client(V5, Connect(V5, f"r{number}", True, 0, found)))
        peer.subscribe("#")
        readers.append(peer)
    writer = world.client("w")
    topics = [f"{number}/" + "t" * 20_000 for number in range(20)]
    for topic in topics:
        writer.send(publish(topic, b"x"))
    assert 100_000 < held(world) <= 1_000_000
    for reader in readers:
        found_topics = [packet.topic for packet in reader.publishes()]
        assert found_topics == topics, "each introduced by its name"
        reader.drop()
    assert held(world) == 0
