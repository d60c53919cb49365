"""Shared subscriptions: the members of a group, and its queue while no member is online.

A shared message is a member's only while that member is online; when it goes, the message
goes to another, or waits with the group. The exception is a QoS 2 exchange under way, which
is finished with its member or ends with it. [MQTT-4.8.2-4], [MQTT-4.8.2-5]

A member whose session ends with its connection leaves nothing in the store. While the group has
another one that does, it stores what such a member is given, until that is acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.runs import ClientRuns
from mqtt_broker.topics.shared import Strategy
from sessions.forgotten import ForgottenDeliveries
from sessions.journal.journal import QUEUE_HEAD_MESSAGES, Journal
from sessions.journal.rows import ShareRow
from sessions.journal.transaction import Delivery, PublishTransaction
from sessions.messages.backlog import Backlog
from sessions.messages.message import DeliveryOptions, Message, OptionsByQos, options_by_qos
from sessions.messages.outbox import NO_CONNECTION
from sessions.messages.work import DELIVERY, DONE
from sessions.outbound import Outbound
from sessions.queue import MessageQueue
from sessions.session import Session, Subscription


@dataclass(slots=True)
class GroupMember:
    subscription: Subscription
    live: OptionsByQos
    retained: OptionsByQos  # for messages that were published with RETAIN

    @property
    def client_id(self) -> str:
        return self.subscription.session.client_id

    @property
    def load(self) -> int:
        return self.subscription.session.outbound.load


class SharedGroup(ClientRuns):
    """The subscribers of one `$share/<name>/<filter>`."""

    __slots__ = (
        "_backlog",
        "_is_on_agenda",
        "_is_stored",
        "_journal",
        "_last_place",
        "_online",
        "filter",
        "members",
        "name",
        "session_number",
        "strategy",
        "waiting",
    )

    def __init__(
        self, name: str, text: str, strategy: Strategy, backlog: Backlog, journal: Journal | None
    ) -> None:
        super().__init__(name)
        self.name = name  # whole: $share/<group>/<filter>
        self.filter = text
        self.strategy = strategy
        self._backlog = backlog
        self._journal = journal
        self.members: dict[str, GroupMember] = {}
        self._online: list[GroupMember] | None = None  # worked out when asked,
        self._is_on_agenda = False  # more waited than one turn could hand out
        self._is_stored = False  # and with it, whether a member's session is stored
        self.waiting = MessageQueue(self._backlog, self, is_shared=True)
        self.session_number = 0  # in the store, once something had to wait here
        self._last_place = 0

    def join(self, subscription: Subscription, now: float) -> None:
        as_published = subscription.retain_as_published  # [MQTT-3.3.1-13]
        member = GroupMember(
            subscription,
            self._grants(subscription, False),
            self._grants(subscription, as_published),
        )
        self.members[member.client_id] = member
        self.refresh(now)

    def _grants(self, subscription: Subscription, retain: bool) -> OptionsByQos:
        return options_by_qos(subscription.qos, retain, subscription.identifiers, self)

    def leave(self, session: Session) -> None:
        """Take a member out, unless a newer session of its client has its place."""
        member = self.members.get(session.client_id)
        if member is not None and member.subscription.session is session:
            del self.members[session.client_id]
            self._online = None

    def refresh(self, now: float) -> None:
        """Adapt to a member that came or went: what waited goes to those that are online."""
        self._online = None
        if len(self.waiting) and self._members_online():
            self._hand_out(now)

    def go_on(self, now: float) -> int:
        """Hand out more of what was too much for one turn; see `WorkItem`."""
        self._is_on_agenda = False
        self.refresh(now)
        return DONE

    def _hand_out(self, now: float) -> None:
        """Give what waits to the members that are online, and ask for the rest of it.

        A share of it in a turn; what is new waits behind the rest.
        """
        backlog = self._backlog
        waiting = self.waiting
        while waiting.head and self._members_online():
            item = waiting.popleft()
            backlog.work.spent += 2 * DELIVERY
            self.hand_over(self.session_number, item, now)
            if backlog.work.is_over and waiting.head and backlog.agenda is not None:
                if not self._is_on_agenda:
                    self._is_on_agenda = True
                    backlog.agenda.add(self)
                return
        if waiting.wants_page and self._journal is not None:
            self.want_page(waiting)

    def hand_over(self, sid: int, item: Delivery, now: float) -> bool:
        """Give a message that `sid` has to a member, unless it has expired; False: there is none.

        `sid` 0: a session that is not stored has it, and this group if anybody. To the store it
        is a new message: what was promised for the old one stands until the new one is on disk.
        """
        journal = self._journal
        message = item[0]
        if message.envelope.is_expired(now):  # nobody else gets it. [MQTT-3.3.2-5]
            self._backlog.drop_message("expired", message, self.name)
            self.record_dropped("expired", message, now)
            self._end(sid, item, now)
            return True
        if journal is None:
            return self._give(message, None, now)
        own = item[3]
        if own is not None and own.is_open:  # it goes on with the same transaction
            self._end(sid, item, now)
            return self._give(message, own, now)
        if own is not None:
            own.pin()
        self._end(sid, item, now)
        copy = Message(message.envelope, message.payload)
        txn = journal.begin([copy], awaits_commit=journal.awaits_commit)
        try:
            return self._give(copy, txn, now)
        finally:
            journal.add(txn)

    def _end(self, sid: int, item: Delivery, now: float) -> None:
        """Record that this delivery is over, of `sid` or, if that is 0, of its own group."""
        if self._journal is None:
            return
        if sid:
            self._journal.on_done(sid, [item], now)
        else:
            self._journal.on_group_done([item], now)

    # What waits, as the journal asks for it.

    @property
    def page_after(self) -> int:
        return self.waiting.stored_after

    def on_page(self, items: list[Delivery], now: float) -> None:
        self.waiting.load(items)
        self.waiting.pay_owed(now)
        self.refresh(now)

    def on_shed(self, items: list[Delivery], now: float) -> None:
        """Record that these waited in vain: the queue, or all of them together, are full."""
        for item in items:
            self._end(self.session_number, item, now)
            self._backlog.drop_message("queue_full", item[0], self.name)
            self.record_dropped("queue_full", item[0], now)

    def record_dropped(self, reason: str, message: Message, now: float) -> None:
        """Record a message that no member gets."""
        recorder = self._backlog.recorder
        if recorder is not None:
            envelope = message.envelope
            recorder.dropped(
                self, reason, envelope.topic, envelope.publisher, 1, envelope.received_at, now
            )
        tracer = self._backlog.tracer
        if tracer is not None:
            tracer.dropped(message.envelope, self.name, reason, now)

    def want_page(self, queue: MessageQueue) -> None:
        """Ask the store for the next page of the queue."""
        assert self._journal is not None
        queue.load_later()
        self._journal.want_page(self)

    def unload(self, folded: int, keep: int) -> bool:
        self.waiting.unload(folded, keep)
        return self.waiting.in_memory <= QUEUE_HEAD_MESSAGES

    def restore(self, number: int, messages: int, size: int, last_place: int) -> None:
        """Take over what the store has for the group from an earlier life."""
        self.session_number = number
        self._last_place = last_place
        if messages:
            self.waiting.restore(messages, size, last_place)

    def deliver(self, message: Message, txn: PublishTransaction | None, now: float) -> bool:
        """Give the message to one member, behind what waits; False: QoS 0, and there is nobody."""
        if self._is_on_agenda and message.envelope.qos:
            return self._wait(message, txn, now)
        return self._give(message, txn, now)

    def _give(self, message: Message, txn: PublishTransaction | None, now: float) -> bool:
        envelope = message.envelope
        online = self._members_online()
        if not online:
            return self._wait(message, txn, now)
        member = online[self.strategy.choose(online, envelope.topic, envelope.publisher)]
        options = (member.retained if envelope.retain else member.live)[envelope.qos]
        outbound = member.subscription.session.outbound
        recorder = self._backlog.recorder
        if recorder is not None:
            recorder.given(outbound, envelope.topic, options.qos, envelope.received_at, now)
        if options.qos:
            is_lent = (
                self._is_stored
                and not outbound.session_number
                and self._lend(outbound, message, options, txn, now)
            )
            if not is_lent:
                outbound.deliver([message], options, txn, now)
            return True
        return outbound.deliver_qos0([message], options, now)

    def _lend(
        self,
        outbound: Outbound,
        message: Message,
        options: DeliveryOptions,
        txn: PublishTransaction | None,
        now: float,
    ) -> bool:
        """Store what a member gets whose session is not stored; False when that must not be.

        A QoS 2 exchange that begins is the member's alone; until then the message may move.
        """
        if options.qos == 2 and outbound.can_send_now:
            return False
        place, txn = self._record(message, txn)
        if txn is not None:
            outbound.deliver_lent((message, options, place, txn), now)
        return txn is not None

    def _wait(self, message: Message, txn: PublishTransaction | None, now: float) -> bool:
        """Keep the message until a member is online; False when it is QoS 0 and nobody gets it."""
        if not message.envelope.qos or not self.members:
            self.record_dropped("no_member", message, now)
            return False
        backlog = self._backlog
        waiting = self.waiting
        dropped: list[Delivery] = []
        is_stored = txn is not None and txn.is_recorded(message)
        has_room = waiting.make_room(
            backlog.limits, message.envelope.size, dropped, now, is_stored=is_stored
        )
        self.on_shed(dropped, now)
        if not has_room:
            backlog.drop_message("queue_full", message, self.name)
            self.record_dropped("queue_full", message, now)
            return True
        place, txn = self._record(message, txn)
        recorder = backlog.recorder
        if recorder is not None:
            envelope = message.envelope
            recorder.queued(
                self, kinds.AWAY, envelope.topic, 1, envelope.received_at, now,
                is_first=not len(waiting),
            )  # fmt: skip
        options = DeliveryOptions(message.envelope.qos, False, (), self)
        waiting.append((message, options, place, txn))
        if self._journal is not None and waiting.in_memory > QUEUE_HEAD_MESSAGES:
            self._journal.unload_later(self)
        return True

    def _record(
        self, message: Message, txn: PublishTransaction | None
    ) -> tuple[int, PublishTransaction | None]:
        """Note that the group stores the message; place 0 and None if it is not recorded."""
        journal = self._journal
        if journal is None or txn is None or not txn.is_recorded(message):
            return 0, None
        if not self.session_number:
            self.session_number = journal.new_session_number()
            journal.on_shared(ShareRow(self.session_number, self.name))
        self._last_place += 1
        options = DeliveryOptions(message.envelope.qos, False, (), self)
        txn.deliver(self.session_number, self._last_place, [message], options, [])
        return self._last_place, txn

    def _members_online(self) -> list[GroupMember]:
        found = self._online
        if found is None:
            found = self._online = []
            self._is_stored = False
            for member in self.members.values():
                outbound = member.subscription.session.outbound
                if outbound.outbox is not NO_CONNECTION:
                    found.append(member)
                if outbound.session_number:
                    self._is_stored = True
            self._backlog.work.spent += len(self.members)
        return found

    def dissolve(self, now: float) -> None:
        """Drop what waited: the last member left for good."""
        waiting = self.waiting
        if len(waiting):
            self._backlog.drop("no_member", len(waiting))
        items = waiting.clear()
        if self.session_number and self._journal is not None:
            self._journal.on_end(self.session_number)
            self._journal.forget_queue(self)
        self._backlog.start(ForgottenDeliveries(items, self._backlog.work), now)
        self.session_number = 0
