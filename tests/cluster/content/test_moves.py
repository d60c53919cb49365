"""Sessions that move between numbers are what they would be if they had stayed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text

from mqtt_broker.cluster.hosting import FOLD_GROUPS
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Connack, Disconnect, Publish, Suback, Will
from mqtt_broker.codec.properties import Properties
from sessions.session import Session
from sessions.store.row_import import has_right_references
from tests.cluster.content.cluster_world import ClusterWorld, NumberWorld
from tests.core.peers import Peer, connect, publish, subscribe, unsubscribe
from tests.core.recount import check_bytes

EXPIRY = 5_000


def described(session: Session) -> dict[str, Any]:
    """Return all that a session has, without what names the number."""
    outbound = session.outbound
    return {
        "number": session.session_number,
        "username": session.username,
        "version": outbound.version,
        "created_at": session.created_at,
        "expiry": (session.expiry_interval, session.expires_at),
        "will": (session.will, session.will_delay, session.will_at),
        "subscriptions": {
            text: (one.qos, one.no_local, one.retain_as_published, one.retain_handling,
                   one.identifier)
            for text, one in sorted(session.subscriptions.items())
        },
        "received": sorted(session.inbound.ids),
        "releasing": list(outbound.window.releasing),
        "unacked": {
            packet_id: (item[0].envelope.topic, item[0].payload, item[1].qos, item[2])
            for packet_id, item in outbound.window.unacked.items()
        },
        "queued": outbound.queued,
        "queue_bytes": outbound.queue_bytes,
    }  # fmt: skip


def session_at(number: NumberWorld, client: str) -> Session:
    found = number.broker.sessions.get(client)
    assert found is not None, f"{client} has no session at number {number.hosted.number}"
    return found


def move(world: ClusterWorld, client: str, to: NumberWorld) -> None:
    """Let a number claim a client for which no CONNECT waits there."""
    to.hosted.claims.connect(client)
    world.until(lambda: client in to.hosted.claims.owned)
    world.run(0.5)


def come(world: ClusterWorld, number: NumberWorld, client: str, **fields: Any) -> Peer:
    """Connect, with the session that there is, and check that it is there."""
    peer = number.peer()
    peer.send(connect(client, clean=False, **{"expiry": EXPIRY, **fields}))
    world.until(lambda: len(peer.received) > 0)
    answer = peer.received.pop(0)
    assert isinstance(answer, Connack) and answer.reason == 0 and answer.session_present, answer
    return peer


def ack(kind: int, *packet_ids: int) -> bytes:
    return b"".join(encode_ack(kind, packet_id) for packet_id in packet_ids)


def will(delay: int) -> Will:
    return Will("will/t", b"gone", 1, False, Properties({prop.WILL_DELAY_INTERVAL: delay}))


def seen(peer: Peer) -> list[tuple[Any, ...]]:
    """Return what has come, without packet ids, which each broker assigns as it likes."""
    found: list[tuple[Any, ...]] = []
    for packet in peer.take():
        if isinstance(packet, Publish):
            ids = repr(packet.properties.get(prop.SUBSCRIPTION_IDENTIFIER))
            found += [
                (packet.topic, payload, packet.qos, packet.dup, ids)
                for payload in packet.payloads()
            ]
        elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
            found += [("PUBREL", len(packet.packet_ids))]
    return found


def test_a_session_has_after_a_move_what_it_had_before(world: ClusterWorld) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    both = {}
    for name in ("stays", "moves"):
        peer = one.client(name, expiry=EXPIRY, receive_maximum=3, will=will(1_000))
        peer.send(
            subscribe(V5, "a/#", qos=2, identifier=7, retain_as_published=True),
            subscribe(V5, "c/+", "$share/g/s", qos=1),
            subscribe(V5, "x", qos=1, no_local=True),
            unsubscribe(V5, "c/+"),
            publish("nowhere", b"half", qos=2, packet_id=9),
        )
        both[name] = peer
    world.run(0.3)
    sender = one.client("sender")
    sender.send(
        *(publish("a/b", b"%d" % n, qos=1 + n % 2, packet_id=n) for n in range(1, 8)),
        publish("a/b", b"short", qos=1, packet_id=8,
                properties={prop.MESSAGE_EXPIRY_INTERVAL: 60}),
    )  # fmt: skip
    world.run(0.3)
    for peer in both.values():
        sent = [packet for packet in peer.take() if isinstance(packet, Publish)]
        second = next(packet for packet in sent if packet.qos == 2)
        peer.send(ack(PUBREC, second.packet_ids()[0]))
        peer.drop()
    sender.send(publish("a/late", b"late", qos=2, packet_id=9), publish("x", b"x", qos=1))
    world.run(1.0)
    before = described(session_at(one, "moves"))
    assert before["releasing"] and before["unacked"] and before["queued"] and before["received"]
    move(world, "moves", two)
    assert described(session_at(two, "moves")) == before
    assert one.broker.sessions.get("moves") is None
    for number in (one, two):
        check_bytes(number.broker)
    world.run(70.0)  # over the expiry of a message
    found = []
    for number, name in ((one, "stays"), (two, "moves")):
        peer = come(world, number, name, receive_maximum=3)
        for _ in range(6):
            world.run(0.2)
            for packet in list(peer.received):
                if isinstance(packet, Publish):
                    kind = PUBACK if packet.qos == 1 else PUBREC
                    peer.send(ack(kind, *packet.packet_ids()))
                elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
                    peer.send(ack(PUBCOMP, *packet.packet_ids))
            found.append(seen(peer))
        peer.send(encode_ack(PUBREL, 9))
        world.run(0.2)
        assert any(isinstance(one, Ack) and one.packet_type == PUBCOMP for one in peer.take())
    assert found[:6] == found[6:]
    payloads = [packet[1] for some in found[:6] for packet in some]
    assert b"late" in payloads and b"short" not in payloads


def test_a_client_that_comes_elsewhere_is_disconnected_where_it_was(world: ClusterWorld) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    old = one.client("a", expiry=EXPIRY)
    old.subscribe("t", qos=1)
    world.run(0.3)
    new = come(world, two, "a")
    assert old.is_closed and [p.reason for p in old.take() if isinstance(p, Disconnect)] == [0x8E]
    sender = two.client("sender")
    sender.send(publish("t", b"1", qos=1))
    world.run(0.3)
    assert new.payloads() == [b"1"]
    old = new
    new = one.peer()
    new.send(connect("a", clean=True))
    world.until(lambda: len(new.received) > 0)
    answer = new.received.pop(0)
    assert isinstance(answer, Connack) and not answer.session_present
    assert old.is_closed and two.broker.sessions.get("a") is None
    assert not session_at(one, "a").subscriptions


@pytest.mark.parametrize("delay", [0, 30])
def test_a_will_moves_if_it_has_a_delay(world: ClusterWorld, delay: int) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    watchers = [number.client(f"watcher {number.hosted.number}") for number in (one, two)]
    for watcher in watchers:
        watcher.subscribe("will/#", qos=1)
    one.client("a", expiry=EXPIRY, will=will(delay))
    world.run(0.3)
    move(world, "a", two)
    assert [watcher.payloads() for watcher in watchers] == [[] if delay else [b"gone"], []]
    world.run(29.0)
    assert [watcher.payloads() for watcher in watchers] == [[], []]
    world.run(3.0)
    assert [watcher.payloads() for watcher in watchers] == [[], [b"gone"] if delay else []]


def test_a_session_expires_where_it_is(world: ClusterWorld) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    one.client("a", expiry=20).drop()
    world.run(5.0)
    move(world, "a", two)
    assert session_at(two, "a").expires_at < two.now + 15.0
    world.run(10.0)
    assert two.broker.sessions.get("a") is not None
    world.run(6.0)
    assert two.broker.sessions.get("a") is None
    world.run(1.0)
    assert not two.hosted.claims.owned and not one.hosted.claims.owned


# Messages to which sessions of two numbers refer.
_SHARED = """
SELECT d.mid FROM deliveries d JOIN sessions s ON s.sid = d.sid
JOIN cluster_owners o ON o.client = s.client_id
GROUP BY d.mid HAVING count(DISTINCT o.number) > 1
"""


def test_what_moved_survives_both_hosts(world: ClusterWorld, database_url: str) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    for name in ("a", "b"):
        one.client(name, expiry=EXPIRY).subscribe("t", qos=1)
    world.run(0.3)
    for peer in list(one.peers):
        peer.drop()
    one.client("sender").send(*(publish("t", b"%d" % n, qos=1, packet_id=n) for n in range(1, 4)))
    world.run(0.3)
    move(world, "a", two)
    two.client("sender at two").send(publish("t", b"4", qos=1))
    world.run(0.3)
    engine = create_engine(database_url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM deliveries")).scalar_one() >= 6
        assert not connection.execute(text(_SHARED)).all()
        assert has_right_references(connection)
    engine.dispose()
    world.node(3)
    world.kill(1)
    world.kill(2)
    heirs = world.inherited(1), world.inherited(2)
    for number, name, expected in (
        (heirs[0], "b", [b"1", b"2", b"3"]),
        (heirs[1], "a", [b"1", b"2", b"3", b"4"]),
    ):
        peer = come(world, number, name)
        world.run(0.5)
        assert peer.payloads() == expected


def test_a_connect_is_not_answered_before_its_client_is_claimed(world: ClusterWorld) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    one.client("a", expiry=EXPIRY).subscribe("t", qos=1)
    keeper = two.client("keeper", expiry=EXPIRY)
    world.run(0.3)
    world.is_bus_up = False  # so that it takes a while
    new = two.peer()
    new.send(connect("a", clean=False, expiry=EXPIRY))
    for _ in range(5):
        keeper.subscribe("k", qos=1)  # a group that is committed meanwhile
        world.run(0.02)
        assert not new.received
    assert len([packet for packet in keeper.take() if isinstance(packet, Suback)]) >= 2
    world.until(lambda: len(new.received) > 0)
    answer = new.received[0]
    assert isinstance(answer, Connack) and answer.session_present
    assert list(session_at(two, "a").subscriptions) == ["t"]


def test_packet_ids_keep_their_order_over_a_move_and_a_crash(world: ClusterWorld) -> None:
    one, two = world.node(1).at(1), world.node(2).at(2)
    peer = one.client("a", expiry=EXPIRY)
    peer.subscribe("t", qos=2)
    sender = one.client("sender")
    sender.send(*(publish("t", b"%d" % n, qos=2, packet_id=n) for n in range(1, 7)))
    world.run(0.3)
    ids = [one for packet in peer.publishes() for one in packet.packet_ids()]
    for packet_id in ids[2:]:
        peer.send(encode_ack(PUBREC, packet_id))
        world.run(0.1)
    peer.drop()
    peer = come(world, two, "a")
    for packet_id in ids[:2]:
        peer.send(encode_ack(PUBREC, packet_id))
        world.run(0.1)
    assert list(session_at(two, "a").outbound.window.releasing) == [*ids[2:], *ids[:2]]
    for _ in range(2 * FOLD_GROUPS):  # so that the host itself folds what was released here
        peer.subscribe("k", qos=1)
        world.run(0.05)
    assert two.hosted.journal.folded > 0
    world.kill(2)
    heir = world.inherited(2)
    assert list(session_at(heir, "a").outbound.window.releasing) == [*ids[2:], *ids[:2]]
