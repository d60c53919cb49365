"""What publishes from inside something else: nothing that a stored session gets goes unrecorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.topics.shared import Member
from sessions.journal.journal import Journal
from sessions.journal.records import Delivered, unseal
from sessions.journal.transaction import Delivery
from sessions.messages.message import DeliveryOptions, single
from tests.core.peers import V5, Peer, connect, publish, subscribe
from tests.core.stored import StoredWorld

EXPIRY = 1000
WILL = Will("will", b"gone", 1, False, NO_PROPERTIES)


def stored(world: StoredWorld, name: str, *filters: str, **fields: Any) -> Peer:
    peer = world.client(name, **{"expiry": EXPIRY, "clean": False, **fields})
    for text in filters:
        peer.send(subscribe(V5, text, qos=1))
    world.commit()
    peer.take()
    return peer


def check(world: StoredWorld) -> int:
    """Compare what sessions and groups have with what a crash would leave; how much that is."""
    world.settle()
    world.commit()
    tables = world.store.crash().tables
    held: dict[int, dict[int, bytes]] = {}

    def add(sid: int, item: Delivery) -> None:
        assert item[2], f"{item[0].payload[:20]!r} is recorded nowhere"
        held.setdefault(sid, {})[item[2]] = item[0].payload

    for session in world.broker.sessions:
        queued = [] if session.outbound.queue is None else session.outbound.queue.items()
        for item in [*session.outbound.window.unacked.values(), *queued]:
            group = item[1].group
            if session.session_number:
                add(session.session_number, item)
            elif isinstance(group, SharedGroup) and item[2]:
                add(group.session_number, item)
    for group in world.broker.subscriptions.groups.values():
        for item in group.waiting.items():
            add(group.session_number, item)
    kept = {
        sid: {n: tables.messages[row.mid].payload for n, row in rows.items()}
        for sid, rows in tables.deliveries.items()
        if rows
    }
    assert held == kept
    return sum(map(len, kept.values()))


class TestJournal:
    def test_one_inside_another(self) -> None:
        """They end in any order; those without anything to write leave nothing behind."""
        blobs: list[bytes] = []
        journal = Journal(lambda number, blob: blobs.append(blob))
        message = single("t", b"x", qos=1, retain=False, publisher="p", now=1.0)
        outer, empty, inner = journal.begin([message]), journal.begin([]), journal.begin([])
        assert outer.is_recorded(message)
        inner.deliver(1, 2, [message], DeliveryOptions(1), [])
        journal.add(inner)
        journal.add(empty)
        outer.deliver(1, 1, [message], DeliveryOptions(1), [])
        journal.add(outer)
        assert len(journal) == 2 and journal.cancelled == 0
        journal.flush(1.0)
        assert len(blobs) == 1 and journal.records == 2
        delivered = [one.n for one in unseal(blobs[0]) if isinstance(one, Delivered)]
        assert delivered == [1, 2], "in the order in which they began"

    def test_what_came_before_stands_before(self) -> None:
        """A session that ends while something is delivered to it leaves nothing in the store."""
        world = StoredWorld()
        stored(world, "s", "a").drop()
        session = world.broker.sessions.get("s")
        assert session is not None
        message = single("a", b"x", qos=1, retain=True, publisher="p", now=world.now)
        txn = world.journal.begin([message], awaits_commit=True)
        world.broker.retained.put(message, txn)  # it is written whoever takes it
        session.outbound.deliver([message], DeliveryOptions(1), txn, world.now)
        world.broker.state.lifecycle.end(session, world.now)
        world.journal.add(txn)
        world.fold()
        assert not world.store.tables.sessions
        assert not any(world.store.tables.deliveries.values())

    def test_retained_messages_of_both(self) -> None:
        world = StoredWorld()

        def retain(payload: bytes, then: Callable[[], None] = lambda: None) -> None:
            message = single("t", payload, qos=1, retain=True, publisher="p", now=world.now)
            txn = world.journal.begin([message], awaits_commit=True)
            world.broker.retained.put(message, txn)
            then()
            world.journal.add(txn)

        retain(b"outer", lambda: retain(b"inner"))
        world.commit()
        world.restart()
        assert [message.payload for message in world.broker.retained.values()] == [b"inner"]


class Failing(Peer):
    """A link that breaks when it is told not to be read: our own mistake, in the middle."""

    def pause_reading(self) -> None:
        raise RuntimeError("our own mistake")


class Broken:
    """A strategy that fails."""

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        raise RuntimeError("not ours")


class TestPaths:
    def test_a_will_under_the_retained_messages_of_a_subscription(self) -> None:
        world = StoredWorld(outbox_bytes_max=100_000)
        world.broker.runtime.on_bug = lambda connection, data, error: None
        stored(world, "watcher", "will").drop()
        publisher = world.client("p")
        for number in range(6):
            payload = b"%d" % number + bytes(99_999)
            publisher.send(publish(f"r/{number}", payload, qos=1, retain=True))
            world.commit()
        peer = Failing(world, V5)
        world.peers.append(peer)
        stored(world, "c").drop()
        peer.send(connect("c", expiry=EXPIRY, clean=False, will=WILL))
        peer.is_slow = True
        peer.send(subscribe(V5, "r/#", qos=1))
        world.commit()
        assert peer.is_closed
        assert check(world) == 7
        world.restart()
        again = world.client("c", expiry=EXPIRY, clean=False)
        world.page()
        assert len(again.publishes()) == 6
        watcher = world.client("watcher", expiry=EXPIRY, clean=False)
        world.page()
        assert watcher.payloads() == [b"gone"]

    def test_a_take_over_with_a_will_and_what_its_group_gets(self) -> None:
        world = StoredWorld()
        stored(world, "watcher", "will", "$share/g/will").drop()
        one = stored(world, "one", "$share/g/a", will=WILL)
        stored(world, "two", "$share/g/a", "$share/g/will")
        publisher = world.client("p")
        for number in range(4):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        stored(world, "one", "$share/g/a", clean=True)
        assert one.is_closed
        assert check(world) == 4 + 2

    def test_a_clean_start_that_sends_a_will(self) -> None:
        world = StoredWorld()
        stored(world, "watcher", "#").drop()
        section = b"\x05\x18\x00\x00\x00\x1e"
        found = Properties({prop.WILL_DELAY_INTERVAL: 30})
        stored(world, "c", "a", will=Will("will", b"gone", 1, True, found, section)).drop()
        stored(world, "c", "will", clean=True)
        assert check(world) == 2, "live, and as a retained message"

    @pytest.mark.parametrize("is_stored", [True, False])
    def test_a_full_queue_that_disconnects(self, is_stored: bool) -> None:
        world = StoredWorld(queue_full="disconnect", queue_messages_max=2)
        stored(world, "watcher", "will").drop()
        expiry = EXPIRY if is_stored else None
        options: dict[str, Any] = {"expiry": expiry, "clean": False, "will": WILL}
        slow = world.client("slow", receive_maximum=1, **options)
        slow.send(subscribe(V5, "a", qos=1))
        world.commit()
        publisher = world.client("p")
        for number in range(6):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        world.wait(0)
        assert slow.is_closed
        assert check(world) == 1 + 3 * is_stored

    @pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
    def test_dead_letters_of_what_is_dropped(self, policy: str) -> None:
        world = StoredWorld(queue_full=policy, queue_messages_max=2, dead_letters="all")
        stored(world, "undertaker", "$dlq/#")
        stored(world, "away", "a").drop()
        stored(world, "other", "a")
        publisher = world.client("p")
        for number in range(4):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        assert check(world) == 2 + 2 + 4

    def test_dead_letters_of_what_expires_while_it_is_handed_out(self) -> None:
        world = StoredWorld(dead_letters="expired")
        stored(world, "undertaker", "$dlq/#")
        stored(world, "member", "$share/g/a").drop()
        publisher = world.client("p")
        found = {prop.MESSAGE_EXPIRY_INTERVAL: 5}
        for number in range(3):
            data = publish("a", b"x", qos=1, packet_id=number + 1, properties=found)
            publisher.send(data, publish("a", b"y", qos=1, packet_id=number + 10))
        world.commit()
        world.now += 10
        world.client("member", expiry=EXPIRY, clean=False)
        assert check(world) == 3 + 3

    def test_a_member_whose_will_is_for_its_own_group(self) -> None:
        world = StoredWorld()
        stored(world, "stays", "$share/g/#").drop()
        goes = world.client("goes", will=WILL)
        goes.send(subscribe(V5, "$share/g/#", qos=1))
        publisher = world.client("p")
        for number in range(3):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        goes.drop()
        assert check(world) == 4

    def test_an_answer_that_lets_others_go_on(self) -> None:
        """Dropping what somebody was promised answers its publisher, in the middle of another."""
        world = StoredWorld(queue_messages_max=1)
        for name in ("one", "two", "three"):
            stored(world, name, "a").drop()
        first = stored(world, "first")
        first.send(publish("a", b"1", qos=1), subscribe(V5, "r", qos=1))
        world.client("second").send(publish("a", b"2", qos=1))
        assert check(world) == 3

    def test_wills_of_those_who_expire_together(self) -> None:
        world = StoredWorld()
        stored(world, "watcher", "will").drop()
        section = b"\x05\x18\x00\x00\x00\x1e"
        found = Properties({prop.WILL_DELAY_INTERVAL: 30})
        for number in range(3):
            will = Will("will", b"%d" % number, 1, False, found, section)
            stored(world, f"c{number}", "will", expiry=10, will=will).drop()
        world.wait(20)
        assert check(world) == 3

    def test_events_of_clients_that_go(self) -> None:
        world = StoredWorld(client_events=True)
        stored(world, "watcher", "$SYS/#", "will").drop()
        peers = [stored(world, f"c{number}", "will", will=WILL) for number in range(2)]
        world.broker.kick("c0", world.now)
        peers[1].drop()
        assert check(world) == 3 * 2

    def test_what_a_start_brings_about(self) -> None:
        world = StoredWorld()
        stored(world, "watcher", "will", "$share/g/a").drop()
        stored(world, "ends", "$share/g/a", expiry=1, will=WILL)
        world.client("plain", will=WILL).send(subscribe(V5, "$share/g/a", qos=1))
        publisher = world.client("p")
        for number in range(4):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        world.commit()
        world.restart(downtime_s=EXPIRY / 2)
        world.fold()
        session = world.broker.sessions.get("watcher")
        assert session is not None and session.outbound.queued == 2
        tables = world.store.tables
        payloads = sorted(
            tables.messages[row.mid].payload
            for rows in tables.deliveries.values()
            for row in rows.values()
        )
        assert payloads == [b"0", b"1", b"2", b"3", b"gone", b"gone"]

    def test_a_strategy_that_fails(self) -> None:
        """An exception on the way leaves no transaction open."""
        world = StoredWorld()
        world.broker.runtime.on_bug = lambda connection, data, error: None
        stored(world, "member", "$share/g/a")
        stored(world, "other", "a").drop()
        group = world.broker.subscriptions.groups["$share/g/a"]
        group.strategy = Broken()
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        assert publisher.is_closed
        world.client("q").send(publish("a/b", b"y", qos=1))
        assert check(world) == 1

    def test_acknowledgements_while_something_is_delivered(self) -> None:
        world = StoredWorld()
        one = stored(world, "one", "a", "b")
        publisher = world.client("p")
        publisher.send(publish("a", b"1", qos=1))
        one.send(encode_ack(PUBACK, one.publishes()[0].packet_id), publish("b", b"2", qos=1))
        assert check(world) == 1
