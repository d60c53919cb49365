"""Shared subscriptions at work: a group's members, and what waits while all are away.

A shared message is a member's only while that member is online; when it goes, the message
goes to another, or waits with the group. The exception is a QoS 2 exchange under way, which
is finished with its member or ends with it. [MQTT-4.8.2-4], [MQTT-4.8.2-5]
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mqtt_broker.topics.shared import Strategy
from sessions.budget import Budget, QueueFull
from sessions.message import Grants, Message, grants
from sessions.session import Session, Subscription


@dataclass(slots=True)
class GroupMember:
    subscription: Subscription
    live: Grants
    retained: Grants  # for messages that were published with RETAIN

    @property
    def client_id(self) -> str:
        return self.subscription.session.client_id

    @property
    def load(self) -> int:
        return self.subscription.session.load


class Group:
    """The subscribers of one `$share/<name>/<filter>`."""

    __slots__ = (
        "_budget",
        "_online",
        "_strategy",
        "_waiting",
        "_waiting_bytes",
        "filter",
        "members",
    )

    def __init__(self, text: str, strategy: Strategy, budget: Budget) -> None:
        self.filter = text
        self._strategy = strategy
        self._budget = budget
        self.members: dict[str, GroupMember] = {}
        self._online: list[GroupMember] | None = None  # worked out when asked
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0

    def join(self, subscription: Subscription, now: float) -> None:
        as_published = subscription.retain_as_published  # [MQTT-3.3.1-13]
        member = GroupMember(
            subscription,
            self._grants(subscription, False),
            self._grants(subscription, as_published),
        )
        self.members[member.client_id] = member
        self.refresh(now)

    def _grants(self, subscription: Subscription, retain: bool) -> Grants:
        return grants(subscription.qos, retain, subscription.identifiers, self)

    def leave(self, session: Session) -> None:
        self.members.pop(session.client_id, None)
        self._online = None

    def refresh(self, now: float) -> None:
        """A member came or went. What waited goes to those who are here."""
        self._online = None
        if self._waiting and self._members_online():
            waiting, self._waiting = self._waiting, deque()
            for message in waiting:
                self._count(-1, message)
                if message.envelope.is_expired(now):
                    self._budget.drop("expired")
                else:
                    self.deliver(message, now)

    def deliver(self, message: Message, now: float) -> bool:
        """Give the message to one member; False when a QoS 0 message found nobody."""
        envelope = message.envelope
        online = self._members_online()
        if not online:
            return self._wait(message)
        member = online[self._strategy.choose(online, envelope.topic, envelope.publisher)]
        grant = (member.retained if envelope.retain else member.live)[envelope.qos]
        session = member.subscription.session
        if grant.qos:
            session.deliver([message], grant, now)
            return True
        return session.deliver_qos0([message], grant, now)

    def _wait(self, message: Message) -> bool:
        if not message.envelope.qos or not self.members:
            return False
        budget = self._budget
        size = message.envelope.size
        while self._waiting and not budget.allows(len(self._waiting), self._waiting_bytes, size):
            if budget.queue_full is not QueueFull.DROP_OLDEST:
                break
            self._count(-1, self._waiting.popleft())
            budget.drop("queue_full")
        if not budget.allows(len(self._waiting), self._waiting_bytes, size):
            budget.drop("queue_full")
            return True
        self._waiting.append(message)
        self._count(1, message)
        return True

    def _count(self, sign: int, message: Message) -> None:
        self._waiting_bytes += sign * message.envelope.size
        self._budget.queued_messages += sign
        self._budget.queued_bytes += sign * message.envelope.size

    def _members_online(self) -> list[GroupMember]:
        if self._online is None:
            self._online = [m for m in self.members.values() if m.subscription.session.is_online]
        return self._online

    def dissolve(self) -> None:
        """The last member left for good: what waited is nobody's."""
        for message in self._waiting:
            self._count(-1, message)
            self._budget.drop("no_member")
        self._waiting.clear()
