"""Shared subscriptions at work: a group's members, and what waits while all are away.

A shared message is a member's only while that member is online; when it goes, the message
goes to another, or waits with the group. The exception is a QoS 2 exchange under way, which
is finished with its member or ends with it. [MQTT-4.8.2-4], [MQTT-4.8.2-5]

A member whose session ends with its connection leaves nothing in the store. While the group has
another one that does, it stores what such a member is given, until that is acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqtt_broker.topics.shared import Strategy
from sessions.group_deliveries import finish
from sessions.journal.journal import QUEUE_HEAD_MESSAGES, Item, Journal
from sessions.journal.rows import ShareRow
from sessions.journal.transaction import PublishTransaction
from sessions.messages.backlog import Backlog, QueueFull
from sessions.messages.message import DeliveryOptions, Grants, Message, grants
from sessions.queue import MessageQueue
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


class SharedGroup:
    """The subscribers of one `$share/<name>/<filter>`."""

    __slots__ = (
        "_budget",
        "_is_kept",
        "_journal",
        "_online",
        "_order",
        "_strategy",
        "_waiting",
        "filter",
        "members",
        "name",
        "sid",
    )

    def __init__(
        self, name: str, text: str, strategy: Strategy, budget: Backlog, journal: Journal | None
    ) -> None:
        self.name = name  # whole: $share/<group>/<filter>
        self.filter = text
        self._strategy = strategy
        self._budget = budget
        self._journal = journal
        self.members: dict[str, GroupMember] = {}
        self._online: list[GroupMember] | None = None  # worked out when asked,
        self._is_kept = False  # and with it, whether a member's session is stored
        self._waiting = MessageQueue(is_shared=True)
        self.sid = 0  # in the store, once something had to wait here
        self._order = 0

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
        if len(self._waiting) and self._members_online():
            self._hand_out(now)

    def _hand_out(self, now: float) -> None:
        """Give what waits to the members that are here; the rest of it is asked for."""
        waiting = self._waiting
        items: list[Item] = []
        while waiting.head:
            items.append(self._dequeue())
        for item in items:
            self.hand_over(self.sid, item, now)
        if waiting.wants_page and self._journal is not None:
            waiting.is_loading = True
            self._journal.wanted.append(self)

    def hand_over(self, sid: int, item: Item, now: float) -> bool:
        """A message that `sid` has goes to a member, unless it has expired; False: nobody took it.

        `sid` 0: a session that is not stored has it, and this group if anybody. To the store it
        is a new message: what was promised for the old one stands until the new one is on disk.
        """
        journal = self._journal
        message = item[0]
        if message.envelope.is_expired(now):  # nobody else gets it. [MQTT-3.3.2-5]
            self._budget.lose("expired", message, self.name)
            self._end(sid, item, now)
            return True
        if journal is None:
            return self.deliver(message, None, now)
        if item[3] is not None:
            item[3].pin()
        self._end(sid, item, now)
        copy = Message(message.envelope, message.payload)
        txn = journal.begin([copy], awaits_commit=journal.awaits_commit)
        try:
            return self.deliver(copy, txn, now)
        finally:
            journal.add(txn)

    def _dequeue(self) -> Item:
        item = self._waiting.popleft()
        self._budget.memory_bytes -= item[0].envelope.size
        self._count(-1, item[0].envelope.size)
        return item

    def _end(self, sid: int, item: Item, now: float) -> None:
        """Record that this delivery is over, of `sid` or, if that is 0, of its own group."""
        if self._journal is None:
            return
        if sid:
            self._journal.on_done(sid, [item], now)
        else:
            finish(self._journal, [item], now)

    # What waits, as the journal asks for it.

    @property
    def page_after(self) -> int:
        return self._waiting.stored_after

    def on_page(self, items: list[Item], now: float) -> None:
        waiting = self._waiting
        before = waiting.memory_bytes
        messages, size = waiting.load(items)
        self._budget.memory_bytes += waiting.memory_bytes - before
        self._budget.queued_messages -= messages
        self._budget.queued_bytes -= size
        self.refresh(now)

    def evict(self, folded: int, keep: int) -> bool:
        waiting = self._waiting
        self._budget.memory_bytes -= waiting.evict(folded, keep)
        return waiting.in_memory <= QUEUE_HEAD_MESSAGES

    def restore(self, sid: int, messages: int, size: int, n_last: int) -> None:
        """What the store has for the group from an earlier life."""
        self.sid = sid
        self._order = n_last
        if messages:
            self._waiting.restore(messages, size, n_last)
            self._budget.queued_messages += messages
            self._budget.queued_bytes += size

    def deliver(self, message: Message, txn: PublishTransaction | None, now: float) -> bool:
        """Give the message to one member; False when a QoS 0 message found nobody."""
        envelope = message.envelope
        online = self._members_online()
        if not online:
            return self._wait(message, txn, now)
        member = online[self._strategy.choose(online, envelope.topic, envelope.publisher)]
        grant = (member.retained if envelope.retain else member.live)[envelope.qos]
        session = member.subscription.session
        if grant.qos:
            is_lent = (
                self._is_kept and not session.sid and self._lend(session, message, grant, txn, now)
            )
            if not is_lent:
                session.deliver([message], grant, txn, now)
            return True
        return session.deliver_qos0([message], grant, now)

    def _lend(
        self,
        session: Session,
        message: Message,
        grant: DeliveryOptions,
        txn: PublishTransaction | None,
        now: float,
    ) -> bool:
        """Store what a member gets whose session is not; False: that is not to be.

        A QoS 2 exchange that begins is the member's alone; until then the message may move.
        """
        if grant.qos == 2 and session.takes_now:
            return False
        n, txn = self._record(message, txn)
        if txn is not None:
            session.deliver_stored((message, grant, n, txn), now)
        return txn is not None

    def _wait(self, message: Message, txn: PublishTransaction | None, now: float) -> bool:
        if not message.envelope.qos or not self.members:
            return False
        budget = self._budget
        waiting = self._waiting
        size = message.envelope.size
        while waiting.head and not budget.allows(budget.bounds, len(waiting), waiting.bytes, size):
            if budget.queue_full is not QueueFull.DROP_OLDEST:
                break
            item = self._dequeue()
            self._end(self.sid, item, now)
            budget.lose("queue_full", item[0], self.name)
        if not budget.allows(budget.bounds, len(waiting), waiting.bytes, size):
            budget.lose("queue_full", message, self.name)
            return True
        n, txn = self._record(message, txn)
        waiting.append((message, DeliveryOptions(message.envelope.qos, False, (), self), n, txn))
        budget.memory_bytes += size
        self._count(1, size)
        if self._journal is not None and waiting.in_memory > QUEUE_HEAD_MESSAGES:
            self._journal.grown[self] = None
        return True

    def _record(
        self, message: Message, txn: PublishTransaction | None
    ) -> tuple[int, PublishTransaction | None]:
        """Note that the group stores the message; place 0 and None if it is not recorded."""
        journal = self._journal
        if journal is None or txn is None or not txn.is_recorded(message):
            return 0, None
        if not self.sid:
            self.sid = journal.new_sid()
            journal.on_shared(ShareRow(self.sid, self.name))
        self._order += 1
        grant = DeliveryOptions(message.envelope.qos, False, (), self)
        txn.deliver(self.sid, self._order, [message], grant, [])
        return self._order, txn

    def _count(self, sign: int, size: int) -> None:
        self._budget.queued_messages += sign
        self._budget.queued_bytes += sign * size

    def _members_online(self) -> list[GroupMember]:
        if self._online is None:
            sessions = [m.subscription.session for m in self.members.values()]
            self._online = [m for m in self.members.values() if m.subscription.session.is_online]
            self._is_kept = any(session.sid for session in sessions)
        return self._online

    def dissolve(self, now: float) -> None:
        """The last member left for good: what waited is nobody's."""
        waiting = self._waiting
        if len(waiting):
            self._budget.drop("no_member", len(waiting))
        self._budget.memory_bytes -= waiting.memory_bytes
        self._budget.queued_messages -= len(waiting)
        self._budget.queued_bytes -= waiting.bytes
        if self.sid and self._journal is not None:
            self._journal.on_end(self.sid, waiting.items(), now)
            self._journal.grown.pop(self, None)
        self.sid = 0
        self._waiting = MessageQueue(is_shared=True)
