"""What waits for the store, what does not, and what a restart finds."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Connack, Disconnect, Publish, Suback, Unsuback, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.restore import SIGN_OF_LIFE_S
from sessions.journal.journal import MEMORY, RELAXED
from tests.core.peers import V5, V311, Peer, connect, disconnect, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

EXPIRY = 1000


def kept(world: StoredWorld, name: str, *filters: str, qos: int = 1, **options: Any) -> Peer:
    """A client with a stored session and subscriptions that are on disk."""
    clean = options.pop("clean", False)
    peer = world.client(name, expiry=EXPIRY, clean=clean, **options)
    for text in filters:
        peer.send(subscribe(V5, text, qos=qos))
    world.commit()
    peer.take()
    return peer


def each(peer: Peer) -> list[tuple[int, bytes, bool]]:
    """The messages it got: packet id, payload, DUP."""
    return [
        (packet_id, payload, packet.dup)
        for packet in peer.publishes()
        for packet_id, payload in zip(packet.packet_ids(), packet.payloads(), strict=True)
    ]


def kinds(peer: Peer) -> list[tuple[int, list[int]]]:
    """The acknowledgements it got."""
    return [(p.packet_type, p.packet_ids) for p in peer.take() if isinstance(p, Ack)]


class TestAcknowledgements:
    def test_puback_waits_for_the_commit(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a").drop()
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1, packet_id=7))
        assert kinds(publisher) == []
        world.pack()
        assert kinds(publisher) == []
        world.commit()
        assert kinds(publisher) == [(PUBACK, [7])]

    def test_puback_leaves_when_every_stored_session_has_taken_it(self) -> None:
        world = StoredWorld()
        one, two = kept(world, "one", "a"), kept(world, "two", "a")
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        one.send(encode_ack(PUBACK, one.publishes()[0].packet_id))
        assert kinds(publisher) == []
        two.send(encode_ack(PUBACK, two.publishes()[0].packet_id))
        assert kinds(publisher) == [(PUBACK, [1])]
        before = world.journal.number
        world.pack()
        assert world.journal.number == before, "nothing of it is written"
        assert world.journal.cancelled == 1

    def test_taken_after_it_was_packed(self) -> None:
        world = StoredWorld()
        one = kept(world, "one", "a")
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        world.pack()
        one.send(encode_ack(PUBACK, one.publishes()[0].packet_id))
        assert kinds(publisher) == [(PUBACK, [1])], "the disk is not needed any longer"
        world.restart()
        one = world.client("one", expiry=EXPIRY, clean=False)
        assert one.payloads() == []

    def test_nobody_stored_nothing_to_wait_for(self) -> None:
        world = StoredWorld()
        world.client("s").subscribe("a", qos=1)
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1), publish("b", b"x", qos=1, packet_id=2))
        assert kinds(publisher) == [(PUBACK, [1]), (PUBACK, [2])]
        world.pack()
        assert world.journal.number == 0

    def test_answers_keep_their_order(self) -> None:
        world = StoredWorld()
        one = kept(world, "one", "slow")
        one.drop()
        publisher = world.client("p")
        publisher.send(
            publish("slow", b"x", qos=1, packet_id=1),
            publish("nobody", b"x", qos=1, packet_id=2),
            subscribe(V5, "other"),
        )
        assert publisher.take() == []
        world.commit()
        found = publisher.take()
        assert [type(packet) for packet in found] == [Ack, Ack, Suback]
        assert [packet.packet_ids for packet in found[:2]] == [[1], [2]]

    def test_the_publisher_itself_is_answered_before_it_gets_its_own(self) -> None:
        world = StoredWorld()
        one = world.client("one")
        one.subscribe("a", qos=1)
        one.take()
        one.send(publish("a", b"x", qos=1))
        assert [type(packet) for packet in one.take()] == [Ack, Publish]

    def test_suback_and_unsuback_wait(self) -> None:
        world = StoredWorld()
        one = world.client("one", expiry=EXPIRY)
        world.client("p").send(publish("a", b"kept", retain=True))
        one.send(subscribe(V5, "a", qos=1))
        assert one.take() == []
        world.commit()
        assert [type(packet) for packet in one.take()] == [Suback, Publish]
        one.send(unsubscribe(V5, "a"))
        assert one.take() == []
        world.commit()
        assert [type(packet) for packet in one.take()] == [Unsuback]

    def test_a_retained_message_waits_and_so_does_its_end(self) -> None:
        world = StoredWorld()
        publisher = world.client("p")
        for packet_id, payload in ((1, b"x"), (2, b"")):
            publisher.send(publish("a", payload, qos=1, retain=True, packet_id=packet_id))
            assert kinds(publisher) == []
            world.commit()
            assert kinds(publisher) == [(PUBACK, [packet_id])]

    def test_a_client_that_went_is_not_answered(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a").drop()
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        publisher.drop()
        world.commit()
        assert publisher.take() == []

    def test_a_client_far_ahead_is_read_more_slowly(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a").drop()
        publisher = world.client("p", V311)
        for packet_id in range(1, 5000):
            data = publish("a", b"%d" % packet_id, qos=1, packet_id=packet_id, version=V311)
            publisher.send(data)
        was_paused = publisher.is_paused
        world.commit()
        assert was_paused and not publisher.is_paused
        assert sum(len(ids) for _, ids in kinds(publisher)) == 4999


class TestQos2:
    def test_every_step_waits(self) -> None:
        world = StoredWorld()
        subscriber = kept(world, "s", "a", qos=2)
        publisher = kept(world, "p")
        publisher.send(publish("a", b"x", qos=2, packet_id=9))
        assert (kinds(publisher), subscriber.take()) == ([], [])
        world.commit()
        assert kinds(publisher) == [(PUBREC, [9])]
        packet_id = subscriber.publishes()[0].packet_id

        subscriber.send(encode_ack(PUBREC, packet_id))
        assert subscriber.take() == []
        world.commit()
        assert kinds(subscriber) == [(PUBREL, [packet_id])]

        publisher.send(encode_ack(PUBREL, 9))
        assert publisher.take() == []
        world.commit()
        assert kinds(publisher) == [(PUBCOMP, [9])]

    def test_a_repeat_before_the_commit_is_answered_after_it(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a", qos=2).drop()
        publisher = kept(world, "p")
        publisher.send(publish("a", b"x", qos=2, packet_id=9))
        publisher.drop()
        publisher = world.client("p", expiry=EXPIRY, clean=False)
        publisher.send(publish("a", b"x", qos=2, packet_id=9))
        assert kinds(publisher) == []
        world.commit()
        assert kinds(publisher) == [(PUBREC, [9])]
        assert world.broker.backlog.queued_messages == 1

    def test_an_id_that_was_acknowledged_is_known_after_a_crash(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a", qos=2).drop()
        publisher = kept(world, "p")
        publisher.send(publish("a", b"x", qos=2, packet_id=9))
        world.commit()
        world.restart()
        publisher = world.client("p", expiry=EXPIRY, clean=False)
        publisher.send(publish("a", b"x", qos=2, packet_id=9))
        world.commit()
        assert kinds(publisher) == [(PUBREC, [9])]
        publisher.send(encode_ack(PUBREL, 9))
        world.commit()
        publisher.send(publish("a", b"new", qos=2, packet_id=9))
        world.commit()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        world.page()
        world.commit()
        assert subscriber.payloads() == [b"x", b"new"]

    def test_what_was_released_is_not_published_again(self) -> None:
        world = StoredWorld()
        subscriber = kept(world, "s", "a", qos=2)
        world.client("p").send(publish("a", b"x", qos=2))
        world.commit()
        packet_id = subscriber.publishes()[0].packet_id
        subscriber.send(encode_ack(PUBREC, packet_id))
        world.commit()
        world.restart()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        assert kinds(subscriber) == [(PUBREL, [packet_id])]
        subscriber.send(encode_ack(PUBCOMP, packet_id))
        world.commit()
        world.restart()
        assert world.client("s", expiry=EXPIRY, clean=False).take() == []

    def test_a_resumed_session_repeats_only_what_is_on_disk(self) -> None:
        world = StoredWorld()
        subscriber = kept(world, "s", "a", qos=2)
        world.client("p").send(publish("a", b"x", qos=2))
        subscriber.drop()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        assert subscriber.take() == []
        world.commit()
        assert subscriber.payloads() == [b"x"]


class TestModes:
    def test_relaxed_answers_at_once_and_writes(self) -> None:
        world = StoredWorld(mode=RELAXED)
        subscriber = world.client("s", expiry=EXPIRY)
        subscriber.subscribe("a", qos=2)
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=2))
        assert kinds(publisher) == [(PUBREC, [1])]
        assert subscriber.payloads() == [b"x"]
        world.commit()
        world.restart()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        assert each(subscriber) == [(1, b"x", True)]

    @pytest.mark.parametrize(
        ("topic", "waits", "survives"),
        [("raw/1", False, False), ("loose/1", False, True), ("other", True, True)],
    )
    def test_by_topic(self, topic: str, waits: bool, survives: bool) -> None:
        world = StoredWorld(durabilities=[("raw/#", MEMORY), ("+/1", RELAXED)])
        kept(world, "s", "#").drop()
        publisher = world.client("p")
        publisher.send(publish(topic, b"x", qos=1))
        assert (kinds(publisher) == []) == waits
        world.commit()
        world.restart()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        world.page()
        assert subscriber.payloads() == ([b"x"] if survives else [])


class TestRestart:
    def test_the_window_is_repeated_under_the_same_ids(self) -> None:
        world = StoredWorld()
        subscriber = kept(world, "s", "a", receive_maximum=2)
        publisher = world.client("p")
        for number in range(4):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        sent = each(subscriber)
        assert [payload for _, payload, _ in sent] == [b"0", b"1"]
        world.commit()
        world.restart()
        subscriber = world.client("s", expiry=EXPIRY, clean=False, receive_maximum=2)
        assert each(subscriber) == [(packet_id, payload, True) for packet_id, payload, _ in sent]
        world.page()
        for packet_id, _, _ in sent:
            subscriber.send(encode_ack(PUBACK, packet_id))
        assert subscriber.payloads() == [b"2", b"3"]

    def test_what_came_from_the_queue_has_its_id_after_a_restart(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a").drop()
        world.client("p").send(publish("a", b"x", qos=1))
        world.fold()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        (first,) = each(subscriber)
        world.commit()
        world.restart()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        assert each(subscriber) == [(first[0], b"x", True)]

    def test_all_of_a_subscription_survives(self) -> None:
        world = StoredWorld()
        peer = world.client("s", expiry=EXPIRY)
        options = {"no_local": True, "retain_as_published": True, "retain_handling": 2}
        peer.send(subscribe(V5, "a/#", qos=2, identifier=300, **options))
        world.commit()
        world.restart()
        session = world.broker.sessions.get("s")
        assert session is not None
        found = session.subscriptions["a/#"]
        assert (found.qos, found.no_local, found.retain_as_published) == (2, True, True)
        assert (found.retain_handling, found.identifier) == (2, 300)
        world.client("p").send(publish("a/b", b"x", qos=0, retain=True))
        peer = world.client("s", expiry=EXPIRY, clean=False)
        world.client("q").send(publish("a/b", b"y", retain=True))
        (packet,) = peer.publishes()
        assert packet.retain and packet.properties.subscription_ids == [300]

    def test_retained_messages_with_all_they_say(self) -> None:
        world = StoredWorld()
        found = {
            prop.USER_PROPERTY: [("a", "1"), ("a", "2")],
            prop.RESPONSE_TOPIC: "back",
            prop.MESSAGE_EXPIRY_INTERVAL: 100,
        }
        world.client("p").send(publish("r", b"x", qos=1, retain=True, properties=found))
        world.commit()
        world.restart(downtime_s=40)
        peer = world.client("s")
        peer.subscribe("r", qos=1)
        (packet,) = peer.publishes()
        assert packet.properties.user == [("a", "1"), ("a", "2")]
        assert packet.properties.number(prop.MESSAGE_EXPIRY_INTERVAL) == 60
        world.restart(downtime_s=70)
        peer = world.client("s")
        peer.subscribe("r", qos=1)
        assert peer.publishes() == []

    def test_session_expiry_counts_while_the_broker_is_down(self) -> None:
        world = StoredWorld()
        kept(world, "away", "a").drop()
        kept(world, "here", "a")
        world.commit()
        world.restart(downtime_s=EXPIRY - 1)
        assert len(world.broker.sessions) == 2
        world.wait(2)
        assert [session.client_id for session in world.broker.sessions] == ["here"]
        world.wait(SIGN_OF_LIFE_S)
        assert len(world.broker.sessions) == 0
        world.commit()
        world.restart()
        assert len(world.broker.sessions) == 0

    @pytest.mark.parametrize("delay", [0, 30])
    def test_wills_that_came_due_meanwhile(self, delay: int) -> None:
        world = StoredWorld()
        found = Properties({prop.WILL_DELAY_INTERVAL: delay}) if delay else Properties()
        will = Will("will", b"gone", 1, True, found, b"\x05\x18" + delay.to_bytes(4, "big"))
        kept(world, "s", "will")
        kept(world, "w", will=will)
        world.commit()
        world.restart(downtime_s=SIGN_OF_LIFE_S + 20)
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        if delay:
            assert subscriber.payloads() == []
            world.wait(11)
        assert subscriber.payloads() == [b"gone"]
        world.commit()
        world.restart()
        assert len(world.broker.retained) == 1
        assert world.client("s", expiry=EXPIRY, clean=False).payloads() in ([], [b"gone"])

    def test_a_client_that_comes_back_has_no_will_pending(self) -> None:
        world = StoredWorld()
        section = b"\x05\x18\x00\x00\x00\x1e"
        will = Will("will", b"gone", 0, True, Properties({prop.WILL_DELAY_INTERVAL: 30}), section)
        kept(world, "w", will=will)
        world.restart()
        world.client("w", expiry=EXPIRY, clean=False).send(disconnect())
        world.commit()
        world.wait(60)
        assert len(world.broker.retained) == 0

    def test_a_clean_start_leaves_nothing(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a").drop()
        world.client("p").send(publish("a", b"x", qos=1))
        world.commit()
        kept(world, "s", clean=True).drop()
        world.fold()
        world.restart()
        peer = world.peer()
        peer.send(connect("s", expiry=EXPIRY, clean=False))
        (answer,) = peer.take()
        assert isinstance(answer, Connack) and answer.session_present
        tables = world.store.tables
        assert not tables.messages and not tables.deliveries and not tables.subscriptions

    def test_an_orderly_stop(self) -> None:
        world = StoredWorld()
        subscriber = kept(world, "s", "a")
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        subscriber.take()
        world.commit()
        world.broker.stop(world.now)
        world.settle()
        assert any(isinstance(packet, Disconnect) for packet in subscriber.take())
        world.commit()
        world.restart()
        assert world.client("s", expiry=EXPIRY, clean=False).payloads() == [b"x"]


class TestQueues:
    def test_a_long_queue_stays_in_the_store(self) -> None:
        world = StoredWorld()
        kept(world, "s", "a").drop()
        publisher = world.client("p", V311)
        for number in range(3000):
            data = publish("a", b"%d" % number, qos=1, packet_id=number + 1, version=V311)
            publisher.send(data)
        world.fold()
        session = world.broker.sessions.get("s")
        assert session is not None and session.outbound.queue is not None
        assert session.outbound.queued == 3000 and session.outbound.queue.in_memory <= 1000
        assert world.broker.backlog.queued_messages == 3000
        assert world.broker.backlog.memory_bytes == session.outbound.queue.memory_bytes
        publisher.send(publish("a", b"last", qos=1, packet_id=4000, version=V311))
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        got: list[bytes] = []
        for _ in range(500):
            packets = subscriber.publishes()
            if not packets:
                break
            for packet in packets:
                got += packet.payloads()
                subscriber.send(b"".join(encode_ack(PUBACK, i) for i in packet.packet_ids()))
            world.page()
        assert got == [b"%d" % number for number in range(3000)] + [b"last"]
        budget = world.broker.backlog
        assert (budget.queued_messages, budget.queued_bytes, budget.memory_bytes) == (0, 0, 0)
        world.fold()
        assert not world.store.tables.messages

    def test_a_message_to_many_is_stored_once(self) -> None:
        world = StoredWorld()
        for number in range(50):
            kept(world, f"s{number}", "a").drop()
        world.client("p").send(publish("a", b"x", qos=1))
        world.fold()
        tables = world.store.tables
        assert len(tables.messages) == 1
        assert sum(map(len, tables.deliveries.values())) == 50

    def test_memory_is_given_back_when_all_queues_are_many(self) -> None:
        world = StoredWorld(queue_memory_bytes_max=1 << 20)
        for number in range(20):
            kept(world, f"s{number}", "a").drop()
        publisher = world.client("p", V311)
        for number in range(100):
            data = publish("a", bytes(1000), qos=1, packet_id=number + 1, version=V311)
            publisher.send(data)
        assert world.broker.backlog.memory_bytes > 1 << 20
        world.fold()
        assert world.broker.backlog.memory_bytes < 1 << 20
        assert world.broker.backlog.queued_messages == 2000

    def test_a_full_queue_in_the_store_drops_its_oldest(self) -> None:
        world = StoredWorld(queue_messages_max=5)
        kept(world, "s", "a").drop()
        publisher = world.client("p")
        for number in range(5):
            publisher.send(publish("a", b"%d" % number, qos=1, packet_id=number + 1))
        world.commit()
        world.restart()
        publisher = world.client("p")
        publisher.send(publish("a", b"5", qos=1), publish("a", b"6", qos=1, packet_id=2))
        world.page()
        publisher.send(publish("a", b"7", qos=1, packet_id=3))
        world.fold()
        subscriber = world.client("s", expiry=EXPIRY, clean=False)
        world.page()
        assert subscriber.payloads()[-5:] == [b"3", b"4", b"5", b"6", b"7"]
        assert world.broker.backlog.dropped["queue_full"] == 3

    def test_publishers_are_held_back_while_the_store_stands_still(self) -> None:
        world = StoredWorld(journal_bytes_max=1 << 16)
        kept(world, "s", "a").drop()
        publisher = world.client("p", V311)
        for packet_id in range(1, 100):
            data = publish("a", bytes(1000), qos=1, packet_id=packet_id, version=V311)
            publisher.send(data)
            world.pack()
        was_paused = publisher.is_paused
        world.store.commit()
        world.settle()
        assert was_paused and not publisher.is_paused


class TestShares:
    FILTER = "$share/g/a"

    def test_what_waits_for_the_group_survives(self) -> None:
        world = StoredWorld()
        kept(world, "m", self.FILTER).drop()
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        assert kinds(publisher) == []
        world.commit()
        assert kinds(publisher) == [(PUBACK, [1])]
        world.restart()
        member = world.client("m", expiry=EXPIRY, clean=False)
        world.page()
        assert member.payloads() == [b"x"]
        world.commit()
        world.restart()
        member = world.client("m", expiry=EXPIRY, clean=False)
        world.page()
        (packet,) = member.publishes()
        member.send(encode_ack(PUBACK, packet.packet_id))
        world.fold()
        assert not world.store.tables.messages

    def test_a_long_queue_of_a_group_stays_in_the_store(self) -> None:
        world = StoredWorld()
        kept(world, "m", self.FILTER).drop()
        publisher = world.client("p", V311)
        for number in range(1, 2501):
            data = publish("a", b"%d" % number, qos=1, packet_id=number, version=V311)
            publisher.send(data)
        world.fold()
        size = world.broker.subscriptions.groups[self.FILTER].waiting.head[0][0].envelope.size
        assert world.broker.backlog.memory_bytes <= 1000 * (size + 4)
        member = world.client("m", expiry=EXPIRY, clean=False)
        got: list[bytes] = []
        for _ in range(100):
            world.page()
            for packet_id, payload, _ in each(member):
                got.append(payload)
                member.send(encode_ack(PUBACK, packet_id))
        assert got == [b"%d" % number for number in range(1, 2501)]
        world.fold()
        assert not world.store.tables.messages
        budget = world.broker.backlog
        assert (budget.queued_messages, budget.queued_bytes, budget.memory_bytes) == (0, 0, 0)

    def test_what_moves_is_on_disk_before_it_is_answered_for(self) -> None:
        world = StoredWorld()
        one, two = kept(world, "one", self.FILTER), kept(world, "two")
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        two.send(subscribe(V5, self.FILTER, qos=1))
        world.journal.flush(world.now)
        one.drop()
        assert two.payloads() == [b"x"]
        assert kinds(publisher) == []
        world.commit()
        assert kinds(publisher) == [(PUBACK, [1])]
        world.restart()
        two = world.client("two", expiry=EXPIRY, clean=False)
        world.page()
        assert two.payloads() == [b"x"]
