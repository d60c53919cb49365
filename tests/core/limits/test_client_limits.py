"""Limits of one client: of its user's, its listener's and the settings' the strictest holds."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, REMAINING_LENGTH_MAX, V5, V311
from mqtt_broker.codec.encode import encode_ack, encode_auth, encode_from_client
from mqtt_broker.codec.packets import Ack, Auth, Connack, Connect, Disconnect, Publish, Suback, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.clients.send_throttle import count_publishes
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, OpenAccess, Verdict
from mqtt_broker.core.limits.client_limits import (
    ANY_RATE,
    ClientLimits,
    KnownLimits,
    as_told,
    of_settings,
    stricter,
)
from mqtt_broker.core.limits.settings import UNLIMITED, Settings
from mqtt_broker.core.limits.token_bucket import ListenerLimits, TokenBucket
from sessions.messages.message import DeliveryOptions, single
from tests.core.peers import START, Peer, World, connect, publish
from tests.core.stored import StoredWorld


class Tiered(OpenAccess):
    """Lets everybody in, with the limits that stand under their client id."""

    def __init__(self, **limits: ClientLimits) -> None:
        self.limits = limits

    def connect(self, request: ConnectRequest) -> Verdict:
        return Allow(request.username, limits=self.limits.get(request.client_id))


def world(settings: dict[str, Any] | None = None, **limits: ClientLimits) -> World:
    return World(access=Tiered(**limits), **(settings or {}))


def come(
    found: World, client_id: str, *sent: bytes, version: int = V5, at: ListenerLimits | None = None,
    **fields: Any,
) -> Peer:  # fmt: skip
    """A peer that came by a listener with this allowance."""
    peer = Peer.__new__(Peer)
    if at is not None:
        peer.allowance = at  # type: ignore[attr-defined]
    peer.__init__(found, version)  # type: ignore[misc]
    found.peers.append(peer)
    peer.send(connect(client_id, version, **fields), *sent)
    return peer


def enter(found: World, client_id: str, **fields: Any) -> Peer:
    peer = come(found, client_id, **fields)
    assert isinstance(peer.received[0], Connack) and not peer.received[0].reason
    peer.take()
    return peer


def is_here(peer: Peer) -> bool:
    """Asked anew each time."""
    return not peer.is_closed


def paused(peer: Peer) -> bool:
    return peer.is_paused


def goodbye(peer: Peer) -> int:
    assert peer.is_closed
    last = peer.take()[-1]
    assert isinstance(last, Disconnect)
    return last.reason


# Which holds.


def test_every_field_is_met_with_the_stricter() -> None:
    rng = random.Random(7)

    def some() -> ClientLimits:
        values: dict[str, Any] = {}
        for found in dataclasses.fields(ClientLimits):
            if rng.random() < 0.5:
                is_bool = found.name == "retain_available"
                values[found.name] = False if is_bool else rng.randrange(1, 100)
        return ClientLimits(**values)

    for _ in range(200):
        one, other = some(), some()
        met = stricter(one, other)
        for found in dataclasses.fields(ClientLimits):
            values = [getattr(limits, found.name) for limits in (one, other)]
            assert getattr(met, found.name) == min(values), found.name
        assert met == stricter(other, one) and stricter(one, None) == one
        assert stricter(met, one) == met


def test_settings_say_what_they_have() -> None:
    found = of_settings(Settings())
    for field in dataclasses.fields(ClientLimits):
        said = getattr(Settings(), field.name, None)
        assert getattr(found, field.name) == (ANY_RATE if said is None else said)
    assert stricter(ClientLimits(), found) == found and ClientLimits().packet_bytes_max == UNLIMITED


def test_what_was_told_stays() -> None:
    told = ClientLimits(packet_bytes_max=10, receive_maximum=2, retain_available=False)
    fresh = ClientLimits(packet_bytes_max=5, receive_maximum=1, subscriptions_max=3)
    assert as_told(fresh, told) == dataclasses.replace(told, subscriptions_max=3)


@pytest.mark.parametrize("of", ["settings", "listener", "user"])
def test_connack_tells_the_strictest(of: str) -> None:
    small = ClientLimits(packet_bytes_max=500, receive_maximum=3, retain_available=False)
    large = ClientLimits(packet_bytes_max=900, receive_maximum=7)
    settings = dataclasses.asdict(small if of == "settings" else large)
    found = World(
        access=Tiered(c=small if of == "user" else large),
        **{key: settings[key] for key in ("packet_bytes_max", "receive_maximum")},
        retain_available=settings["retain_available"],
    )
    peer = come(found, "c", at=ListenerLimits(small if of == "listener" else large, None))
    told = peer.received[0]
    assert isinstance(told, Connack)
    assert told.properties.number(prop.MAXIMUM_PACKET_SIZE) == 500
    assert told.properties.number(prop.RECEIVE_MAXIMUM) == 3
    assert told.properties.number(prop.RETAIN_AVAILABLE, 1) == 0


def test_what_nobody_limits_costs_nothing() -> None:
    """No bucket, no throttle, no set of topics: the hot path of a broker without limits."""
    found = world()
    enter(found, "c")
    connection = found.broker.connections["c"]
    assert connection.limits is found.broker.state.known_limits.base
    assert (connection.bucket, connection.throttle) == (None, None)
    assert connection.authorization.allowed is None


def test_clients_of_one_kind_share_what_holds() -> None:
    kind = ClientLimits(queue_messages_max=5)
    found = World(access=Tiered(**{f"c{n}": kind for n in range(3)}))
    for n in range(3):
        enter(found, f"c{n}", at=ListenerLimits(ClientLimits(packet_bytes_max=500), None))
    one, *others = found.broker.connections.values()
    assert all(other.limits is one.limits for other in others)
    assert all(
        other.session.outbound.queue_limits is one.session.outbound.queue_limits for other in others
    )
    known = KnownLimits(of_settings(Settings()))
    for n in range(5_000):  # a door of somebody else's may do so
        assert known.met(None, ClientLimits(subscriptions_max=1 + n)).subscriptions_max == 1 + n
        assert known.bounds(ClientLimits(queue_bytes_max=n)).bytes_max == n
    assert len(known.met_limits) <= 1_000 and len(known.queue_limits) <= 1_000


# Each of them.


@pytest.mark.parametrize("of", ["listener", "user"])
@pytest.mark.parametrize("version", [V5, V311])
def test_packet_size(of: str, version: int) -> None:
    small = ClientLimits(packet_bytes_max=100)
    found = world(c=small) if of == "user" else world()
    at = ListenerLimits(small, None) if of == "listener" else None
    peer = enter(found, "c", version=version, at=at)
    other = enter(found, "d")
    size = 100 - len(publish("t", version=version))
    peer.send(publish("t", b"x" * size, version=version))
    other.send(publish("t", b"x" * 10_000))
    assert is_here(peer) and is_here(other)
    peer.send(publish("t", b"x" * (size + 1), version=version)[:20])  # its length says it
    if version == V5:
        assert goodbye(peer) == reasons.PACKET_TOO_LARGE
    assert not is_here(peer)
    assert found.broker.counters.refusals() == {"disconnect/packet_too_large": 1}


def test_a_listener_takes_no_larger_connect() -> None:
    found = world()
    peer = come(found, "c" * 200, at=ListenerLimits(ClientLimits(packet_bytes_max=100), None))
    assert peer.is_closed and not found.broker.connections
    assert found.broker.counters.refusals() == {"connect/packet_too_large": 1}


def test_receive_maximum() -> None:
    found = world(c=ClientLimits(receive_maximum=2))
    peer = enter(found, "c")
    peer.send(*[publish("t", b"x", qos=2, packet_id=n) for n in (1, 2)])
    assert [type(packet) for packet in peer.take()] == [Ack]
    peer.send(publish("t", b"x", qos=2, packet_id=3))
    assert goodbye(peer) == reasons.RECEIVE_MAXIMUM_EXCEEDED


def test_inflight() -> None:
    found = world(c=ClientLimits(inflight_max=2), d=ClientLimits(inflight_max=50))
    one, two = enter(found, "c"), enter(found, "d", receive_maximum=3)
    sender = enter(found, "s")
    for peer in (one, two):
        peer.subscribe("t", qos=1)
    for n in range(9):
        sender.send(publish("t", b"%d" % n, qos=1, packet_id=1 + n))
    assert one.payloads() == [b"0", b"1"] and two.payloads() == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "limits",
    [ClientLimits(queue_messages_max=3), ClientLimits(queue_bytes_max=1_700), ClientLimits()],
)
def test_queue(limits: ClientLimits) -> None:
    """The policy is the broker's; how much waits is the client's own, also while it is away."""
    found = world({"queue_messages_max": 5}, c=limits)
    for name in ("c", "d"):
        peer = enter(found, name, clean=False, expiry=1_000)
        peer.subscribe("t", qos=1)
        peer.drop()
    sender = enter(found, "s")
    for n in range(9):
        sender.send(publish("t", b"%d" % n, qos=1, packet_id=1 + n))
    mine = 5 if limits == ClientLimits() else 3
    for name, count in (("c", mine), ("d", 5)):
        peer = come(found, name, clean=False, expiry=1_000)
        assert peer.payloads() == [b"%d" % n for n in range(9 - count, 9)]
    assert found.broker.backlog.dropped == {"queue_full": (9 - mine) + 4}
    assert not found.broker.backlog.queued_bytes and not found.broker.backlog.memory_bytes


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_queue_in_the_store(is_folded: bool) -> None:
    """What was dropped does not come back; after a restart nobody knows who the client was."""
    found = StoredWorld()
    at = ListenerLimits(ClientLimits(queue_messages_max=3), None)
    peer = enter(found, "c", at=at, clean=False, expiry=1_000)
    peer.subscribe("t", qos=1)
    peer.drop()

    def send(first: int, last: int) -> None:
        sender = enter(found, "s")
        for n in range(first, last):
            sender.send(publish("t", b"%d" % n, qos=1, packet_id=1 + n))
        if is_folded:
            found.fold()
        else:
            found.commit()
        acks = [packet for packet in sender.take() if type(packet) is Ack]
        assert sum(len(ack.packet_ids) for ack in acks) == last - first

    send(0, 9)
    found.restart()
    send(9, 13)
    peer = come(found, "c", at=at, clean=False, expiry=1_000)
    found.page()
    assert peer.payloads() == [b"%d" % n for n in range(6, 13)]
    assert found.broker.connections["c"].session.outbound.queue_limits.messages_max == 3


def test_a_queue_that_may_hold_nothing() -> None:
    found = world(c=ClientLimits(queue_messages_max=0))
    peer = enter(found, "c", clean=False, expiry=1_000)
    peer.subscribe("t", qos=1)
    peer.drop()
    enter(found, "s").send(publish("t", b"x", qos=1))
    assert not come(found, "c", clean=False).payloads()
    assert found.broker.backlog.dropped == {"queue_full": 1}


def test_subscriptions() -> None:
    """A user may have less than the settings say, and not more."""
    found = world(
        {"subscriptions_max": 3},
        c=ClientLimits(subscriptions_max=2),
        d=ClientLimits(subscriptions_max=9),
    )
    quota = reasons.QUOTA_EXCEEDED
    for name, codes in (("c", [0, 0, quota, quota]), ("d", [0, 0, 0, quota])):
        peer = enter(found, name)
        peer.subscribe("1", "2", "3", "4")
        answer = peer.take()[0]
        assert isinstance(answer, Suback) and answer.reasons == codes
    assert found.broker.counters.refusals() == {"subscribe/quota_exceeded": 3}


@pytest.mark.parametrize("version", [V5, V311])
def test_topic_levels(version: int) -> None:
    """Though another client made the route of the deep topic already."""
    found = world(c=ClientLimits(topic_levels_max=2))
    reader, other = enter(found, "r"), enter(found, "d")
    reader.subscribe("a/#")
    other.send(publish("a/b/c", b"1"))
    peer = enter(found, "c", version=version)
    for _ in range(2):
        peer.send(publish("a/b", b"2", version=version))
    peer.send(publish("a/b/c", b"3", version=version))
    if version == V5:
        assert goodbye(peer) == reasons.MALFORMED_PACKET
    assert peer.is_closed
    assert reader.payloads() == [b"1", b"2", b"2"]
    peer = enter(found, "c", version=version)
    peer.subscribe("a/+/c")
    assert peer.is_closed
    other.subscribe("a/+/c")
    assert not other.is_closed


@pytest.mark.parametrize(
    ("limits", "will", "code"),
    [
        (ClientLimits(topic_levels_max=2), Will("a/b/c", b""), reasons.TOPIC_NAME_INVALID),
        (
            ClientLimits(retain_available=False),
            Will("a", b"", retain=True),
            reasons.RETAIN_NOT_SUPPORTED,
        ),
        (ClientLimits(topic_levels_max=2, retain_available=False), Will("a/b", b""), 0),
    ],
)
@pytest.mark.parametrize("of", ["listener", "user"])
def test_wills(limits: ClientLimits, will: Will, code: int, of: str) -> None:
    found = world(c=limits) if of == "user" else world()
    at = ListenerLimits(limits, None) if of == "listener" else None
    peer = come(found, "c", at=at, will=will)
    assert isinstance(peer.received[0], Connack) and peer.received[0].reason == code
    assert peer.is_closed is bool(code) and ("c" in found.broker.connections) is not bool(code)


def test_who_may_retain() -> None:
    found = world(c=ClientLimits(retain_available=False))
    peer, other = enter(found, "c"), enter(found, "d")
    other.send(publish("t", b"kept", retain=True))
    peer.send(publish("t", b"x", qos=1))
    assert is_here(peer)
    peer.send(publish("t", b"", retain=True))
    assert goodbye(peer) == reasons.RETAIN_NOT_SUPPORTED
    assert len(found.broker.retained) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_how_many_topics_one_client_may_retain_in(qos: int) -> None:
    found = world(c=ClientLimits(retained_messages_max=2))
    peer, other = enter(found, "c"), enter(found, "d")

    def keep(who: Peer, topic: str, payload: bytes = b"x") -> None:
        who.send(publish(topic, payload, qos=qos, packet_id=len(who.received) + 1, retain=True))

    for topic in ("a", "b", "a", "c"):  # the third replaces its own
        keep(peer, topic)
    assert found.broker.retained.published_by == {"c": 2} and found.broker.retained.get("c") is None
    if qos:
        assert getattr(peer.received[-1], "reason", 0) == reasons.QUOTA_EXCEEDED
    keep(other, "a")  # takes one over
    keep(peer, "c")
    assert found.broker.retained.published_by == {"c": 2, "d": 1}
    keep(peer, "a", b"")  # whose it is does not matter
    keep(peer, "b", b"")
    keep(peer, "a")
    assert found.broker.retained.published_by == {"c": 2}
    found.broker.retained.remove("a")
    found.broker.retained.remove("c")
    assert found.broker.retained.published_by == {}


def test_wills_do_not_go_around_how_many_a_client_may_retain() -> None:
    found = world(c=ClientLimits(retained_messages_max=2))
    for topic in ("a", "b", "a"):  # the third replaces its own
        enter(found, "c", will=Will(topic, b"gone", retain=True)).drop()
    late = come(found, "c", will=Will("c", b"gone", retain=True))
    assert late.is_closed and getattr(late.take()[0], "reason", 0) == reasons.QUOTA_EXCEEDED
    assert found.broker.counters.refusals()["will/quota_exceeded"] == 1
    enter(found, "c", will=Will("c", b"gone")).drop()  # is not kept
    enter(found, "c", will=Will("b", b"", retain=True)).drop()  # removes one
    enter(found, "c", will=Will("c", b"gone", retain=True)).drop()
    assert found.broker.retained.published_by == {"c": 2}


def test_retained_messages_are_counted_after_a_restart() -> None:
    found = StoredWorld()
    enter(found, "c").send(publish("a", b"x", qos=1, retain=True))
    found.commit()
    found.restart()
    assert found.broker.retained.published_by == {"c": 1}


# Rates.


def test_what_is_sent_is_counted_in_messages() -> None:
    found = world(c=ClientLimits(sent_messages_per_s=2))
    peer, sender = enter(found, "c"), enter(found, "s")
    peer.subscribe("t", qos=0)
    peer.take()
    for n in range(4):
        sender.send(publish("t", b"%d" % n))
    assert peer.payloads() == [b"0", b"1", b"2"]  # the third is owed, the fourth is too much
    assert found.broker.backlog.dropped == {"slow_reader": 1}
    found.wait(0.6)
    sender.send(publish("t", b"!"))
    assert peer.payloads() == [b"!"] and found.broker.counters.throttled == 2


def test_what_waits_goes_out_at_the_rate() -> None:
    """A thousand that waited are no burst: a second's worth is under way at most."""
    found = world(c=ClientLimits(sent_messages_per_s=10))
    peer = enter(found, "c", clean=False, expiry=1_000)
    peer.subscribe("t", qos=1)
    peer.drop()
    sender = enter(found, "s")
    for n in range(300):
        sender.send(publish("t", b"%d" % n, qos=1, packet_id=1 + n))
    sender.take()
    start = found.now
    peer = come(found, "c", clean=False, expiry=1_000)
    got: list[bytes] = []
    for _ in range(400):
        for packet in peer.take():
            if isinstance(packet, Publish):
                got += packet.payloads()
                peer.send(*[encode_ack(PUBACK, i, 0) for i in packet.packet_ids()])
        assert len(got) <= 10 * (found.now - start) + 20
        found.wait(0.1)
    assert got == [b"%d" % n for n in range(300)]


def test_publishes_are_counted_where_they_begin() -> None:
    rng = random.Random(3)
    for _ in range(300):
        count = 0
        data = b""
        for _ in range(rng.randrange(6)):
            is_publish = rng.random() < 0.6
            count += is_publish
            size = rng.choice((0, 1, 100, 130, 17_000))
            data += publish("t", b"\x30" * size) if is_publish else b"\x40\x02\x30\x30"
        assert count_publishes(data) == count
    assert count_publishes(publish("t", b"x" * 3_000_000) + b"\xd0\x00") == 1


def test_all_clients_of_a_listener_together() -> None:
    found = world()
    shared = TokenBucket(10, 0)
    peers = [enter(found, f"c{n}", at=ListenerLimits(ClientLimits(), shared)) for n in range(3)]
    other = enter(found, "d")
    for peer in (*peers, other):
        peer.send(*[publish("t", b"x")] * 6)
    assert [paused(p) for p in (*peers, other)] == [False, True, True, False]
    found.wait(1.0)
    assert not any(map(paused, peers))


def test_its_own_rate_and_the_listeners() -> None:
    found = world(c=ClientLimits(messages_per_s=2))
    peer = enter(
        found, "c", at=ListenerLimits(ClientLimits(messages_per_s=100), TokenBucket(1_000, 0))
    )
    peer.send(*[publish("t", b"x")] * 3)
    assert paused(peer)
    connection = found.broker.connections["c"]
    assert connection.bucket is not None and connection.bucket.messages_per_s == 2


class Exchanging(Tiered):
    def connect(self, request: ConnectRequest) -> Verdict:
        limits = self.limits["again" if request.is_again else "first"]
        return Allow(request.username, limits=limits)


def test_another_authentication_brings_other_limits() -> None:
    """All but what CONNACK told; and no bucket is full again."""
    first = ClientLimits(messages_per_s=5, subscriptions_max=1, packet_bytes_max=200)
    again = ClientLimits(
        messages_per_s=50,
        subscriptions_max=2,
        packet_bytes_max=100,
        topic_levels_max=1,
        sent_messages_per_s=2,
    )
    found = World(access=Exchanging(first=first, again=again))
    peer = found.peer()
    packet = Connect(V5, "c", True, 0, Properties({prop.AUTHENTICATION_METHOD: "m"}))
    peer.send(encode_from_client(V5, packet))
    assert peer.take()[0].reason == 0
    peer.send(*[publish("t", b"x")] * 5)
    assert not paused(peer)
    peer.send(encode_auth(reasons.REAUTHENTICATE, Properties({prop.AUTHENTICATION_METHOD: "m"})))
    assert isinstance(peer.take()[0], Auth)
    connection = found.broker.connections["c"]
    assert connection.limits.packet_bytes_max == 200
    peer.send(publish("t", b"x"))
    assert paused(peer)
    peer.subscribe("a", "b", "c")
    assert peer.take()[0].reasons == [0, 0, reasons.QUOTA_EXCEEDED]
    sender = enter(found, "s")
    for n in range(4):
        sender.send(publish("a", b"%d" % n))
    assert peer.payloads() == [b"0", b"1", b"2"]  # two a second, from now on
    peer.send(publish("a/b", b"x"))
    assert goodbye(peer) == reasons.MALFORMED_PACKET


# What is counted.


@pytest.mark.parametrize("version", [V5, V311])
def test_refusals_are_counted_by_what_and_why(version: int) -> None:
    found = World(connections_max=1, retained_messages_max=0)
    silent = found.peer()
    one = enter(found, "one", version=version)
    come(found, "two", version=version)
    one.send(publish("t", b"x", qos=1, retain=True, version=version))
    one.send(publish("t", b"x", qos=2, retain=True, version=version))
    one.send(publish("$SYS/x", b"x", qos=1, version=version))
    enter(found, "one", version=version)
    found.wait(11)
    assert silent.is_closed
    rubbish = found.peer()
    rubbish.send(b"\xf0\x00")
    assert found.broker.counters.refusals() == {
        "connect/server_busy": 1,
        "connect/timeout": 1,
        "connect/protocol_error": 1,
        "publish/quota_exceeded": 2,
        "publish/not_authorized": 1,
        "disconnect/session_taken_over": 1,
    }


def test_sys_has_them() -> None:
    found = World(sys_interval_s=1)
    reader = enter(found, "r")
    reader.subscribe("$SYS/broker/refused/#")
    reader.send(publish("$SYS/x", b"x"))
    found.wait(1.5)
    told = {packet.topic: packet.payloads() for packet in reader.publishes()}
    assert told == {"$SYS/broker/refused/publish/not_authorized": [b"1"]}


def test_what_comes_in_still_fits_when_it_has_grown() -> None:
    """The largest packet is smaller than MQTT's by what a message grows on its way."""
    world = World(packet_bytes_max=REMAINING_LENGTH_MAX + 5)
    peer = world.peer()
    peer.send(connect("c"))
    (answer,) = peer.take()
    largest = answer.properties[prop.MAXIMUM_PACKET_SIZE]
    envelope = single("t", b"").envelope
    envelope.payload_bytes = largest
    grant = DeliveryOptions(1, subscription_ids=(268_435_455,) * 200_000)
    head, section = envelope.layout(True, grant, START)
    assert len(section) == 200_000 * 5 + 3
    assert len(head) + len(section) + largest < REMAINING_LENGTH_MAX
