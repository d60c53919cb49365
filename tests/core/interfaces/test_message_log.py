"""The message log: it gets each message once, and acknowledgements wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBREC
from mqtt_broker.codec.packets import Ack, Disconnect, Publish, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.interfaces.message_log import StreamSubscriptions
from mqtt_broker.topics.names import matches
from sessions.journal.journal import MEMORY, RELAXED
from sessions.journal.participant import CommitParticipant
from sessions.messages.message import Envelope
from tests.core.peers import V5, V311, Peer, publish, subscribe
from tests.core.stored import StoredWorld


class Tape:
    """A log of one filter, which writes its files with a group of the journal."""

    def __init__(self, world: StoredWorld, text: str) -> None:
        self._text = text
        self.rows: list[tuple[str, str, int, bool, bytes]] = []
        self.groups: list[tuple[int, int]] = []  # group, how many rows there were
        self.has_new = False
        self.waiting_bytes = 0
        self.room = 1 << 30
        self.world = world
        world.broker.attach_log(self)

    @property
    def subscriptions(self) -> StreamSubscriptions:
        raise AssertionError("nobody reads it")

    def find(self, topic: str) -> Tape | None:
        return self if matches(self._text, topic) else None

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        return sum(map(len, payloads)) <= self.room

    def append(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        assert now == self.world.now
        self.has_new = True
        for payload in payloads:
            about = envelope.topic, envelope.publisher, envelope.qos, envelope.retain
            self.rows.append((*about, payload))

    def append_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        self.append(envelope, run.payloads(), now)

    def take_number(self, number: int) -> bool:
        has_new, self.has_new = self.has_new, False
        if has_new:
            self.groups.append((number, len(self.rows)))
        return has_new

    @property
    def payloads(self) -> list[bytes]:
        return [row[-1] for row in self.rows]


class Files(CommitParticipant):
    """The journal's side of a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    @property
    def has_new(self) -> bool:
        return self._tape.has_new

    @property
    def waiting_bytes(self) -> int:
        return self._tape.waiting_bytes

    def delay_s(self, now: float) -> float:
        raise AssertionError("no store writes it")

    def assign(self, number: int) -> bool:
        return self._tape.take_number(number)

    def is_durable_alone(self, number: int) -> bool:
        raise AssertionError("no store writes it")

    def write(self, number: int, *, stands_alone: bool = False) -> dict[str, str]:
        raise AssertionError("no store writes it")

    def committed(self, ends: object, *, stands_alone: bool = False) -> None:
        raise AssertionError("no store writes it")


def taped(world: StoredWorld, text: str = "t/#") -> Tape:
    tape = Tape(world, text)
    world.journal.enlist(Files(tape))
    return tape


def dup(packet: bytes) -> bytes:
    return bytes([packet[0] | 8]) + packet[1:]


def acks(peer: Peer) -> list[tuple[int, list[int], int]]:
    return [(p.packet_type, p.packet_ids, p.reason) for p in peer.take() if isinstance(p, Ack)]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_tap_gets_each_message_once_whoever_listens(version: int, qos: int, retain: bool) -> None:
    world = StoredWorld()
    tape = taped(world)
    for name, text in (("one", "t/a"), ("two", "t/+"), ("three", "$share/g/t/a")):
        world.client(name).subscribe(text, qos=qos)
    publisher = world.client("p", version)
    options: dict[str, Any] = {"qos": qos, "retain": retain, "version": version}
    if qos:
        options["packet_id"] = 5
    publisher.send(publish("t/a", b"x", **options), publish("u/a", b"y", **options | {"qos": 0}))
    assert tape.rows == [("t/a", "p", qos, retain, b"x")]


def test_a_burst_is_taken_whole_and_in_order() -> None:
    world = StoredWorld()
    tape = taped(world)
    world.client("s").subscribe("t/a")
    world.client("p").send(b"".join(publish("t/a", b"%d" % n) for n in range(100)))
    assert tape.payloads == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
@pytest.mark.parametrize("listeners", [0, 1])
def test_the_acknowledgement_waits_for_the_group_though_all_have_taken_it(
    qos: int, kind: int, listeners: int
) -> None:
    world = StoredWorld()
    taped(world)
    for _ in range(listeners):
        world.client("s").subscribe("t/a", qos=0)
    publisher = world.client("p")
    publisher.send(publish("t/a", b"x", qos=qos, packet_id=7))
    assert acks(publisher) == []
    world.pack()
    assert acks(publisher) == []
    world.commit()
    assert [(p, i) for p, i, _ in acks(publisher)] == [(kind, [7])]


def test_what_a_tap_took_and_the_id_it_came_under_are_in_one_group() -> None:
    world = StoredWorld()
    tape = taped(world)
    publisher = world.client("p", expiry=100, clean=False)
    world.commit()
    number = world.journal.number
    publisher.send(publish("t/a", b"x", qos=2, packet_id=7))
    world.commit()
    assert tape.groups == [(number + 1, 1)]
    assert world.journal.number == number + 1
    world.restart()
    again = world.client("p", expiry=100, clean=False)
    tape = taped(world)
    again.send(publish("t/a", b"x", qos=2, packet_id=7))
    world.commit()
    assert tape.rows == []
    assert [i for _, i, _ in acks(again)] == [[7]]


def test_qos_0_alone_makes_a_group() -> None:
    world = StoredWorld()
    tape = taped(world)
    world.commit()
    number = world.journal.number
    world.client("p").send(publish("t/a", b"x"))
    was_waiting = world.journal.is_waiting
    world.commit()
    assert tape.groups == [(number + 1, 1)]
    assert (was_waiting, world.journal.is_waiting) == (True, False)
    world.restart()  # on a journal with a group that is empty


@pytest.mark.parametrize("mode", [RELAXED, MEMORY])
def test_only_commit_makes_acknowledgements_wait(mode: int) -> None:
    world = StoredWorld(mode=mode)
    tape = taped(world)
    publisher = world.client("p")
    publisher.send(publish("t/a", b"x", qos=1, packet_id=7))
    assert [i for _, i, _ in acks(publisher)] == [[7]]
    assert tape.payloads == [b"x"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_has_no_room_is_refused_and_goes_nowhere(qos: int) -> None:
    world = StoredWorld()
    tape = taped(world)
    tape.room = 0
    subscriber = world.client("s")
    subscriber.subscribe("t/#", qos=qos)
    publisher = world.client("p")
    publisher.send(publish("t/a", b"x", qos=qos, packet_id=7, retain=True))
    world.commit()
    assert acks(publisher) == [(PUBACK if qos == 1 else PUBREC, [7], 0x97)]
    assert subscriber.publishes() == []
    assert tape.rows == []
    assert len(world.broker.retained) == 0
    tape.room = 10  # and the same id is a new message
    publisher.send(publish("t/a", b"x", qos=qos, packet_id=7))
    world.commit()
    assert tape.payloads == [b"x"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("restarts", [False, True])
def test_mqtt_3_has_no_word_for_it_and_is_not_answered(qos: int, restarts: bool) -> None:
    """It is sent again after a reconnect, and then it is a new message."""
    world = StoredWorld()
    tape = taped(world)
    world.client("s", V311, clean=False).subscribe("t/#", qos=qos)
    tape.room = 0
    publisher = world.client("p", V311, clean=False)
    publisher.send(publish("t/a", b"x", qos=qos, packet_id=7, version=V311))
    world.commit()
    assert acks(publisher) == []
    assert publisher.is_closed
    assert world.broker.backlog.dropped == {}
    if restarts:
        world.restart()
        tape = taped(world)
    tape.room = 10
    subscriber = world.client("s", V311, clean=False)
    publisher = world.client("p", V311, clean=False)
    publisher.send(dup(publish("t/a", b"x", qos=qos, packet_id=7, version=V311)))
    world.commit()
    assert tape.payloads == [b"x"]
    assert subscriber.payloads() == [b"x"]
    assert [i for _, i, _ in acks(publisher)] == [[7]]
    publisher.send(dup(publish("t/a", b"x", qos=qos, packet_id=7, version=V311)))
    world.commit()
    assert tape.payloads == [b"x"] * (3 - qos)  # at QoS 2 the exchange is open now


def test_what_a_full_log_refuses_is_what_is_new_in_a_burst() -> None:
    """A repeat of what was taken is answered as before, each in its place. [MQTT-4.6.0-3]"""
    world = StoredWorld()
    tape = taped(world)
    publisher = world.client("p", expiry=100, clean=False)
    publisher.send(publish("t/a", b"x", qos=2, packet_id=8))
    world.commit()
    publisher.drop()
    tape.room = 0
    publisher = world.client("p", expiry=100, clean=False)
    burst = [dup(publish("t/a", b"x", qos=2, packet_id=n)) for n in (7, 8, 9)]
    publisher.send(*burst)
    world.commit()
    assert acks(publisher) == [(PUBREC, [7], 0x97), (PUBREC, [8], 0), (PUBREC, [9], 0x97)]
    tape.room = 10
    publisher.send(burst[0], burst[2])
    world.commit()
    assert tape.payloads == [b"x"] * 3


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refusal_costs_the_publisher_neither_its_alias_nor_its_window(qos: int) -> None:
    world = StoredWorld(receive_maximum=2)
    tape = taped(world)
    tape.room = 0
    publisher = world.client("p")
    alias = {prop.TOPIC_ALIAS: 3}
    publisher.send(publish("t/a", b"x", qos=qos, packet_id=7, properties=alias))
    for n in range(8, 14):
        publisher.send(publish("", b"x", qos=qos, packet_id=n, properties=alias))
    world.commit()
    assert [reason for _, _, reason in acks(publisher)] == [0x97] * 7
    tape.room = 10
    publisher.send(publish("", b"y", qos=qos, packet_id=7, properties=alias))
    world.commit()
    assert [row[0] for row in tape.rows] == ["t/a"]


def test_qos_0_is_delivered_whether_there_is_room_or_not() -> None:
    world = StoredWorld()
    taped(world).room = 0
    subscriber = world.client("s")
    subscriber.subscribe("t/#")
    world.client("p").send(publish("t/a", b"x"))
    assert subscriber.payloads() == [b"x"]


def test_wills_are_tapped() -> None:
    world = StoredWorld()
    tape = taped(world)
    world.client("p", will=Will("t/gone", b"bye", 1, False, Properties())).drop()
    assert tape.payloads == [b"bye"]


@pytest.mark.parametrize("topic", ["$stream/a", "$dlq/a", "$share/a", "$stream"])
def test_the_broker_s_own_topics_are_nobody_else_s(topic: str) -> None:
    world = StoredWorld()
    publisher = world.client("p")
    publisher.send(publish(topic, b"x", qos=1, packet_id=7))
    assert acks(publisher) == [(PUBACK, [7], 0x87)]


class TestBackPressure:
    def test_a_full_log_holds_publishers_back(self) -> None:
        world = StoredWorld(stream_bytes_max=1 << 16)
        tape = taped(world)
        publishers = [world.client("zero"), world.client("one")]
        tape.waiting_bytes = 1 << 17
        publishers[0].send(publish("t/a", b"x"))
        publishers[1].send(publish("t/a", b"x", qos=1, packet_id=1))
        assert [peer.is_paused for peer in publishers] == [True, True]
        tape.waiting_bytes = 0
        world.commit()
        assert [peer.is_paused for peer in publishers] == [False, False]

    def test_with_a_store_that_fails_qos_0_goes_on(self) -> None:
        world = StoredWorld(stream_bytes_max=1 << 16)
        tape = taped(world)
        zero, one = world.client("zero"), world.client("one")
        tape.waiting_bytes = 1 << 17
        zero.send(publish("t/a", b"x"))
        one.send(publish("t/a", b"x", qos=1, packet_id=1))
        world.broker.on_store_state("disk full")
        assert (zero.is_paused, one.is_paused) == (False, True)
        zero.send(publish("t/a", b"x"))
        goes_on = not zero.is_paused
        world.broker.on_store_state("")
        zero.send(publish("t/a", b"x"))
        assert (goes_on, zero.is_paused) == (True, True)
        tape.waiting_bytes = 0
        world.commit()
        assert (zero.is_paused, one.is_paused) == (False, False)

    def test_others_are_not_concerned(self) -> None:
        world = StoredWorld(stream_bytes_max=1 << 16)
        taped(world).waiting_bytes = 1 << 17
        publisher = world.client("p")
        publisher.send(publish("u/a", b"x"))
        assert not publisher.is_paused


def test_a_subscription_does_not_take_the_tap_away() -> None:
    world = StoredWorld()
    tape = taped(world)
    publisher = world.client("p")
    for n in range(3):
        publisher.send(publish("t/a", b"%d" % n))
        world.client(f"s{n}").send(subscribe(V5, "t/#"))
    assert tape.payloads == [b"0", b"1", b"2"]
    assert not any(isinstance(p, Disconnect) for p in publisher.take())
