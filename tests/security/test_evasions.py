"""Ways around rules that worked in other brokers: by filters, shares, retained and queued messages,
aliases, wills, unfinished QoS 2, and rights that were taken away."""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Ack, Suback, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.topics.names import matches
from tests.core.peers import V5, V311, Peer, publish
from tests.security.gate import Gate, rule_set

LEVELS: Final = ("a", "s", "", "$s", "ann", "%u")
TOPICS: Final = tuple(
    "/".join(levels)
    for count in (1, 2, 3)
    for levels in itertools.product(LEVELS[:5], repeat=count)
    if any(levels)
)
FILTERS: Final = tuple(
    "/".join((*head, tail))
    for count in (0, 1, 2)
    for head in itertools.product((*LEVELS[:5], "+"), repeat=count)
    for tail in (*LEVELS[:5], "+", "#")
    if any(head) or tail
)
Rows = list[tuple[str, str, str]]


def any_filter(chance: random.Random) -> str:
    levels = [
        chance.choice(("a", "s", "$s", "ann", "%u", "+")) for _ in range(chance.randint(1, 3))
    ]
    return "/".join([*levels, "#"] if chance.random() < 0.4 else levels)


def any_rules(chance: random.Random) -> Rows:
    """A few denials, exceptions from them, and something wide behind."""
    found: Rows = [("deny", "subscribe", any_filter(chance)) for _ in range(chance.randint(1, 3))]
    found += [("allow", "subscribe", any_filter(chance)) for _ in range(chance.randint(0, 2))]
    chance.shuffle(found)
    found.append(("allow", "subscribe", chance.choice(("#", "+/#", "s/#", "a/+/#", "+/+"))))
    found.append(("allow", "subscribe", any_filter(chance)))
    return [*found, ("allow", "publish", "#"), ("allow", "publish", "$s/#")]


def is_allowed(rows: Rows, topic: str) -> bool:
    """Decide by the list itself: the first row that matches the topic."""
    for permit, action, text in rows:
        if action != "publish" and matches(text.replace("%u", "ann"), topic):
            return permit == "allow"
    return False


def heard(peer: Peer) -> set[str]:
    """The topics of what came; the peer acknowledges it."""
    found = set()
    for packet in peer.publishes():
        found.add(packet.topic)
        for packet_id in packet.packet_ids():
            peer.send(b"\x40\x02" + packet_id.to_bytes(2, "big"))
    return found


def publish_all(publisher: Peer, *, retain: bool) -> None:
    for number, topic in enumerate(TOPICS, 1):
        publisher.send(publish(topic, b"x", qos=1, packet_id=number, retain=retain))
    publisher.take()


def taken(peer: Peer, prefix: str) -> list[str]:
    """Ask for every filter; the ones that the broker let it have."""
    found = []
    for text in FILTERS:
        peer.subscribe(prefix + text, qos=1)
        (answer,) = [one for one in peer.received if isinstance(one, Suback)]
        peer.received.remove(answer)
        found += [text] * (answer.reasons[0] < 0x80)
    return found


@pytest.mark.parametrize("way", ["live", "retained", "queued", "$share/g/"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_filter_it_takes_nothing_comes_that_is_denied(seed: int, way: str) -> None:
    """A filter is judged once, before any message: so of each message the topic is judged here."""
    rows = any_rules(random.Random(seed))
    gate = Gate(rules=rows)
    allowed = {topic for topic in TOPICS if is_allowed(rows, topic)}
    publisher = gate.enter("p", "bob")
    if way == "retained":
        publish_all(publisher, retain=True)
    peer = gate.enter("c", "ann", clean=False, expiry=1_000)
    prefix = way if way.startswith("$") else ""
    filters = taken(peer, prefix)
    found = heard(peer)
    assert not found or way == "retained"
    if way == "queued":
        peer.drop()
    if way != "retained":
        publish_all(publisher, retain=False)
    if way == "queued":
        peer = gate.come("c", "ann", clean=False, expiry=1_000)
    for _ in range(20):  # as the window opens
        found |= heard(peer)
    assert found <= allowed
    exact = {text for text in filters if not set(text) & {"+", "#"}}
    assert exact == allowed & set(FILTERS) and exact <= found
    assert gate.world.broker.backlog.dropped == {}


def lost_right(gate: Gate, *rows: tuple[str, str, str]) -> None:
    gate.change(rules=rule_set(rows))
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()


KEEP: Final = ("allow", "all", "keep/#")
ALL: Final = ("allow", "all", "#")


def test_a_right_to_publish_that_is_gone_is_gone_for_aliases_and_for_what_is_remembered() -> None:
    gate = Gate(rules=[ALL])
    peer, spy = gate.enter("c", "ann"), gate.enter("s", "bob")
    spy.subscribe("#")
    spy.take()
    alias = {prop.TOPIC_ALIAS: 3}
    peer.send(publish("t", b"1", properties=alias), publish("t", b"2"))
    lost_right(gate, KEEP, ("allow", "subscribe", "#"))
    for qos in (0, 1, 2):
        peer.send(publish("", b"3", qos=qos, properties=alias), publish("t", b"4", qos=qos))
    peer.send(publish("t", b"5", retain=True), publish("t", b"", retain=True))
    assert spy.payloads() == [b"1", b"2"] and not len(gate.world.broker.retained)
    refused = [one.reason for one in peer.take() if isinstance(one, Ack)]
    assert refused == [reasons.NOT_AUTHORIZED] * 4


@pytest.mark.parametrize("version", [V311, V5])
def test_unfinished_qos_2_is_no_right_to_publish(version: int) -> None:
    """What was taken was delivered then. The same id again is judged again."""
    gate = Gate(rules=[ALL])
    peer, spy = gate.enter("c", "ann", version=version, clean=False), gate.enter("s", "bob")
    spy.subscribe("#", qos=0)
    spy.take()
    first = publish("t", b"before", version=version, qos=2, packet_id=5)
    peer.send(first)
    assert spy.payloads() == [b"before"]
    lost_right(gate, KEEP, ("allow", "subscribe", "#"))
    again = publish("t", b"after", version=version, qos=2, packet_id=5)
    for packet in (again, b"\x62\x02\x00\x05", again, b"\x62\x02\x00\x05"):
        peer.send(packet)
    peer.send(b"\xe0\x00")
    back = gate.come("c", "ann", version=version, clean=False)
    back.send(again, b"\x62\x02\x00\x05")
    assert not spy.payloads()


def test_retained_messages_are_sent_to_who_may_read_them_now() -> None:
    gate = Gate(rules=[ALL])
    gate.enter("p", "bob").send(publish("t", b"kept", retain=True))
    peer = gate.enter("c", "ann")
    peer.subscribe("t", qos=1)
    assert peer.payloads() == [b"kept"]
    lost_right(gate, KEEP)
    again = gate.enter("c", "ann")
    again.subscribe("t", "#", "+", "$share/g/t", qos=1)
    (answer,) = again.take()
    assert isinstance(answer, Suback) and set(answer.reasons) == {reasons.NOT_AUTHORIZED}


def test_a_will_is_no_right_to_publish() -> None:
    gate = Gate(rules=[("allow", "all", "%u/#"), ("allow", "subscribe", "#")])
    spy = gate.enter("s", "bob")
    spy.subscribe("#")
    for topic in ("bob/x", "ann", "other", "$SYS/x", "ann/../bob/x"):
        refused = gate.come("c", "ann", will=Will(topic, b"x", 1, True))
        assert (refused.is_closed) is not topic.startswith("ann"), topic
        refused.drop()
    delayed = Will("ann/x", b"late", properties=Properties({prop.WILL_DELAY_INTERVAL: 50}))
    gate.enter("c", "ann", clean=False, expiry=100, will=delayed).drop()
    spy.take()
    lost_right(gate, ("allow", "subscribe", "#"))
    gate.world.wait(200)
    assert not spy.publishes()


def test_a_share_of_others_is_lost_with_the_right() -> None:
    gate = Gate(rules=[ALL])
    member, other = gate.enter("c", "ann"), gate.enter("d", "bob")
    for peer in (member, other):
        peer.subscribe("$share/g/t", qos=1)
        peer.take()
    bob = {"permit": "allow", "action": "all", "topic": "#", "users": ["bob"]}
    gate.change(rules=rule_set([bob]))
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    publisher = gate.enter("p", "bob")
    for number in range(1, 9):
        publisher.send(publish("t", b"%d" % number, qos=1, packet_id=number))
    assert len(other.publishes()) == 8 and not member.publishes()
