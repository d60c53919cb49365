"""Shared groups of stored and unstored members: nothing acknowledged is lost with a member."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack
from sessions.journal.journal import MEMORY
from tests.core.peers import V5, Peer, World, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

FILTER = "$share/g/a"
EXPIRY = 1000


def stored(world: StoredWorld, name: str = "stored", qos: int = 2, **fields: Any) -> Peer:
    peer = world.client(name, expiry=EXPIRY, clean=False, **fields)
    peer.send(subscribe(V5, FILTER, qos=qos))
    world.commit()
    peer.take()
    return peer


def unstored(world: StoredWorld, name: str = "unstored", qos: int = 2, **fields: Any) -> Peer:
    peer = world.client(name, **fields)
    peer.send(subscribe(V5, FILTER, qos=qos))
    peer.take()
    return peer


def kinds(peer: Peer) -> list[tuple[int, list[int]]]:
    return [(p.packet_type, p.packet_ids) for p in peer.take() if isinstance(p, Ack)]


def answered(peer: Peer) -> list[int]:
    return [packet_id for _, ids in kinds(peer) for packet_id in ids]


def back(world: StoredWorld, name: str = "stored") -> Peer:
    """The stored member returns and gets what waits."""
    peer = world.client(name, expiry=EXPIRY, clean=False)
    world.page()
    world.commit()
    return peer


def is_empty(world: StoredWorld) -> bool:
    world.fold()
    tables = world.store.tables
    return not tables.messages and not any(tables.deliveries.values())


class TestQos1:
    def test_a_message_survives_the_crash_with_its_group(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world)
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1, packet_id=7))
        assert member.payloads() == [b"x"]
        assert kinds(publisher) == []
        world.commit()
        assert kinds(publisher) == [(PUBACK, [7])]
        world.restart()
        assert back(world).payloads() == [b"x"]

    def test_ten_of_twenty_were_lost(self) -> None:
        """Both members are online, and the group deals in turn."""
        world = StoredWorld()
        stored(world)
        unstored(world)
        publisher = world.client("p")
        for number in range(20):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        world.commit()
        assert len(answered(publisher)) == 20
        world.restart()
        assert sorted(back(world).payloads(), key=int) == [b"%d" % n for n in range(20)]

    def test_the_members_acknowledgement_is_enough(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world)
        before = world.journal.number
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        world.journal.drop_settled(world.now)
        member.send(encode_ack(PUBACK, member.publishes()[0].packet_id))
        assert kinds(publisher) == [(PUBACK, [1])]
        world.commit()
        assert world.journal.number <= before + 1, "the group's number alone is written"
        world.restart()
        assert back(world).payloads() == []

    @pytest.mark.parametrize("is_packed", [False, True])
    def test_an_acknowledged_message_is_over(self, is_packed: bool) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world)
        world.client("p").send(publish("a", b"x", qos=1))
        if is_packed:
            world.fold()
        member.send(encode_ack(PUBACK, member.publishes()[0].packet_id))
        assert is_empty(world)
        world.restart()
        assert back(world).payloads() == []

    @pytest.mark.parametrize("is_packed", [False, True])
    def test_the_member_goes(self, is_packed: bool) -> None:
        world = StoredWorld()
        other = stored(world)
        other.drop()
        member = unstored(world)
        world.client("p").send(publish("a", b"x", qos=1))
        if is_packed:
            world.commit()
        member.drop()
        world.commit()
        world.restart()
        assert back(world).payloads() == [b"x"]

    def test_it_goes_from_member_to_member(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        one = unstored(world, "one")
        world.client("p").send(publish("a", b"x", qos=1))
        two = unstored(world, "two")
        one.drop()
        (packet,) = two.publishes()
        world.commit()
        world.restart()
        assert back(world).payloads() == [b"x"]
        assert packet.payloads() == [b"x"]

    def test_a_member_that_unsubscribed_finishes_what_it_has(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world)
        world.client("p").send(publish("a", b"x", qos=1))
        (packet,) = member.publishes()
        member.send(unsubscribe(V5, FILTER))
        world.commit()
        member.send(encode_ack(PUBACK, packet.packet_id))
        assert is_empty(world)

    def test_a_member_that_unsubscribed_leaves_it_to_the_group(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world)
        world.client("p").send(publish("a", b"x", qos=1))
        member.send(unsubscribe(V5, FILTER))
        member.drop()
        assert back(world).payloads() == [b"x"]

    def test_the_group_dissolves(self) -> None:
        world = StoredWorld()
        other = stored(world)
        member = unstored(world)
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1), publish("a", b"y", qos=1, packet_id=2))
        (packet,) = member.publishes()
        other.send(unsubscribe(V5, FILTER))
        member.send(unsubscribe(V5, FILTER))
        other.drop()
        world.commit()
        member.send(encode_ack(PUBACK, packet.packet_id))
        assert FILTER not in world.broker.subscriptions.groups
        world.commit()
        assert answered(publisher) == [1, 2]
        session = world.broker.sessions.get("stored")
        assert session is not None
        world.broker.state.lifecycle.end(session, world.now)
        assert is_empty(world)

    def test_the_stored_member_leaves_and_the_broker_dies(self) -> None:
        world = StoredWorld()
        other = stored(world)
        other.drop()
        member = unstored(world)
        world.client("p").send(publish("a", b"x", qos=1))
        other = back(world)
        other.send(unsubscribe(V5, FILTER))
        world.commit()
        assert member.payloads() == [b"x"]
        world.restart()
        world.fold()
        assert is_empty(world), "nobody is left who could get it"
        assert not world.store.tables.shares
        assert world.broker.backlog.dropped == {"no_member": 1}

    def test_what_waits_in_a_members_queue(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world, receive_maximum=1)
        publisher = world.client("p")
        for number in range(1, 4):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number))
        world.fold()
        (packet,) = member.publishes()
        member.send(encode_ack(PUBACK, packet.packet_id))
        world.commit()
        world.restart()
        assert back(world).payloads() == [b"2", b"3"]

    @pytest.mark.parametrize(
        ("policy", "left"), [("drop_oldest", [b"1", b"3"]), ("drop_new", [b"1", b"2"])]
    )
    def test_a_full_queue_of_the_member(self, policy: str, left: list[bytes]) -> None:
        world = StoredWorld(queue_full=policy, queue_messages_max=1)
        stored(world).drop()
        unstored(world, receive_maximum=1)
        publisher = world.client("p")
        for number in range(1, 4):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number))
        world.commit()
        assert answered(publisher) == [1, 2, 3]
        world.restart()
        peer = back(world)
        assert peer.payloads() == left
        assert is_empty(world) is False

    def test_a_message_too_large_for_the_member_is_over(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        unstored(world, packet_bytes_max=50)
        world.client("p").send(publish("a", bytes(100), qos=1))
        assert is_empty(world)

    def test_what_expires_in_the_members_queue_is_over(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world, receive_maximum=1)
        publisher = world.client("p")
        publisher.send(publish("a", b"1", qos=1, packet_id=1))
        publisher.send(publish("a", b"2", qos=1, packet_id=2, properties={2: 5}))
        world.commit()
        world.now += 10
        member.send(encode_ack(PUBACK, member.publishes()[0].packet_id))
        assert is_empty(world)

    def test_nothing_is_stored_for_members_without_a_stored_one(self) -> None:
        world = StoredWorld()
        unstored(world, "one"), unstored(world, "two", receive_maximum=1)
        publisher = world.client("p")
        for number in range(1, 6):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number))
        assert len(kinds(publisher)) == 5
        world.pack()
        assert world.journal.number == 0 and not world.journal.records

    def test_nor_of_a_topic_that_is_not_kept(self) -> None:
        world = StoredWorld(durabilities=[("a", MEMORY)])
        stored(world).drop()
        unstored(world)
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        assert kinds(publisher) == [(PUBACK, [1])]
        assert is_empty(world)

    def test_long_queues_and_lent_messages_do_not_meet(self) -> None:
        """Pages of what waits never bring what a member has."""
        world = StoredWorld()
        stored(world).drop()
        publisher = world.client("p")
        for number in range(1, 2001):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number))
        world.fold()
        got: list[bytes] = []
        for turn in range(4):
            member = unstored(world, f"m{turn}", receive_maximum=30)
            for number in range(20):
                world.page()
                for packet in member.publishes():
                    got += packet.payloads()
                    if turn or number < 10:
                        for packet_id in packet.packet_ids():
                            member.send(encode_ack(PUBACK, packet_id))
                world.fold()
            member.drop()
            world.fold()
        other = back(world)
        while packets := other.publishes():
            for packet in packets:
                got += packet.payloads()
                other.send(b"".join(encode_ack(PUBACK, i) for i in packet.packet_ids()))
            world.page()
            world.commit()
        assert {int(payload) for payload in got} == set(range(1, 2001))
        assert len(got) <= 2000 + 4 * 30, "only what a member left comes again"
        assert is_empty(world)
        budget = world.broker.backlog
        assert (budget.queued_messages, budget.queued_bytes, budget.memory_bytes) == (0, 0, 0)


class TestQos2:
    def test_what_began_is_the_members_alone(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world)
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=2))
        assert member.payloads() == [b"x"]
        assert kinds(publisher) == [(PUBREC, [1])]
        world.commit()
        world.restart()
        assert back(world).payloads() == []

    def test_what_waits_for_its_turn_moves(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        unstored(world, receive_maximum=1)
        publisher = world.client("p")
        publisher.send(publish("a", b"1", qos=2))
        publisher.send(publish("a", b"2", qos=2, packet_id=2))
        assert kinds(publisher) == [(PUBREC, [1])]
        world.commit()
        assert kinds(publisher) == [(PUBREC, [2])]
        world.restart()
        assert back(world).payloads() == [b"2"]

    def test_it_leaves_the_queue_when_that_is_on_disk(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        member = unstored(world, receive_maximum=1)
        publisher = world.client("p")
        publisher.send(publish("a", b"1", qos=2))
        publisher.send(publish("a", b"2", qos=2, packet_id=2))
        world.fold()
        packet_id = member.publishes()[0].packet_id
        member.send(encode_ack(PUBREC, packet_id))
        assert kinds(member) == [(PUBREL, [packet_id])]
        member.send(encode_ack(PUBCOMP, packet_id))
        assert member.payloads() == [], "after a crash it would go to another as well"
        world.commit()
        assert member.payloads() == [b"2"]
        world.restart()
        assert back(world).payloads() == []


class TestStoredMembers:
    """What waits for a member whose session is stored is not its own either."""

    def test_a_queue_that_is_partly_in_the_store(self) -> None:
        world = StoredWorld()
        one = world.client("one", expiry=5, clean=False)
        one.send(subscribe(V5, "b", qos=1))
        one.drop()
        publisher = world.client("p")
        for number in range(1200):
            publisher.send(publish("b", b"%d" % number, qos=1, packet_id=number + 1))
        world.fold()
        session = world.broker.sessions.get("one")
        assert session is not None
        session.outbound.unload(world.journal.folded, 10)
        one = world.client("one", expiry=5, clean=False, receive_maximum=1)
        one.send(subscribe(V5, FILTER, qos=1))
        publisher.send(publish("a", b"x", qos=1, packet_id=2000))
        publisher.send(publish("b", b"last", qos=1, packet_id=2001))
        assert session.outbound.queue is not None and session.outbound.queue.stored_messages
        stored(world, "two").drop()
        one.drop()
        world.fold()
        assert back(world, "two").payloads() == [b"x"]
        one = world.client("one", expiry=5, clean=False)
        got = one.payloads()
        while session.outbound.queued:
            world.page()
            got += one.payloads()
        assert got == [*(b"%d" % number for number in range(1200)), b"last"]
        budget = world.broker.backlog
        assert (budget.queued_messages, budget.queued_bytes, budget.memory_bytes) == (0, 0, 0)

    @pytest.mark.parametrize("returns", [False, True])
    def test_a_crash(self, returns: bool) -> None:
        world = StoredWorld()
        one = world.client("one", expiry=5, clean=False, receive_maximum=1)
        one.send(subscribe(V5, FILTER, qos=1), subscribe(V5, "b", qos=1))
        publisher = world.client("p")
        for number in range(3):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
            publisher.send(publish("b", b"b%d" % number, qos=1, packet_id=number + 11))
        stored(world, "two").drop()
        world.commit()
        world.restart()
        if returns:  # at once: the tables still have what was moved
            one = world.client("one", expiry=5, clean=False)
            world.page()
            assert sorted(one.payloads()) == [b"0", b"1", b"2", b"b0", b"b1", b"b2"]
            one.drop()
        world.wait(100)
        assert back(world, "two").payloads() == [b"0", b"1", b"2"]
        budget = world.broker.backlog
        assert (budget.queued_messages, budget.queued_bytes, budget.memory_bytes) == (0, 0, 0)

    def test_a_member_that_left_the_group(self) -> None:
        """What waits is its own, and no place in its session is used twice."""
        world = StoredWorld()
        one = stored(world, "one", receive_maximum=1)
        publisher = world.client("p")
        for number in range(3):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        one.send(unsubscribe(V5, FILTER), subscribe(V5, "a", qos=1))
        world.commit()
        for _ in range(2):
            world.restart()
            world.client("p").send(publish("a", b"more", qos=1))
            world.commit()
        one = back(world, "one")
        assert one.payloads() == [b"0", b"1", b"2", b"more", b"more"]

    def test_one_message_that_came_by_two_subscriptions(self) -> None:
        world = StoredWorld()
        one = stored(world, "one", receive_maximum=1)
        one.send(subscribe(V5, "a", qos=1))
        stored(world, "two").drop()
        publisher = world.client("p")
        for number in range(2):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        one.drop()
        world.fold()
        world.restart()
        assert back(world, "one").payloads() == [b"0", b"1", b"0", b"1"]


class TestExpiry:
    """What has expired goes to nobody who has not been sent it. [MQTT-3.3.2-5]"""

    @pytest.mark.parametrize("is_stored", [False, True])
    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("is_packed", [False, True])
    def test_the_member_that_has_it_goes(
        self, is_stored: bool, waits: bool, is_packed: bool
    ) -> None:
        world = StoredWorld()
        other = stored(world, "other")
        other.drop()
        make = stored if is_stored else unstored
        member = make(world, "member", receive_maximum=1)
        send(world, b"long", b"short" if waits else b"", expiry=5)
        if is_packed:
            world.fold()
        world.wait(10)
        other = back(world, "other")
        member.drop()
        world.commit()
        assert other.payloads() == []
        assert world.broker.backlog.dropped == {"expired": 2 if waits else 1}
        assert is_empty(world)

    def test_it_waits_with_the_group(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        send(world, b"x", expiry=5)
        world.wait(10)
        assert back(world).payloads() == []
        assert world.broker.backlog.dropped == {"expired": 1}
        assert is_empty(world)

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("is_stored", [False, True])
    def test_a_crash_in_between(self, waits: bool, is_stored: bool) -> None:
        world = StoredWorld()
        stored(world, "other").drop()
        make = stored if is_stored else unstored
        make(world, "member", receive_maximum=1)
        send(world, b"long", b"short" if waits else b"", expiry=5)
        world.commit()
        world.restart(downtime_s=10)
        assert back(world, "other").payloads() == []
        assert is_empty(world)

    def test_nothing_is_stored(self) -> None:
        world = World()
        one = world.client("one")
        one.subscribe(FILTER, qos=1)
        send(world, b"x", expiry=5)
        two = world.client("two")
        two.subscribe(FILTER, qos=1)
        world.wait(10)
        one.drop()
        assert two.payloads() == []
        assert world.broker.backlog.dropped == {"expired": 1}

    def test_what_has_not_expired_moves(self) -> None:
        world = StoredWorld()
        other = stored(world, "other")
        other.drop()
        member = stored(world, "member")
        send(world, b"x", expiry=20)
        world.wait(10)
        other = back(world, "other")
        member.drop()
        (packet,) = other.publishes()
        assert packet.properties.number(prop.MESSAGE_EXPIRY_INTERVAL) == 10


def send(world: World, *payloads: bytes, expiry: int) -> None:
    properties = {prop.MESSAGE_EXPIRY_INTERVAL: expiry}
    publisher = world.client("p")
    for number, payload in enumerate(filter(None, payloads), 1):
        publisher.send(publish("a", payload, qos=1, packet_id=number, properties=properties))
