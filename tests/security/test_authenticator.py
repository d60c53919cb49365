"""The authenticator in front of a whole broker core: no answer tells why not."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.packets import Connack, Disconnect, Publish, Suback, Will
from mqtt_broker.core.interfaces.access import PeerCertificate
from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.security.authentication.accounts import Account
from mqtt_broker.security.authentication.certificates import CertificateMethod
from mqtt_broker.security.authentication.chain import AnonymousMethod, ChainEntry, PasswordMethod
from mqtt_broker.security.files.errors import Unavailable
from mqtt_broker.security.protection.bans import Bans, Flapping, make_ban
from mqtt_broker.security.rules.client_limits import ClientLimitRule, ClientLimitRules
from tests.core.peers import Peer, disconnect, publish
from tests.security.gate import (
    HASHES,
    PASSWORDS,
    Gate,
    Known,
    connect,
    paused,
    reason_of,
    rule_set,
    wanted,
)

BAD = reasons.BAD_USER_NAME_OR_PASSWORD


def test_password() -> None:
    gate = Gate()
    peer = gate.peer()
    peer.send(connect("c", "ann"))
    assert paused(peer) and not peer.received  # the loop went on, the client waits
    gate.workers.do(gate.world)
    assert reason_of(peer) == 0 and not paused(peer)
    assert gate.world.broker.connections["c"].username == "ann"


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize(
    ("username", "password"),
    [("ann", b"wrong"), ("nobody", b"wrong"), ("ann", b""), ("nobody", b""), ("", b"x")],
)
def test_wrong_credentials_answer_alike_at_the_same_cost(
    version: int, username: str, password: bytes
) -> None:
    """The bytes, the look-ups and the hashes are the same for users who are there and not."""
    other = Known()
    gate = Gate(room=1)
    gate.use(
        ChainEntry(PasswordMethod("file", gate.known)), ChainEntry(PasswordMethod("sql", other))
    )  # fmt: skip
    peer = gate.come("c", username, password=password, version=version)
    assert reason_of(peer) == (BAD if version == V5 else 4)
    assert gate.passwords.hashes == 1
    assert gate.known.asked == other.asked == [username]
    assert peer.is_closed


def test_the_first_that_knows_a_user_decides() -> None:
    second = Known(Account("ann", HASHES["bob"]), Account("cyd", HASHES["bob"]))
    gate = Gate()
    gate.use(
        ChainEntry(PasswordMethod("file", gate.known)), ChainEntry(PasswordMethod("sql", second))
    )  # fmt: skip
    assert reason_of(gate.come("c", "ann", password=PASSWORDS["bob"])) == BAD
    assert reason_of(gate.come("c", "cyd", password=PASSWORDS["bob"])) == 0


def test_nobody_comes_in_without_credentials() -> None:
    gate = Gate()
    assert reason_of(gate.come("c")) == reasons.NOT_AUTHORIZED
    assert reason_of(gate.come("c", "ann", password=b"")) == BAD
    gate = Gate(ChainEntry(AnonymousMethod()))
    assert reason_of(gate.come("c")) == 0
    assert gate.world.broker.connections["c"].username is None
    assert reason_of(gate.come("d", "ann")) == BAD  # who says a name has to prove it


def test_ways_of_a_listener() -> None:
    gate = Gate(ChainEntry(AnonymousMethod(), frozenset({"inside"})))
    peer = gate.peer()
    peer.listener = "inside"  # type: ignore[attr-defined]
    peer.send(connect("c"))
    assert reason_of(peer) == 0
    assert reason_of(gate.come("d")) == reasons.NOT_AUTHORIZED


def test_an_unknown_method() -> None:
    assert reason_of(Gate().come("c", method="GS2")) == reasons.BAD_AUTHENTICATION_METHOD


def test_no_room_for_those_who_wait() -> None:
    gate = Gate(room=1)
    one, two = gate.peer(), gate.peer()
    one.send(connect("one", "ann"))
    two.send(connect("two", "ann"))
    assert reason_of(two) == reasons.SERVER_BUSY
    gate.workers.do_all(gate.world)
    assert reason_of(one) == 0


def test_a_database_that_is_away() -> None:
    gate = Gate()
    gate.known.error = Unavailable("the accounts database: OperationalError")
    assert reason_of(gate.come("c", "ann")) == reasons.SERVER_UNAVAILABLE


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_verdicts_in_any_order(order: tuple[int, ...]) -> None:
    gate = Gate()
    peers = [gate.peer() for _ in range(3)]
    peers[0].send(connect("same", "ann"))
    peers[1].send(connect("same", "bob"))  # another user, under the same client id
    peers[2].send(connect("other", "ann", password=b"wrong"))
    waiting = list(gate.workers.waiting)
    gate.workers.waiting.clear()
    for place in order:
        request, work = waiting[place]
        request.reply(work(), gate.world.now)
        request.reply(work(), gate.world.now)  # a second time: ignored
        gate.world.settle()
    # Who was first has the client id; the other user cannot take it over.
    first, second = (0, 1) if order.index(0) < order.index(1) else (1, 0)
    assert reason_of(peers[first]) == 0 and not peers[first].is_closed
    assert reason_of(peers[second]) == reasons.CLIENT_IDENTIFIER_NOT_VALID
    assert reason_of(peers[2]) == BAD


def test_who_went_away_is_not_hashed_for() -> None:
    gate = Gate()
    peer = gate.peer()
    peer.send(connect("c", "ann"))
    request, _ = gate.workers.waiting[0]
    assert wanted(request)
    peer.drop()
    assert not wanted(request)
    gate.workers.do_all(gate.world)
    assert not gate.world.broker.connections


def test_a_session_belongs_to_its_user() -> None:
    gate = Gate(ChainEntry(PasswordMethod("file", Gate().known)), ChainEntry(AnonymousMethod()))
    gate.enter("c", "ann", clean=False, expiry=100).drop()
    for intruder in ("bob", None):
        for clean in (False, True):
            peer = gate.come("c", intruder, clean=clean)
            assert reason_of(peer) == reasons.CLIENT_IDENTIFIER_NOT_VALID
    back = gate.come("c", "ann", clean=False)
    assert isinstance(back.received[0], Connack) and back.received[0].session_present


def test_right_passwords_are_remembered_for_a_while() -> None:
    gate = Gate(remember_s=60)
    for _ in range(3):
        assert reason_of(gate.come("c", "ann")) == 0
    assert gate.passwords.hashes == 1
    for _ in range(2):
        assert reason_of(gate.come("c", "ann", password=b"wrong")) == BAD
    assert gate.passwords.hashes == 3
    gate.world.wait(61)
    gate.come("c", "ann")
    assert gate.passwords.hashes == 4
    gate.known.by_name["ann"] = Account("ann", HASHES["bob"])  # a new password counts at once
    assert reason_of(gate.come("c", "ann")) == BAD


def test_certificates() -> None:
    gate = Gate(
        ChainEntry(CertificateMethod("cn", roles=frozenset({"device"}))),
        ChainEntry(AnonymousMethod()),
    )
    gate.enter("c", certificate=PeerCertificate("pump-7"))
    assert gate.world.broker.connections["c"].username == "pump-7"
    nameless = gate.come("d", certificate=PeerCertificate(""))
    assert reason_of(nameless) == reasons.NOT_AUTHORIZED  # not anonymous either
    way = CertificateMethod("dns")
    for names, username in (
        (("DNS:a", "IP:::1"), "a"), (("DNS:a", "DNS:b"), None), (("email:a",), None)
    ):  # fmt: skip
        gate = Gate(ChainEntry(way))
        peer = gate.come("c", certificate=PeerCertificate("x", names))
        connection = gate.world.broker.connections.get("c")
        assert (connection.username if connection else None) == username
        assert peer.received


# Topics.

RULES: list[tuple[str, str, str]] = [
    ("deny", "all", "fleet/+/secret/#"),
    ("allow", "all", "fleet/%c/#"),
    ("allow", "subscribe", "news/+"),
]


def puback(peer: Peer, topic: str, **fields: object) -> int:
    peer.take()
    peer.send(publish(topic, b"x", qos=1, **fields))  # type: ignore[arg-type]
    reason: int = peer.take()[0].reason
    return reason


def suback(peer: Peer, text: str) -> int:
    peer.take()
    peer.subscribe(text, qos=1)
    answer = peer.take()[0]
    assert isinstance(answer, Suback)
    return answer.reasons[0]


def test_publish_and_subscribe() -> None:
    gate = Gate(rules=RULES)
    peer = gate.enter("c", "ann")
    nobody = reasons.NO_MATCHING_SUBSCRIBERS
    denied = reasons.NOT_AUTHORIZED
    for _ in range(2):  # the second time from what is remembered
        assert puback(peer, "fleet/c/a") == nobody
        assert puback(peer, "fleet/d/a") == denied
        assert puback(peer, "news/x") == denied
        assert puback(peer, "fleet/c/secret/x") == denied
    assert puback(peer, "fleet/c/a", retain=True) == nobody
    assert puback(peer, "fleet/d/a", retain=True) == denied
    assert len(gate.world.broker.retained) == 1
    for text, code in (
        ("fleet/c/a", 1), ("fleet/c/+", denied), ("fleet/c/a/#", 1), ("fleet/+/a", denied),
        ("#", denied), ("+/c/a", denied), ("news/+", 1), ("news/#", denied),
        ("$share/g/news/+", 1), ("$share/g/#", denied), ("$share/news/+/fleet/d/a", denied),
        ("$SYS/#", denied), ("fleet/c/secret", denied),
    ):  # fmt: skip
        assert suback(peer, text) == code, text
    peer.send(publish("fleet/d/a", b"x", qos=2, packet_id=9))
    assert peer.take()[0].reason == denied
    dropped = gate.world.broker.backlog.dropped
    assert dropped["not_authorized"] >= 5


def test_aliases_do_not_go_around_rules() -> None:
    gate = Gate(rules=RULES)
    peer = gate.enter("c", "ann")
    spy = gate.enter("d", "bob")
    assert suback(spy, "fleet/d/#") == reasons.NOT_AUTHORIZED  # a part of it is denied
    assert suback(spy, "fleet/d/a") == 1
    peer.send(publish("fleet/c/a", b"1", properties={0x23: 1}))
    peer.send(publish("fleet/d/a", b"2", properties={0x23: 2}))
    peer.send(publish("", b"3", properties={0x23: 2}))
    assert not spy.publishes()


@pytest.mark.parametrize("version", [V5, V311])
def test_what_is_denied_on_each_version(version: int) -> None:
    gate = Gate(rules=RULES)
    peer = gate.enter("c", "ann", version=version)
    peer.send(publish("no", b"x", qos=1, version=version))
    answer = peer.take()[0]
    assert answer.reason == (reasons.NOT_AUTHORIZED if version == V5 else 0)
    peer.subscribe("no")
    assert peer.take()[0].reasons == [0x87 if version == V5 else 0x80]
    assert gate.world.broker.backlog.dropped["not_authorized"] == 1  # counted where it is silent
    assert not peer.is_closed


def test_wills() -> None:
    gate = Gate(rules=RULES)
    refused = gate.come("c", "ann", will=Will("fleet/d/gone", b"!"))
    assert reason_of(refused) == reasons.NOT_AUTHORIZED
    reader = gate.enter("d", "bob")
    gate.change(rules=rule_set([("allow", "all", "#")]))
    gate.world.broker.reauthorize(gate.world.now)
    assert suback(reader, "#") == 1
    gate.enter("c", "ann", will=Will("a/gone", b"!")).drop()
    assert reader.payloads() == [b"!"]
    peer = gate.enter("c", "ann", will=Will("a/gone", b"!"))
    gate.change(rules=rule_set([("allow", "subscribe", "#"), ("allow", "publish", "b")]))
    gate.world.broker.reauthorize(gate.world.now)
    peer.drop()
    assert reader.payloads() == []


def test_rules_that_change_reach_those_who_are_connected() -> None:
    gate = Gate(rules=[("allow", "all", "#")])
    keeps, loses = gate.enter("keeps", "ann"), gate.enter("loses", "bob", version=V311)
    away = gate.enter("away", "bob", clean=False, expiry=1000)
    for peer, text in ((keeps, "a/b"), (loses, "a/#"), (away, "a/#"), (away, "a/b")):
        peer.subscribe(text)
    away.drop()
    assert puback(keeps, "x") == reasons.NO_MATCHING_SUBSCRIBERS
    gate.change(rules=rule_set([("allow", "subscribe", "a/b")]))
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    assert not keeps.is_closed and loses.is_closed
    assert puback(keeps, "x") == reasons.NOT_AUTHORIZED
    session = gate.world.broker.sessions.get("away")
    assert session is not None and list(session.subscriptions) == ["a/b"]


def test_an_mqtt_5_client_is_told_that_it_lost_a_subscription() -> None:
    gate = Gate(rules=[("allow", "all", "#")])
    peer = gate.enter("c", "ann", clean=False, expiry=100)
    peer.subscribe("a")
    peer.take()
    gate.change(rules=rule_set([("allow", "all", "b")]))
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    (goodbye,) = peer.take()
    assert isinstance(goodbye, Disconnect) and goodbye.reason == reasons.NOT_AUTHORIZED
    again = gate.enter("c", "ann", clean=False)
    assert suback(again, "a") == reasons.NOT_AUTHORIZED


def test_a_recheck_of_many_gives_others_their_turn() -> None:
    gate = Gate(ChainEntry(AnonymousMethod()), rules=[("allow", "all", "#")])
    peers = [gate.enter(f"c{n}") for n in range(450)]
    for peer in peers:
        peer.subscribe("a")
    gate.change(rules=rule_set([]))
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    assert sum(peer.is_closed for peer in peers) == 200
    gate.world.wait(0.003)
    assert sum(peer.is_closed for peer in peers) == 400
    gate.world.wait(0.1)
    assert all(peer.is_closed for peer in peers)


def test_users_who_are_taken_away_go() -> None:
    gate = Gate()
    ann, bob = gate.enter("a", "ann"), gate.enter("b", "bob")
    del gate.known.by_name["ann"]
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    assert ann.is_closed and not bob.is_closed


def test_roles_and_addresses() -> None:
    rules = [
        {"permit": "allow", "action": "all", "topic": "ops/#", "roles": ["ops"]},
        {"permit": "allow", "action": "all", "topic": "lan/#", "addresses": ["10.0.0.0/8"]},
    ]
    gate = Gate(rules=rules, roles={"ann": frozenset({"ops"})})
    ann = gate.enter("a", "ann", address="[::ffff:10.1.2.3]:99")
    bob = gate.enter("b", "bob")
    assert suback(ann, "ops/#") == suback(ann, "lan/#") == 1
    assert suback(bob, "ops/#") == suback(bob, "lan/#") == reasons.NOT_AUTHORIZED
    gate.change(roles={"bob": frozenset({"ops"})})
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    assert ann.is_closed and suback(bob, "ops/#") == 1


def test_rules_without_ways_in_believe_no_name() -> None:
    rules = [
        {"permit": "allow", "action": "all", "topic": "u/%u/#"},
        {"permit": "allow", "action": "all", "topic": "c/%c/#"},
    ]
    gate = Gate(rules=rules, asks=False)
    peer = gate.enter("c", "ann")
    assert suback(peer, "u/ann/x") == reasons.NOT_AUTHORIZED
    assert suback(peer, "c/c/x") == 1


# Limits.


def test_rates_pause_reading_and_lose_nothing() -> None:
    tiers = ClientLimitRules(ClientLimitRule(ClientLimits(messages_per_s=10)))
    gate = Gate(ChainEntry(AnonymousMethod()), client_limits=tiers)
    reader = gate.enter("r")
    reader.subscribe("t")
    peer = gate.enter("c")
    peer.send(*[publish("t", b"%d" % n) for n in range(15)])
    assert paused(peer)
    assert len(reader.payloads()) == 15  # what was read is taken
    gate.world.wait(0.4)
    assert paused(peer)
    gate.world.wait(0.2)
    assert not paused(peer)
    assert gate.world.broker.counters.throttled == 1
    peer.send(publish("t", b"!"), publish("t", b"!"), publish("t", b"!"))
    assert paused(peer) and reader.payloads() == [b"!"] * 3


def test_bytes_count_too_and_a_keep_alive_does_not_end_who_is_paused() -> None:
    gate = Gate(
        ChainEntry(AnonymousMethod()),
        client_limits=ClientLimitRules(ClientLimitRule(ClientLimits(bytes_per_s=100))),
    )
    peer = gate.enter("c")
    peer.send(publish("t", b"x" * 1_000))
    assert paused(peer)
    gate.world.wait(8.5)
    assert paused(peer)
    gate.world.wait(2)
    assert not paused(peer)


def test_limits_of_a_role_and_of_a_user() -> None:
    tiers = ClientLimitRules(
        ClientLimitRule(ClientLimits(subscriptions_max=1)),
        {"ops": ClientLimitRule(ClientLimits(subscriptions_max=2))},
        {"bob": ClientLimitRule(connections_per_user=2)},
    )
    gate = Gate(client_limits=tiers, roles={"ann": frozenset({"ops"})})
    ann = gate.enter("a", "ann")
    assert [suback(ann, text) for text in "xyz"] == [1, 1, reasons.QUOTA_EXCEEDED]
    one = gate.enter("b1", "bob")
    gate.enter("b2", "bob")
    assert reason_of(gate.come("b3", "bob")) == reasons.QUOTA_EXCEEDED
    gate.enter("b2", "bob")  # in its own place
    one.send(disconnect())
    gate.enter("b3", "bob")
    assert gate.world.broker.clients.users == {"ann": 1, "bob": 2}


def test_bans() -> None:
    bans = Bans()
    gate = Gate(bans=bans)
    ann = gate.enter("a", "ann")
    bans.replace(
        [make_ban("client", "x"), make_ban("user", "ann"), make_ban("address", "10.0.0.0/8")]
    )
    assert reason_of(gate.come("x", "bob")) == reasons.BANNED
    assert reason_of(gate.come("y", "ann")) == reasons.BANNED
    assert reason_of(gate.come("y", "ann", password=b"wrong")) == BAD  # tells no stranger
    assert reason_of(gate.come("y", "bob", address="10.9.9.9:1")) == reasons.BANNED
    assert reason_of(gate.come("y", "bob")) == 0
    assert gate.authenticator.admit("10.1.1.1:5") == "banned"
    assert gate.authenticator.admit("11.1.1.1:5") == ""
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    assert ann.is_closed
    bans.replace([make_ban("user", "ann", until=gate.world.now + 5)])
    assert reason_of(gate.come("a", "ann")) == reasons.BANNED
    gate.world.wait(6)
    assert reason_of(gate.come("a", "ann")) == 0


def test_flapping() -> None:
    gate = Gate(flapping=Flapping(3, 10.0, 60.0))
    for _ in range(5):  # a stranger cannot have a client banned
        gate.come("c", "ann", password=b"wrong")
    for _ in range(2):
        gate.enter("c", "ann", clean=False, expiry=1000).drop()
        gate.world.wait(1)
    for _ in range(5):  # nor can another user, who is let in nowhere under that client id
        gate.come("d", "bob", expiry=1).drop()
        gate.come("c", "bob")
    assert reason_of(gate.come("c", "ann")) == reasons.BANNED
    gate.enter("other", "ann")
    gate.world.wait(59)
    assert reason_of(gate.come("c", "ann")) == reasons.BANNED
    gate.world.wait(2)
    assert reason_of(gate.come("c", "ann")) == 0


# What is told of it.


def test_no_secret_is_told() -> None:
    gate = Gate(rules=RULES)
    logged: list[str] = []
    gate.world.broker.state.log = logged.append
    peer = gate.peer()
    peer.send(connect("c", "ann", password=b"hunter2"))
    request, _ = gate.workers.waiting[0]
    assert "hunter2" not in repr(request)
    gate.workers.do_all(gate.world)
    assert reason_of(peer) == BAD
    assert HASHES["ann"] not in repr(gate.known.find("ann"))
    told = "".join([*gate.lines, *logged])
    assert "hunter2" not in told and "argon2" not in told
    line = json.loads(gate.lines[0])
    assert line["event"] == "refused" and line["username"] == "ann"


def test_the_audit_log_is_bounded_and_says_what_it_left_out() -> None:
    gate = Gate(rules=RULES)
    peer = gate.enter("c", "ann")
    for n in range(200):
        peer.send(publish(f"no/{n}"))
    assert len(gate.lines) == 50
    gate.world.wait(1)
    peer.send(publish("no/more"))
    assert json.loads(gate.lines[-1])["left_out_before"] == 150
    assert gate.audit.counts["denied/publish"] == 201


def test_a_publisher_asks_its_rules_once_a_topic() -> None:
    gate = Gate(rules=RULES)
    asked: list[str] = []
    decide = gate.authenticator.decide

    def count(identity: Any, accounts: Any, text: str, *, is_publish: bool) -> object:
        asked.append(text)
        return decide(identity, accounts, text, is_publish=is_publish)

    gate.authenticator.decide = count  # type: ignore[method-assign, assignment]
    peer = gate.enter("c", "ann")
    for n in range(100):
        peer.send(publish("fleet/c/t", b"x", qos=n % 2, packet_id=1 + n, retain=n % 2 == 0))
    assert asked == ["fleet/c/t"]
    for n in range(2_000):
        peer.send(publish(f"fleet/c/{n}"))
    allowed = gate.world.broker.connections["c"].authorization.allowed
    assert allowed is not None and len(allowed) <= 512
    assert not [packet for packet in peer.take() if type(packet) is Publish]


def test_what_a_client_is_sent_is_bounded_too() -> None:
    tiers = ClientLimitRules(
        ClientLimitRule(), by_user={"ann": ClientLimitRule(ClientLimits(sent_bytes_per_s=100))}
    )
    gate = Gate(client_limits=tiers)
    ann, bob = gate.enter("a", "ann"), gate.enter("b", "bob")
    ann.subscribe("q/#", qos=1)
    ann.take()
    gate.world.wait(1)
    bob.send(publish("q/0", b"x" * 300, qos=1, packet_id=1))
    for n in range(5):
        bob.send(publish(f"q/{n}", b"%d" % n, qos=1, packet_id=2 + n), publish("q", b"lost"))
    assert len(ann.payloads()) == 1  # a turn is written whole, what follows waits
    assert gate.world.broker.backlog.dropped["slow_reader"] == 5
    assert not paused(ann) and not paused(bob)  # who publishes does not wait
    gate.world.wait(1.9)
    assert not ann.payloads()
    gate.world.wait(1)
    assert ann.payloads() == [b"0", b"1", b"2", b"3", b"4"]
    bob.send(publish("q", b"now"))
    assert ann.payloads() == [b"now"]


def test_a_client_that_is_slow_and_bounded() -> None:
    tiers = ClientLimitRules(
        ClientLimitRule(), by_user={"ann": ClientLimitRule(ClientLimits(sent_bytes_per_s=1000))}
    )
    gate = Gate(client_limits=tiers, outbox_bytes_max=2_000)
    ann, bob = gate.enter("a", "ann"), gate.enter("b", "bob")
    ann.subscribe("q", qos=1)
    ann.take()
    ann.is_slow = True
    for n in range(10):
        bob.send(publish("q", b"%d" % n * 700, qos=1, packet_id=1 + n))
        gate.world.wait(1)
    assert paused(ann)  # it reads nothing, so it is not read
    ann.is_slow = False
    ann.read()
    gate.world.wait(20)
    assert not paused(ann)
    assert len(ann.payloads()) == 10


def test_limits_hold_for_those_who_wait_at_once() -> None:
    gate = Gate(connections_max=2, sessions_max=2)
    peers = [gate.peer() for _ in range(5)]
    for number, peer in enumerate(peers):
        peer.send(connect(f"c{number}", "ann"))
    gate.workers.do_all(gate.world)
    assert [reason_of(peer) for peer in peers] == [0, 0, *[reasons.SERVER_BUSY] * 3]
    assert len(gate.world.broker.connections) == 2
