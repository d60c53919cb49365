"""The sentence that `why` gives in each situation in which a message is late, or lost.

Every row drives a broker by packets. The sentence must be true, and name the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse
from tests.core.peers import Peer, World, connect, publish
from tests.recorder.histories import ask
from tests.recorder.test_inquiry import Access, Rules, at_noon

PUBLISHED: Final = "published to `a/b` by `app` at 12:00:05, QoS 1, "
MATCHED: Final = PUBLISHED + "matched `a/b` of `pump-7` granted QoS 1, "
QUEUED: Final = MATCHED + "queued (away since 12:00:00), "
QOS0: Final = "published to `a/b` by `app` at 12:00:05, QoS 0, matched `a/b` of `pump-7` granted "


class Situation:
    """A world at noon, in which pump-7 has subscribed to a/b."""

    def __init__(
        self,
        text: str = "a/b",
        *,
        qos: int = 1,
        options: dict[str, Any] | None = None,
        session: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.world: World = at_noon(**settings)
        self.app = self.world.client("app")
        self._session = {"clean": False, "expiry": 10_000, **(session or {})}
        self._packet_id = 0
        self.device = self.come()
        self.device.subscribe(text, qos=qos, **(options or {}))

    def come(self) -> Peer:
        """Connect pump-7, again perhaps."""
        self.device = self.world.client("pump-7", **self._session)
        return self.device

    def publish(
        self, payload: bytes = b"x", *, qos: int = 1, topic: str = "a/b", **more: Any
    ) -> None:
        """Publish five seconds later."""
        self.world.now += 5
        self._packet_id += 1
        self.app.send(publish(topic, payload, qos=qos, packet_id=self._packet_id, **more))

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.broker.tick(self.world.now)


def queue_full() -> Situation:
    now = Situation(queue_messages_max=1)
    now.device.drop()
    now.publish()
    now.publish()
    return now


def expired_in_the_queue() -> Situation:
    now = expires_while_away()
    now.come()
    return now


def expires_while_away() -> Situation:
    now = Situation()
    now.device.drop()
    now.publish(properties={prop.MESSAGE_EXPIRY_INTERVAL: 10})
    now.pass_time(55)
    return now


def too_large() -> Situation:
    now = Situation(session={"packet_bytes_max": 60})
    now.publish(b"x" * 100)
    return now


def too_large_from_the_queue() -> Situation:
    now = Situation(session={"packet_bytes_max": 60})
    now.device.drop()
    now.publish(b"x" * 100)
    now.pass_time(5)
    now.come()
    return now


def slow_reader() -> Situation:
    now = Situation(qos=0, outbox_bytes_max=1024)
    now.device.is_slow = True
    for _ in range(3):
        now.publish(b"x" * 900, qos=0)
    return now


def no_member() -> Situation:
    now = Situation("$share/g/a/b")
    now.device.drop()
    now.publish(qos=0)
    return now


def no_member_yet() -> Situation:
    now = Situation("$share/g/a/b")
    now.device.drop()
    now.publish()
    return now


def another_member() -> Situation:
    now = Situation("$share/g/a/b")
    now.device.drop()
    now.world.client("m2").subscribe("$share/g/a/b", qos=1)
    now.publish()
    return now


def qos0_while_away() -> Situation:
    now = Situation()
    now.device.drop()
    now.publish(qos=0)
    return now


def granted_qos0_while_away() -> Situation:
    now = Situation(qos=0)
    now.device.drop()
    now.publish()
    return now


def denied_at_publish() -> Situation:
    now = Situation("#", access=Access())
    now.publish(topic="secret/7")
    return now


def denied_at_subscribe() -> Situation:
    return Situation("secret/#", access=Access())


class ChangingAccess(Access):
    """Lets pump-7 read nothing any more, once the rules have changed."""

    has_changed = False

    def connect(self, request: ConnectRequest) -> Allow:
        return Allow(request.username, guard=NoRules() if self.has_changed else Rules())


class NoRules(Rules):
    def may_subscribe(self, text: str, qos: int) -> bool:
        return False


def denied_at_delivery() -> Situation:
    access = ChangingAccess()
    now = Situation(access=access)
    now.device.drop()
    now.publish()
    session = now.world.broker.sessions.get("pump-7")
    assert session is not None
    session.outbound.restore(session.session_number, 5)  # as after a restart of the broker
    access.has_changed = True
    now.pass_time(5)
    now.come()
    return now


class Bans(Access):
    banned = False

    def connect(self, request: ConnectRequest) -> Allow | Refuse:  # type: ignore[override]
        return Refuse(reasons.BANNED) if self.banned else Allow(request.username)


def banned() -> Situation:
    access = Bans()
    now = Situation(access=access)
    now.device.drop()
    now.publish()
    access.banned = True
    now.pass_time(5)
    now.world.peer().send(connect("pump-7", clean=False, expiry=10_000))
    return now


def session_expired() -> Situation:
    now = Situation(session={"expiry": 30})
    now.device.drop()
    now.publish()
    now.pass_time(60)
    return now


def session_begun_anew() -> Situation:
    now = Situation()
    now.publish()
    now.world.now += 5
    now.world.client("pump-7")
    return now


def session_not_kept() -> Situation:
    now = Situation(session={"expiry": 0})
    now.publish()
    now.device.drop()
    now.pass_time(1)
    return now


def taken_over() -> Situation:
    now = Situation()
    now.publish()
    now.pass_time(5)
    other = now.world.peer()
    other.peer = "10.0.0.7:5123"
    other.send(connect("pump-7", clean=False, expiry=10_000))
    now.world.now += 1
    other.send(encode_ack(PUBACK, 1))
    return now


def receive_maximum() -> Situation:
    now = Situation(session={"receive_maximum": 1})
    now.publish(topic="a/b")
    now.publish()
    return now


def behind_others() -> Situation:
    now = receive_maximum()
    now.publish()
    return now


def topic_alias() -> Situation:
    now = Situation(session={"alias_maximum": 5})
    now.publish(properties={prop.TOPIC_ALIAS: 1})
    now.publish(topic="", properties={prop.TOPIC_ALIAS: 1})
    now.device.send(encode_ack(PUBACK, 1), encode_ack(PUBACK, 2))
    return now


def retained() -> Situation:
    now = Situation("other")
    now.publish(retain=True)
    now.world.now += 5
    now.device.subscribe("a/b", qos=1)
    return now


def no_local() -> Situation:
    now = Situation(options={"no_local": True})
    now.app = now.device
    now.publish()
    return now


def subscription_identifiers() -> Situation:
    now = Situation("a/+", qos=0, options={"identifier": 7})
    now.device.subscribe("a/#", qos=1, identifier=8)
    now.publish()
    return now


def queue_cleared() -> Situation:
    now = Situation()
    now.device.drop()
    now.publish()
    session = now.world.broker.sessions.get("pump-7")
    assert session is not None
    session.outbound.clear_queue(1 << 30, now.world.now)
    return now


TABLE: Final[dict[Callable[[], Situation], str]] = {
    queue_full: QUEUED + "dropped 12:00:10 (queue full)",
    expired_in_the_queue: QUEUED + "dropped 12:01:00 (expired)",
    expires_while_away: QUEUED + "expired 12:00:15 and still in its queue",
    too_large: MATCHED + "dropped 12:00:05 (packet too large)",
    too_large_from_the_queue: MATCHED
    + "queued (away since 12:00:00), dropped 12:00:10 (packet too large)",
    slow_reader: QOS0.replace("12:00:05", "12:00:15") + "QoS 0, dropped 12:00:15 (slow reader)",
    no_member: QOS0.replace("`a/b` of", "`$share/g/a/b` of")
    + "QoS 1, dropped 12:00:05 (no member)",
    no_member_yet: MATCHED.replace("`a/b` of", "`$share/g/a/b` of")
    + "queued (no member of the group was online), given to no member yet",
    another_member: MATCHED.replace("`a/b` of", "`$share/g/a/b` of")
    + "given to another member of the shared subscription: `m2`",
    qos0_while_away: QOS0
    + "QoS 1, not kept: the client was away since 12:00:00, and QoS 0 does not wait",
    granted_qos0_while_away: MATCHED.replace("granted QoS 1", "granted QoS 0")
    + "not kept: the client was away since 12:00:00, and QoS 0 does not wait",
    denied_at_publish: (
        "`app` was denied to publish to `secret/7` at 12:00:05 by rule 12 of acl.toml"
    ),
    denied_at_subscribe: (
        "`pump-7` was denied to subscribe to `secret/#` at 12:00:00 by rule 12 of acl.toml"
    ),
    denied_at_delivery: QUEUED + "dropped 12:00:10 (not authorized)",
    banned: QUEUED + "still in its queue; its CONNECT of 12:00:10 was refused: Banned",
    session_expired: QUEUED
    + "its session ended 12:01:05 (it expired) with 1 message not acknowledged",
    session_begun_anew: MATCHED
    + "its session ended 12:00:10 (replaced by Clean Start, or ended by an operator) with 1 "
    "message not acknowledged",
    session_not_kept: MATCHED
    + "its session ended 12:00:05 (it was not to outlive its connection) with 1 message not "
    "acknowledged",
    taken_over: MATCHED + "taken over by 10.0.0.7:5123 at 12:00:10, sent again 12:00:10 with DUP, "
    "acknowledged 12:00:11",
    receive_maximum: MATCHED.replace("12:00:05", "12:00:10")
    + "queued (Receive Maximum or inflight_max reached), still in its queue",
    behind_others: MATCHED.replace("12:00:05", "12:00:15")
    + "queued (behind messages that wait), still in its queue",
    topic_alias: MATCHED.replace("12:00:05", "12:00:10") + "acknowledged 12:00:10",
    retained: "published to `a/b` by `app` at 12:00:05, delivered as retained at the SUBSCRIBE of "
    "12:00:10 to `a/b` of `pump-7`, QoS 1, never acknowledged",
    no_local: MATCHED.replace("`app`", "`pump-7`")
    + "not delivered: its own message, and the subscription says No Local",
    subscription_identifiers: MATCHED.replace("matched `a/b`", "matched `a/#` and `a/+`")
    + "never acknowledged",
    queue_cleared: QUEUED + "dropped 12:00:05 (queue cleared)",
}
WITHOUT_ADVICE: Final = (another_member, taken_over, topic_alias, no_local)


@pytest.mark.parametrize("situation", TABLE, ids=lambda one: one.__name__)
def test_the_sentence(situation: Callable[[], Situation]) -> None:
    topic = "secret/7" if situation in (denied_at_publish, denied_at_subscribe) else "a/b"
    answer = ask(situation().world, "pump-7", topic)
    assert answer.sentence == TABLE[situation]
    assert bool(answer.advice) == (situation not in WITHOUT_ADVICE)
