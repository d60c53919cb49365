"""Attacks of the kinds that brought other brokers down, or around their rules.

docs/SECURITY.md names the faults. After each attack others are served as before, and nothing of it
stays.
"""

from __future__ import annotations

import dataclasses
import gc
import random
from typing import Any, Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Connack, Connect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.codec.strings import encode_varint
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Allow,
    Challenge,
    ConnectRequest,
    Refuse,
    Verdict,
)
from mqtt_broker.core.limits.settings import UNLIMITED, Settings
from sessions.session import Session
from tests.core.peers import (
    V5,
    V311,
    Peer,
    World,
    connect,
    disconnect,
    publish,
    subscribe,
    unsubscribe,
)

PINGREQ: Final = b"\xc0\x00"


class Guarded:
    """Lets everybody in, under the name they say, and has a guard for each."""

    guards_topics = True

    def connect(self, request: ConnectRequest) -> Verdict:
        return Allow(request.username)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return True

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return True


def is_gone(peer: Peer) -> bool:
    """Asked anew each time."""
    return peer.is_closed


def is_served(world: World) -> bool:
    """Tell whether two clients that come now reach each other."""
    one, two = world.client("witness"), world.client("sender")
    one.subscribe("w/itness", qos=1)
    one.take()
    two.send(publish("w/itness", b"ok", qos=1))
    heard = one.payloads() == [b"ok"]
    for peer in (one, two):
        peer.send(disconnect())
    return heard


# What only a server says.

FROM_SERVERS: Final = {
    "CONNACK": "2003000000", "CONNACK with properties": "200800000522000a2a01",
    "SUBACK": "900400010001", "UNSUBACK": "b00400010000", "PINGRESP": "d000", "type 0": "0000",
    "AUTH without a method": "f000",
}  # fmt: skip


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("what", FROM_SERVERS)
def test_packets_that_only_a_server_sends(what: str, version: int) -> None:
    wire = bytes.fromhex(FROM_SERVERS[what])
    world = World()
    stranger = world.peer(version)
    stranger.send(wire)
    assert stranger.is_closed and not stranger.received
    client = world.client("c", version)
    client.subscribe("t", qos=2)
    client.take()
    client.send(wire, publish("t", b"too late", version=version))
    assert client.is_closed and not client.publishes() and is_served(world)
    assert version != V5 or world.broker.counters.refused.get("disconnect/Protocol Error", 0) == 1


# Topics of nothing, of `$`, of the broker's own.

OWN: Final = (
    "$SYS", "$SYS/", "$SYS/x", "$SYS/broker/connection/x", "$share", "$share/g/t", "$stream",
    "$stream/x", "$dlq", "$dlq/schema/t",
)  # fmt: skip
FREE: Final = ("$", "$/", "$x", "$x/y", "$SYStem", "$sys/x", "/", "//", "t/$SYS", " ", "$share d")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
def test_topics_of_nothing_of_dollars_and_of_the_brokers_own(version: int, qos: int) -> None:
    world = World()
    every, dollars = world.client("every"), world.client("dollars")
    every.subscribe("#", "+/#", "/+", "+", "+/+", "+/+/+")
    dollars.subscribe("$/#", "$x/#", "$SYS/#", "$SYStem", "$sys/#", "$share d", "$dlq/#")
    client = world.client("c", version)
    for topic in (*OWN, *FREE):
        client.send(publish(topic, topic.encode(), version=version, qos=qos, retain=True))
        client.send(b"\x62\x02\x00\x01")
    assert not client.is_closed
    seen = set(every.payloads())
    assert seen == {topic.encode() for topic in FREE if topic[0] != "$"}
    found = {topic.encode() for topic in FREE if topic[0] == "$"}
    assert set(dollars.payloads()) == found
    assert {m.envelope.topic for m in world.broker.retained.values()} == set(FREE)
    late = world.client("late")
    late.subscribe("#", "+/+")
    assert not [one for one in late.publishes() if one.topic.startswith("$")]
    client.send(publish("", b"nothing", version=version, qos=qos))
    assert is_gone(client) and is_served(world)


@pytest.mark.parametrize("topic", OWN)
def test_no_will_speaks_under_the_brokers_own_topics(topic: str) -> None:
    world = World()
    peer = world.peer()
    peer.send(connect("c", will=Will(topic, b"x")))
    assert peer.is_closed and getattr(peer.received[0], "reason", 0) == 0x87


# Shared subscriptions: malformed, and beside plain ones.

NO_SHARES: Final = (
    "$share", "$share/", "$share/g", "$share/ab", "$share/g/", "$share//t", "$share/+/t",
    "$share/#/t", "$share/g+/t", "$share/#", "$share/+", "$share/g/t#", "$share/g/#/t",
)  # fmt: skip


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("text", NO_SHARES)
def test_a_shared_subscription_that_is_none_is_never_kept(text: str, version: int) -> None:
    world = World()
    client = world.client("c", version, clean=False, expiry=100)
    client.subscribe("t", text, qos=1)
    assert client.is_closed
    session = world.broker.sessions.get("c")
    assert session is not None and text not in session.subscriptions
    assert not world.broker.subscriptions.groups and is_served(world)
    again = world.client("c", version, clean=False, expiry=100)
    again.send(unsubscribe(version, "$share/g/never", "$share/never"))
    assert is_served(world)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_message_for_shared_and_plain_subscriptions_at_once(qos: int) -> None:
    world = World()
    client, other = world.client("c"), world.client("d", V311)
    for peer in (client, other):
        peer.subscribe("t/#", "t/+", "$share/g/t/#", "$share/g/t/+", "$share/h/t/a", qos=qos)
        peer.take()
    publisher = world.client("p")
    for round_ in range(50):
        publisher.send(publish("t/a", b"%d" % round_, qos=qos, packet_id=round_ + 1))
        publisher.send(b"\x62\x02" + (round_ + 1).to_bytes(2, "big"))
        found = client.payloads() + other.payloads()
        assert found == [b"%d" % round_] * 5  # each once, and once for each group
        for peer in (client, other):
            acknowledge_all(peer)


def acknowledge_all(peer: Peer) -> None:
    """Acknowledge every message that is under way to it."""
    window = peer.connection.session.outbound.window
    for packet_id in list(window.unacked):
        raw = packet_id.to_bytes(2, "big")
        is_two = packet_id in window.qos2
        peer.send((b"\x50\x02" + raw, b"\x70\x02" + raw)[0] if is_two else b"\x40\x02" + raw)
        if is_two:
            peer.send(b"\x70\x02" + raw)
    peer.take()


# Coming and going, in any order.


def any_packets(chance: random.Random, version: int) -> bytes:
    filters = ("t", "t/#", "+/a", "$share/g/t/#", "$share/g/t", "$share/h/+/a", "#")
    topics = ("t", "t/a", "u/a", "u")
    some = chance.sample(filters, chance.randint(1, 4))
    act = chance.randrange(7)
    if act < 2:
        return subscribe(version, *some, qos=chance.randrange(3))
    if act == 2:
        return unsubscribe(version, *some)
    if act == 3:
        return PINGREQ
    if act == 4:
        kind, packet_id = chance.choice((0x40, 0x50, 0x62, 0x70)), chance.randint(1, 6)
        return bytes((kind, 2, 0, packet_id))
    payload = chance.choice((b"", b"x", b"y" * 300))
    return publish(
        chance.choice(topics), payload, version=version, qos=chance.randrange(3),
        packet_id=chance.randint(1, 6), retain=chance.random() < 0.5,
    )  # fmt: skip


def come(world: World, chance: random.Random, name: str) -> Peer:
    version = chance.choice((V311, V5, V5))
    will = None
    if chance.random() < 0.5:
        delay = Properties({prop.WILL_DELAY_INTERVAL: chance.choice((0, 5, 50))})
        found = delay if version == V5 else Properties()
        will = Will("t/a", b"gone", chance.randrange(3), chance.random() < 0.5, found)
    peer = world.peer(version)
    expiry = chance.choice((0, 10, 100)) if version == V5 else None
    wire = connect(name, version, clean=chance.random() < 0.5, expiry=expiry, will=will)
    peer.send(wire + b"".join(any_packets(chance, version) for _ in range(chance.randrange(4))))
    return peer


def alive(*kinds: type) -> int:
    gc.collect()
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def storm(world: World, chance: random.Random) -> None:
    names = ["a", "b", "c", "d"]
    for _ in range(400):
        act = chance.randrange(10)
        here = [peer for peer in world.peers if not peer.is_closed]
        if act < 3 or not here:
            come(world, chance, chance.choice(names))
        elif act == 3:
            chance.choice(here).drop()
        elif act == 4:
            peer = chance.choice(here)
            peer.send(disconnect(peer.version, 4 if peer.version == V5 else 0))
        elif act == 5:
            world.wait(chance.choice((1, 20, 200)))
        else:
            peer = chance.choice(here)
            peer.send(b"".join(any_packets(chance, peer.version) for _ in range(3)))
        for peer in world.peers:
            peer.take()
    for name in names:  # a clean start ends what is left of each
        world.client(name).send(disconnect())
    world.wait(1_000)
    world.peers.clear()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 12))]
)
def test_what_comes_and_goes_in_any_order_leaves_nothing(seed: int) -> None:
    """Subscribing, taking over, leaving, wills, half-finished QoS 2, all under a few names."""
    chance = random.Random(seed)
    before = alive(Session, Connection)
    policy = chance.choice(("drop_oldest", "drop_new", "disconnect"))
    world = World(access=Guarded(), queue_full=policy)
    timers = world.timers
    storm(world, chance)
    broker = world.broker
    for topic in [m.envelope.topic for m in broker.retained.values()]:
        broker.retained.remove(topic)
    assert not len(broker.sessions) and not broker.connections and not broker.links
    assert not broker.subscriptions.groups and not broker.routes.count
    assert not broker.routes.shared_count and not broker.state.authorizer.guards
    assert not broker.retained.bytes and not broker.retained.published_by
    backlog = broker.backlog
    assert (backlog.queued_messages, backlog.queued_bytes, backlog.memory_bytes) == (0, 0, 0)
    assert world.timers <= timers + 1 and not broker.clients.users
    assert alive(Session, Connection) == before
    assert is_served(world)


def test_a_will_that_is_later_than_its_session_is_sent_once_at_its_end() -> None:
    world = World()
    reader = world.client("r")
    reader.subscribe("w")
    for delay, expiry, due in ((50, 10, 10), (10, 50, 10), (0xFFFF_FFFF, 10, 10), (50, 0, 0)):
        found = Properties({prop.WILL_DELAY_INTERVAL: delay, prop.USER_PROPERTY: [("k", "v")]})
        world.client("c", clean=False, expiry=expiry, will=Will("w", b"x", 0, False, found)).drop()
        world.wait(max(due - 1, 0))
        assert len(reader.payloads()) == (not due)
        world.wait(200)
        assert len(reader.payloads()) == bool(due)
    assert len(world.broker.sessions) == 1


# Who is refused harms nobody.


class OnlyAnn(Guarded):
    def connect(self, request: ConnectRequest) -> Verdict:
        return Allow("ann", is_bound=True) if request.username == "ann" else Refuse()


@pytest.mark.parametrize("clean", [True, False])
def test_who_is_refused_takes_nobody_over(clean: bool) -> None:
    """Its session, its queue, its will and its connection are the victim's until somebody is in."""
    world = World(access=OnlyAnn())
    peer = world.peer()
    ann = Connect(V5, "c", False, 0, Properties({0x11: 1000}), Will("w", b"x"), "ann", b"")
    peer.send(encode_from_client(V5, ann), subscribe(V5, "t", qos=1))
    peer.take()
    session = world.broker.sessions.get("c")
    for version in (V311, V5):
        thief = world.peer(version)
        thief.send(connect("c", version, clean=clean) + publish("t", b"x", version=version))
        assert thief.is_closed and isinstance(thief.received[0], Connack)
    assert not peer.is_closed and not peer.received
    assert world.broker.sessions.get("c") is session
    peer.send(publish("t", b"mine", qos=1))
    assert peer.payloads() == [b"mine"]


class Undecided(Guarded):
    """Keeps the question: the test answers it."""

    def __init__(self) -> None:
        self.asked: list[ConnectRequest] = []

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.username == "ann":
            return Allow("ann")
        self.asked.append(request)
        if request.auth_method is not None:
            return Challenge(b"?", lambda _: Refuse())
        return PENDING


@pytest.mark.parametrize("delay", [0, 30])
@pytest.mark.parametrize("ending", ["refused", "gone", "gone, then let in", "challenged"])
def test_who_never_came_in_leaves_no_will(ending: str, delay: int) -> None:
    """Refused, gone while somebody thinks about it, or in the midst of a challenge."""
    access = Undecided()
    world = World(access=access)
    reader = world.peer()
    reader.send(encode_from_client(V5, Connect(V5, "r", True, 0, username="ann")))
    reader.send(subscribe(V5, "#", qos=1))
    reader.take()
    found: dict[int, prop.Value] = {prop.SESSION_EXPIRY_INTERVAL: 1000}
    if ending == "challenged":
        found[prop.AUTHENTICATION_METHOD] = "m"
    will = Will("w", b"x", 1, True, Properties({prop.WILL_DELAY_INTERVAL: delay}))
    peer = world.peer()
    peer.send(encode_from_client(V5, Connect(V5, "c", False, 10, Properties(found), will, "eve")))
    [request] = access.asked
    if ending == "refused":
        request.reply(Refuse(), world.now)
    else:
        peer.drop()
        if ending == "gone, then let in":
            request.reply(Allow("eve"), world.now)
    world.settle()
    world.wait(3000)
    assert peer.is_closed or ending != "refused"
    assert not reader.payloads() and not world.broker.retained
    assert len(world.broker.sessions) == 1


class Everybody(Guarded):
    """Refuses those without a user name."""

    def connect(self, request: ConnectRequest) -> Verdict:
        return Refuse() if request.username is None else Allow(request.username)


def failed_connects() -> dict[str, bytes]:
    """CONNECTs with a will that is wrong, or right and in vain."""
    wills: dict[str, dict[int, prop.Value]] = {
        "not for a will": {prop.TOPIC_ALIAS: 1},
        "wrong at its end": {prop.PAYLOAD_FORMAT_INDICATOR: 9},
        "of no topic": {prop.RESPONSE_TOPIC: "a/#"},
        "refused": {prop.USER_PROPERTY: [("k", "v" * 900)], prop.WILL_DELAY_INTERVAL: 9},
    }  # fmt: skip
    found = {}
    for name, properties in wills.items():
        will = Will("w", b"x" * 900, 1, True, Properties(dict(properties)))
        found[name] = connect("c", clean=False, expiry=1_000, will=will)
    whole = found["refused"]
    found["QoS 3"] = whole.replace(b"\x05\x2c", b"\x05\x3c", 1)
    found["topic with a wildcard"] = connect("c", expiry=9, will=Will("w/#", b"x" * 900))
    found["topic of the broker"] = connect("c", expiry=9, will=Will("$SYS/x", b"x" * 900))
    found["followed by a byte"] = whole[:1] + encode_varint(len(whole) - 2) + whole[3:] + b"x"
    found["cut in its payload"] = whole[:-100]
    return found


@pytest.mark.parametrize("name", failed_connects())
def test_a_connect_that_fails_leaves_nothing(name: str) -> None:
    """Nor does the hundredth: no session, no will, no timer, and no object of either."""
    world = World(access=Everybody())
    broker, wire = world.broker, failed_connects()[name]
    gc.collect()
    kept = (alive(Session, Connection, Properties, Will), world.timers)
    for _ in range(100):
        peer = world.peer()
        peer.send(wire)
        if name.startswith("cut"):
            peer.drop()
        assert is_gone(peer), name
    world.wait(2_000)
    world.peers.clear()
    del peer
    assert not len(broker.sessions) and not broker.connections and not broker.links
    assert not broker.retained and not broker.clients.users
    found = (alive(Session, Connection, Properties, Will), world.timers)
    assert found[0] <= kept[0] and found[1] <= kept[1] + 1


# Numbers at their ends.

EXTREMES: Final = [
    (field.name, field.metadata[end])
    for field in dataclasses.fields(Settings)
    if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    for end in ("low", "high")
]


@pytest.mark.parametrize(("name", "value"), EXTREMES)
def test_each_setting_at_its_ends_makes_a_broker_that_works(name: str, value: Any) -> None:
    """Nothing is divided by it, nothing overflows, and no client brings the broker down."""
    world = World(**{name: value, "dead_letters": "all", "client_events": True})
    for version in (V5, V311):
        for qos in (0, 1, 2):
            peer = world.peer(version)
            will = Will("w", b"x", qos, True)
            peer.send(connect(f"c{qos}", version, clean=False, expiry=50, will=will, keep_alive=9))
            if peer.is_closed:
                continue
            peer.subscribe("t/#", "$share/g/t/#", "$SYS/#", qos=qos)
            for retain in (False, True):
                packet = publish(
                    "t/a/b", b"x" * 40, version=version, qos=qos, retain=retain, packet_id=7
                )
                peer.send(packet, b"\x62\x02\x00\x07")
            peer.is_slow = True
            peer.send(publish("t/a", b"y", version=version, qos=qos, packet_id=8))
            peer.drop()
            world.wait(0.5)
    world.wait(1_000)


INTERVALS: Final = (0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF)


@pytest.mark.parametrize("interval", INTERVALS)
def test_every_interval_a_client_may_say(interval: int) -> None:
    world = World(retained_sweep_s=UNLIMITED)
    found = Properties({prop.WILL_DELAY_INTERVAL: interval, prop.MESSAGE_EXPIRY_INTERVAL: interval})
    fields = {"keep_alive": min(interval, 65_535), "receive_maximum": min(interval, 65_535) or 1}
    peer = world.client(
        "c", clean=False, expiry=interval, will=Will("w", b"x", 1, True, found),
        alias_maximum=min(interval, 65_535), packet_bytes_max=max(interval, 500), **fields,
    )  # fmt: skip
    peer.subscribe("t", qos=2, identifier=268_435_455)
    message = {prop.MESSAGE_EXPIRY_INTERVAL: interval}
    peer.send(publish("t", b"m", qos=1, retain=True, properties=message))
    for packet in peer.publishes():
        assert packet.properties.number(prop.MESSAGE_EXPIRY_INTERVAL, interval) <= interval
    peer.drop()
    world.wait(3)
    assert len(world.broker.sessions) == (interval > 1)
    world.wait(0.9 * 0x7FFF_FFFF)
    assert len(world.broker.sessions) == (interval > 1)
    assert is_served(world)
    world.wait(3.0 * 0xFFFF_FFFF)
    assert len(world.broker.sessions) == (interval == 0xFFFF_FFFF)
    assert is_served(world)
