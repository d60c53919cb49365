"""What the subscriptions of one client may keep, and what they may make of a match."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Suback, Unsuback
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, OpenAccess, Verdict
from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.core.routing.subscription_limits import SubscriptionLimits
from tests.core.peers import V5, V311, Peer, World, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

QUOTA = reasons.QUOTA_EXCEEDED


def codes(peer: Peer, *filters: str) -> list[int]:
    """The answers to these filters, 500 in a packet."""
    found: list[int] = []
    for at in range(0, len(filters), 500):
        peer.subscribe(*filters[at : at + 500])
        answer = peer.take()[0]
        assert isinstance(answer, Suback)
        found += answer.reasons
    return found


def mixed(levels: int) -> list[str]:
    """Filters of a and + in every order: a name of a's matches them all."""
    return ["/".join(found) for found in itertools.product("a+", repeat=levels)]


def steps(world: World, topic: str) -> int:
    """What a message to a topic visits, and finds."""
    world.broker.routes.cache.clear()
    world.broker.state.router.find(topic)
    trie, groups = world.broker.routes.trie, world.broker.routes.groups
    return trie.steps + groups.steps + len(trie.match(topic)) + len(groups.match(topic))


def limits_of(world: World) -> SubscriptionLimits:
    return world.broker.subscriptions.limits


@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_filters_that_overlap_in_every_way_are_refused(share: str) -> None:
    lines: list[str] = []
    world = World(log=lines.append)
    client = world.client("greedy")
    got = codes(client, *[share + text for text in mixed(13)])
    assert set(got) == {0, QUOTA}
    assert steps(world, "/".join("a" * 13)) <= 1_000
    refused = world.broker.counters.refusals()["subscribe/quota_exceeded"]
    assert refused == got.count(QUOTA) > 7_000
    assert lines[-1] == (
        "greedy (192.0.2.1:1): SUBSCRIBE refused, limit reached: 1,000 levels of filters that a "
        "topic matches"
    )
    # It may have others, which no such topic matches, and another client may have these.
    assert set(codes(client, *[f"{share}dev/{n}/+" for n in range(500)])) == {0}
    assert set(codes(world.client("other"), *mixed(5))) == {0}


def test_groups_of_one_filter_overlap() -> None:
    """Each would give the client a message of its own."""
    world = World()
    client = world.client("greedy")
    assert codes(client, *[f"$share/g{n}/a/b" for n in range(2_000)]).count(QUOTA) > 900
    assert steps(world, "a/b") <= 1_000


@pytest.mark.parametrize(
    "filters",
    [
        [f"dev/{n}/+" for n in range(10_000)],
        [f"$share/consumers/dev/{n}/#" for n in range(2_000)],
        [f"site/{n % 100}/{n}/+/state" for n in range(5_000)] + ["site/+/+/+/state", "#", "+/#"],
        [f"+/device-{n}/#" for n in range(5_000)],
        ["/".join(["a"] * 200 + [f"{n}"]) for n in range(2_000)],
        [f"a/{n}" for n in range(10_000)],
    ],
    ids=["devices", "shared", "sites", "anywhere", "deep", "exact"],
)
def test_ordinary_consumers_never_meet_a_limit(filters: list[str]) -> None:
    assert set(codes(World().client("consumer"), *filters)) == {0}


def test_what_it_has_may_be_asked_for_again() -> None:
    world = World(subscription_overlap_max=10, topic_levels_max=8)
    client = world.client("c")
    texts = mixed(3)
    first = codes(client, *texts)
    assert first.count(0) < len(texts)
    accepted = [text for text, code in zip(texts, first, strict=True) if not code]
    assert codes(client, *accepted) == [0] * len(accepted)
    client.send(unsubscribe(V5, *accepted))
    assert isinstance(client.take()[0], Unsuback)
    assert codes(client, *reversed(accepted)) == [0] * len(accepted)


def test_one_filter_of_as_many_levels_as_there_may_be_is_taken() -> None:
    world = World(topic_levels_max=3_000, subscription_overlap_max=100)
    client = world.client("c")
    assert codes(client, "+/" * 2_999 + "#") == [0]
    assert codes(client, "+/" * 2_998 + "a") == [QUOTA]


@pytest.mark.parametrize("version", [V5, V311])
def test_bytes_of_a_client(version: int) -> None:
    world = World(subscriptions_bytes_max=1 << 20)
    client, other = world.client("c", version), world.client("other", version)
    long = "x" * 65_000
    client.subscribe(*[f"{long}{n}" for n in range(20)])
    answer = client.take()[0]
    assert answer.reasons == [0] * 16 + [QUOTA if version == V5 else 0x80] * 4
    other.subscribe(f"{long}20")
    assert other.take()[0].reasons == [0]
    if version == V5:
        text = answer.properties[prop.REASON_STRING]
        assert text == "limit reached: 1,048,576 bytes of subscriptions of a client"
    client.send(unsubscribe(version, f"{long}3"))
    client.take()
    client.subscribe(f"{long}17")
    assert client.take()[0].reasons == [0]


def test_bytes_of_all_clients() -> None:
    world = World(subscriptions_total_bytes_max=1 << 20)
    refused = 0
    for n in range(40):
        refused += QUOTA in codes(world.client(f"c{n}"), *[f"{n}/{i}/+" for i in range(100)])
    assert limits_of(world).bytes <= 1 << 20
    assert 10 < refused < 30


class Tiered(OpenAccess):
    def connect(self, request: ConnectRequest) -> Verdict:
        small = ClientLimits(subscriptions_bytes_max=2_000)
        return Allow(None, limits=small if request.client_id == "small" else None)


def test_a_client_may_have_less_than_others() -> None:
    world = World(access=Tiered())
    assert codes(world.client("small"), *[f"a/{n}" for n in range(6)]) == [0] * 4 + [QUOTA] * 2
    assert codes(world.client("large"), *[f"a/{n}" for n in range(6)]) == [0] * 6


KINDS = {
    "exact": [f"dev/device-{n}/cmd" for n in range(3_000)],
    "wildcards": [f"dev/device-{n}/cmd/+" for n in range(3_000)],
    "deep": ["/".join(["ab"] * 190 + [f"{n}", "+"]) for n in range(300)],
    "long": ["long" * 10_000 + f"/{n}/+" for n in range(60)],
    "shared": [f"$share/g/dev/device-{n}/cmd" for n in range(1_000)],
    "groups": [f"$share/group-{n}/{n}" for n in range(1_000)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [1, 20])
def test_the_gauge_says_what_is_kept(kind: str, clients: int) -> None:
    texts = KINDS[kind][: max(20, len(KINDS[kind]) // clients)]
    world = World(recorder_bytes_max=0, receive_maximum=1)
    peers = [world.client(f"client {n}") for n in range(clients)]
    packets = [subscribe(V5, *texts[at : at + 20]) for at in range(0, len(texts), 20)]
    peers[0].subscribe("warm", "up/+", "$share/warm/up")
    peers[0].take()
    before = limits_of(world).bytes
    tracemalloc.start()
    try:
        for peer in peers:
            for packet in packets:
                peer.send(packet)
                peer.take()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    said = limits_of(world).bytes - before
    assert 0.7 * used < said < 1.3 * used
    for peer in peers:
        assert peer.connection.session.subscription_bytes >= 0.7 * said / clients
        peer.drop()
    assert limits_of(world).bytes == 0
    assert not limits_of(world).overlaps


@pytest.mark.parametrize("end", ["clean start", "expiry", "unsubscribe"])
def test_nothing_is_counted_when_it_is_gone(end: str) -> None:
    world = World(subscription_overlap_max=20, topic_levels_max=10)
    client = world.client("c", expiry=5)
    texts = [*mixed(4), "$share/g/a/+", "exact", "$share/g/b"]
    codes(client, *texts)
    session = client.connection.session
    assert limits_of(world).overlaps.keys() == {session}
    if end == "clean start":
        client = world.client("c", clean=True)
    elif end == "unsubscribe":
        client.send(unsubscribe(V5, *texts))
    else:
        client.drop()
        world.wait(10)
    assert limits_of(world).bytes == 0 and not limits_of(world).overlaps
    assert session.subscription_bytes == session.subscription_levels == 0


def test_more_of_an_older_broker_stays_and_may_grow_where_nothing_overlaps() -> None:
    world = StoredWorld(topic_levels_max=10)
    client = world.client("c", expiry=1_000)
    assert set(codes_stored(world, client, *mixed(7))) == {0}
    world.commit()
    world.settings = type(world.settings)(
        sys_interval_s=0, topic_levels_max=10, subscription_overlap_max=50
    )
    world.restart()
    client = world.client("c", clean=False, expiry=1_000)
    assert len(client.connection.session.subscriptions) == 128
    assert codes_stored(world, client, "dev/1/+") == [0], "it makes nothing worse"
    assert codes_stored(world, client, "a/+/#") == [QUOTA]
    world.client("p").send(publish("a/a/a/a/a/a/a", b"1"))
    assert client.payloads() == [b"1"]


def codes_stored(world: StoredWorld, peer: Peer, *filters: str) -> list[int]:
    peer.subscribe(*filters)
    world.commit()
    answer: Any = peer.take()[0]
    assert isinstance(answer, Suback)
    return list(answer.reasons)
