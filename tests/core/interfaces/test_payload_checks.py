"""Payloads that are not what their topic promises: each is refused alone, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBREC
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Ack, Connect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.topics.names import matches
from tests.core.peers import V5, V311, Peer, World, connect, publish


class Even:
    """Rejects what is no even number."""

    def find(self, topic: str) -> Even | None:
        return self if matches("t/#", topic) else None

    def problem(self, payload: bytes) -> str:
        return "" if int(payload) % 2 == 0 else f"{int(payload)} is odd"


def checked() -> World:
    return World(checks=Even())


def answers(peer: Peer) -> list[tuple[int, list[int], int, Any]]:
    return [
        (p.packet_type, p.packet_ids, p.reason, p.properties.text(prop.REASON_STRING))
        for p in peer.take()
        if isinstance(p, Ack)
    ]


def flat(peer: Peer) -> list[tuple[int, int, Any]]:
    return [(i, reason, why) for _, ids, reason, why in answers(peer) for i in ids]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_of_a_run_only_what_is_wrong_is_refused(qos: int, retain: bool) -> None:
    world = checked()
    subscriber = world.client("s")
    subscriber.subscribe("t/#")
    publisher = world.client("p")
    numbers = [2, 4, 5, 7, 8, 9, 10]
    publisher.send(
        b"".join(publish("t/a", b"%02d" % n, qos=qos, packet_id=n, retain=retain) for n in numbers)
    )
    assert subscriber.payloads() == [b"02", b"04", b"08", b"10"]
    if qos:
        assert flat(publisher) == [
            (n, 0x99, f"{n} is odd") if n % 2 else (n, 0, None) for n in numbers
        ]
    assert world.broker.backlog.dropped == {"payload_format_invalid": 3}
    assert [m.payload for m in world.broker.retained.values()] == ([b"10"] if retain else [])


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("topic", ["t/a", "free"])
def test_of_a_run_only_what_is_no_text_is_refused(topic: str, qos: int, retain: bool) -> None:
    world = checked()
    subscriber = world.client("s")
    subscriber.subscribe("#")
    publisher = world.client("p")
    payloads = [b"\xff2", b"02", b"4\xff", b"\xff6", b"08"]
    text = {prop.PAYLOAD_FORMAT_INDICATOR: 1}
    publisher.send(
        b"".join(
            publish(topic, payload, qos=qos, packet_id=n, retain=retain, properties=text)
            for n, payload in enumerate(payloads, 1)
        )
    )
    assert subscriber.payloads() == [b"02", b"08"]
    if qos:
        codes = [(packet_id, code) for packet_id, code, _ in flat(publisher)]
        assert codes == [(1, 0x99), (2, 0), (3, 0x99), (4, 0x99), (5, 0)]
    assert world.broker.backlog.dropped == {"payload_format_invalid": 3}
    assert [m.payload for m in world.broker.retained.values()] == ([b"08"] if retain else [])


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_has_no_word_for_it_and_the_message_is_dropped(qos: int) -> None:
    world = checked()
    subscriber = world.client("s")
    subscriber.subscribe("t/#")
    publisher = world.client("p", V311)
    publisher.send(publish("t/a", b"3", qos=qos, packet_id=3, version=V311))
    assert answers(publisher) == [(PUBACK if qos == 1 else PUBREC, [3], 0, None)]
    assert subscriber.payloads() == []


def test_a_refused_id_is_free_again() -> None:
    world = checked()
    publisher = world.client("p")
    publisher.send(publish("t/a", b"3", qos=2, packet_id=3))
    publisher.send(publish("t/a", b"4", qos=2, packet_id=3))
    assert flat(publisher) == [(3, 0x99, "3 is odd"), (3, 0, None)]


def test_other_topics_are_not_asked_about() -> None:
    world = checked()
    publisher = world.client("p")
    publisher.send(publish("u/a", b"3", qos=1, packet_id=3))
    assert flat(publisher) == [(3, 0x10, None)]


@pytest.mark.parametrize(
    "wish",
    [{prop.REQUEST_PROBLEM_INFORMATION: 0}, {prop.MAXIMUM_PACKET_SIZE: 30}],
    ids=["not wanted", "too large"],
)
def test_the_reason_is_left_out(wish: dict[int, Any]) -> None:
    world = checked()
    peer = world.peer()
    peer.send(encode_from_client(V5, Connect(V5, "p", True, 0, Properties(wish), None)))
    peer.send(publish("t/a", b"3" * 30, qos=1, packet_id=3))
    assert flat(peer) == [(3, 0x99, None)]


@pytest.mark.parametrize("version", [V5, V311])
def test_a_will_is_checked_like_a_message(version: int) -> None:
    world = checked()
    subscriber = world.client("s")
    subscriber.subscribe("#")
    refused = world.peer(version)
    refused.send(connect("p", version, will=Will("t/a", b"3", retain=True)))
    assert refused.is_closed
    if version == V5:
        assert [getattr(packet, "reason", 0) for packet in refused.take()] == [0x99]
    for topic, payload in (("t/a", b"4"), ("other", b"3")):
        world.client("p", version, will=Will(topic, payload)).drop()
    assert subscriber.payloads() == [b"4", b"3"] and not len(world.broker.retained)
    assert world.broker.counters.refusals()["will/payload_format_invalid"] == 1


def test_a_will_from_before_its_schema_becomes_a_dead_letter() -> None:
    world = World(checks=None, dead_letters="schema")
    subscriber = world.client("s")
    subscriber.subscribe("t/#", "$dlq/#")
    publisher = world.client("p", will=Will("t/a", b"3"))
    world.broker.state.router.checks = Even()
    publisher.drop()
    (letter,) = subscriber.publishes()
    assert letter.topic == "$dlq/schema/t/a"
    assert ("dlq-reason", "3 is odd") in letter.properties.user
    assert world.broker.backlog.dropped == {"payload_format_invalid": 1}


class Slow(Even):
    """Says what a check takes."""

    def cost(self, payload: bytes) -> int:
        return 1_000


def test_what_a_check_takes_is_work() -> None:
    spent = []
    for checks in (Even(), Slow()):
        world = World(checks=checks)
        publisher, work = world.client("p"), world.broker.state.work
        before = work.spent
        publisher.send(*[publish("t/a", b"%02d" % n) for n in range(0, 40, 2)])
        spent.append(work.spent - before)
    assert 20_000 <= spent[1] - spent[0] < 21_000
