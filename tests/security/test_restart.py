"""Sessions from before a restart: whose they are, what they may keep, what becomes of a will."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Connack, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.interfaces.access import PeerCertificate
from mqtt_broker.security.authentication.certificates import CertificateMethod
from mqtt_broker.security.authentication.chain import Chain, ChainEntry
from mqtt_broker.security.authenticator import Authenticator, SecurityPolicy
from mqtt_broker.security.protection.audit_log import Audit
from tests.core.peers import Peer, publish
from tests.core.stored import StoredWorld
from tests.security.gate import Later, cheap_passwords, connect, reason_of, rule_set


class Guarded(StoredWorld):
    """Everybody shows a certificate; the authenticator outlives the broker, as its files do."""

    def __init__(self, *rules: tuple[str, str, str]) -> None:
        clock = lambda: self.now  # noqa: E731 (there is no `self` to bind yet)
        method = CertificateMethod("cn", roles=frozenset({"device"}))
        chain = Chain([ChainEntry(method)], cheap_passwords(), Later(), clock)
        self.authenticator = Authenticator(
            SecurityPolicy(chain, rule_set(rules)),
            audit=Audit(lambda line: None, clock),
            clock=clock,
        )
        super().__init__()

    def _live(self) -> None:
        super()._live()
        self.broker.state.authorizer.access = self.authenticator
        self.broker.state.authorizer.guarded = self.authenticator.guards_topics

    def set_rules(self, *rules: tuple[str, str, str] | dict[str, Any]) -> None:
        authenticator = self.authenticator
        authenticator.apply(replace(authenticator.policy, rules=rule_set(rules)))

    def come(self, client_id: str, name: str, will: Will | None = None) -> Peer:
        peer = self.peer()
        peer.certificate = PeerCertificate(name)  # type: ignore[attr-defined]
        peer.send(connect(client_id, clean=False, expiry=1000, will=will))
        return peer


def test_a_session_keeps_its_owner_over_a_restart() -> None:
    world = Guarded(("allow", "all", "#"))
    world.come("c", "ann").subscribe("t", qos=1)
    world.fold()
    world.restart()
    assert reason_of(world.come("c", "bob")) == reasons.CLIENT_IDENTIFIER_NOT_VALID
    back = world.come("c", "ann")
    answer = back.take()[0]
    assert isinstance(answer, Connack) and answer.session_present


def test_what_is_no_longer_allowed_is_gone_when_the_client_comes_back() -> None:
    world = Guarded(("allow", "all", "#"))
    ann = world.come("c", "ann")
    for text in ("keep", "lose/#", "$share/g/lose/#", "$share/g/keep"):
        ann.subscribe(text, qos=1)
    world.fold()
    world.set_rules(("allow", "all", "keep"))
    world.restart()
    back = world.come("c", "ann")
    back.take()
    session = world.broker.sessions.get("c")
    assert session is not None and sorted(session.subscriptions) == ["$share/g/keep", "keep"]
    world.fold()
    world.restart()  # and it stays away
    found = world.broker.sessions.get("c")
    assert found is not None and sorted(found.subscriptions) == ["$share/g/keep", "keep"]


def test_wills_are_judged_by_the_rules_of_the_moment() -> None:
    for topic, is_sent in (("u/ann/gone", True), ("u/bob/gone", False), ("d/gone", False)):
        world = Guarded(("allow", "all", "#"))
        will = Will(topic, b"!", properties=Properties({prop.WILL_DELAY_INTERVAL: 10}))
        world.come("c", "ann", will)
        world.fold()
        world.set_rules(
            ("allow", "all", "u/%u/#"),
            ("allow", "subscribe", "#"),
            {"permit": "allow", "action": "all", "topic": "d/#", "roles": ["device"]},
        )
        world.restart()
        reader = world.come("r", "reader")
        reader.subscribe("#")
        reader.take()
        world.wait(15)
        assert reader.payloads() == ([b"!"] if is_sent else []), topic
        assert world.broker.backlog.dropped.get("not_authorized", 0) == (0 if is_sent else 1)


def test_messages_for_who_is_away_wait_for_their_owner_alone() -> None:
    world = Guarded(("allow", "all", "#"))
    ann = world.come("c", "ann")
    ann.subscribe("t", qos=1)
    world.commit()
    ann.drop()
    world.come("p", "bob").send(publish("t", b"secret", qos=1))
    world.fold()
    world.restart()
    thief = world.come("c", "bob")
    assert reason_of(thief) == reasons.CLIENT_IDENTIFIER_NOT_VALID and len(thief.received) == 1
    back = world.come("c", "ann")
    world.page()
    assert back.payloads() == [b"secret"]


def waiting_for_ann(world: Guarded, *topics: str) -> None:
    """Ann goes and the broker dies; then come messages on these topics, which wait for her."""
    ann = world.come("c", "ann")
    for topic in topics:
        ann.subscribe(topic, qos=1)
    world.commit()
    ann.drop()
    world.fold()
    world.restart()


def publish_each(world: Guarded, *topics: str) -> None:
    peer = world.come("p", "bob")
    world.commit()
    for number, topic in enumerate(topics, 1):
        peer.send(publish(topic, topic.encode(), qos=1, packet_id=number))
    world.fold()


def test_nobody_is_handed_what_came_after_the_right_to_read_it_was_gone() -> None:
    world = Guarded(("allow", "all", "#"))
    waiting_for_ann(world, "lose/x", "keep")
    world.set_rules(("allow", "all", "keep"), ("allow", "publish", "#"))
    world.broker.reauthorize(world.now)
    publish_each(world, "lose/x", "keep", "lose/x", "keep")
    back = world.come("c", "ann")
    world.page()
    world.fold()
    assert back.payloads() == [b"keep", b"keep"]
    assert world.broker.backlog.dropped == {"not_authorized": 2}
    back.drop()
    world.fold()
    world.restart()
    again = world.come("c", "ann")
    world.page()
    assert again.payloads() == [b"keep", b"keep"]  # which she has not acknowledged
    assert not world.broker.backlog.dropped


def test_a_queue_that_is_not_read_to_its_end_is_checked_to_its_end() -> None:
    """The subscription is taken back at the first return; what waits is still there at the next."""
    world = Guarded(("allow", "all", "#"))
    waiting_for_ann(world, "lose/#", "keep")
    world.set_rules(("allow", "all", "keep"), ("allow", "publish", "#"))
    publish_each(world, "keep", *["lose/x"] * 500, "keep")
    first = world.come("c", "ann")
    first.drop()  # before the store has answered what waits
    world.fold()
    for _ in range(2):
        back = world.come("c", "ann")
        world.page()
        assert back.payloads() == [b"keep", b"keep"]
        world.fold()
        world.restart()


def test_what_waited_while_the_rules_stood_is_delivered() -> None:
    world = Guarded(("allow", "all", "#"))
    waiting_for_ann(world, "t/#")
    publish_each(world, "t/1", "t/2")
    back = world.come("c", "ann")
    world.page()
    assert back.payloads() == [b"t/1", b"t/2"]
    assert not world.broker.backlog.dropped
