"""Deliver the retained messages that subscriptions bring: a slice a turn, while the tree changes.

Of each topic that a filter matches, the message is delivered that stands there when its turn comes,
so it is never older than a live one that went before. What is published meanwhile is delivered
live, and may be delivered as a retained message, too.

A reader that takes no more, or has much to acknowledge, is waited for: nothing that it asked for
is dropped because there is so much of it. If its connection ends and its session goes on, the rest
at QoS 1 and 2 goes into its queue.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqtt_broker.core.routing.retained import RetainedMessages
from mqtt_broker.core.runtime.runtime import Runtime
from mqtt_broker.topics.names import is_stream_filter, split_share
from mqtt_broker.topics.retained import RetainedScan
from sessions.journal.journal import Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import DeliveryOptions, Message
from sessions.messages.outbox import CONGESTED
from sessions.messages.work import COPIED, DELIVERY, DONE, MORE, RECORDED, VISITED, WAITS
from sessions.registry import SessionRegistry
from sessions.session import Session, Subscription
from sessions.sources import SourcedMessage

_BYTES_UNSEEN_MAX: Final = 256 << 10  # until it is looked whether the peer reads
_FIRST_PART: Final = 8  # of a share is delivered at once
_AGAIN_MAX: Final = 16
_QUEUED_MAX: Final = 1_000  # messages in the queue of a client that is connected
_NAMED_MAX: Final = 100  # that the recorder has by topic; of the others it has the number


def brings_retained(subscription: Subscription, is_new: bool) -> bool:
    """Tell whether a SUBSCRIBE brings the retained messages of this subscription.

    [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]
    With handling 0 a subscription that replaces one brings them again. [MQTT-3.8.4-4]
    """
    handling = subscription.retain_handling
    if handling == 2 or (handling == 1 and not is_new):
        return False
    return split_share(subscription.filter) is None and not is_stream_filter(subscription.filter)


class RetainedCopies:
    """The retained messages that one session is still to be given, filter by filter."""

    __slots__ = (
        "_journal",
        "_retained",
        "_runtime",
        "_scan",
        "_unseen_bytes",
        "_wanted",
        "count",
        "session",
    )

    def __init__(
        self,
        session: Session,
        runtime: Runtime,
        retained: RetainedMessages,
        journal: Journal | None,
    ) -> None:
        self.session = session
        self._runtime = runtime
        self._retained = retained
        self._journal = journal
        # Subscriptions, with the lowest and the highest QoS that is delivered.
        self._wanted: deque[tuple[Subscription, int, int]] = deque()
        self._scan: RetainedScan[Message] | None = None  # of the first of them
        self._unseen_bytes = 0
        self.count = 0  # given until now

    @property
    def wanted(self) -> int:
        """Return how many subscriptions are still to bring something."""
        return len(self._wanted)

    @property
    def filters(self) -> list[str]:
        """The filters of the subscriptions that are still to bring something."""
        return [subscription.filter for subscription, _, _ in self._wanted]

    def want(self, subscription: Subscription, low: int, high: int) -> None:
        """Deliver what a subscription brings behind the others.

        `low` and `high` are about the QoS that it has with the message's. It has its own options to
        the end, as long as the client has the filter: who subscribes anew is brought all anew.
        """
        wanted = self._wanted
        wanted.append((subscription, low, high))
        if len(wanted) > _AGAIN_MAX + 2 * len(self.session.subscriptions):
            first = wanted.popleft()
            newest = {item[0].filter: item for item in wanted}  # it asks again and again
            self._wanted = deque([first, *newest.values()])

    def go_on(self, now: float, *, waits: bool) -> int:
        """Deliver some more; `waits`: no more than the client takes. See `WorkItem`."""
        journal = self._journal
        if journal is None or not self.session.session_number:
            return self._deliver_some(None, now, waits)
        txn = journal.begin([], awaits_commit=journal.awaits_commit)
        try:
            return self._deliver_some(txn, now, waits)
        finally:
            journal.add(txn)

    def _deliver_some(self, txn: PublishTransaction | None, now: float, waits: bool) -> int:
        work = self._runtime.work
        outcome = DONE
        while self._wanted:
            subscription = self._wanted[0][0]
            if subscription.filter not in self.session.subscriptions:
                self._end_first()
                continue
            if waits and self.must_wait():
                outcome = WAITS
                break
            if self._visit(subscription, txn, now):
                self._end_first()
            if work.is_over:
                outcome = MORE if self._wanted else DONE
                break
        self._look(self._runtime.outboxes.share_bytes // 4, now)
        return outcome

    def _end_first(self) -> None:
        self._wanted.popleft()
        self._scan = None

    def must_wait(self) -> bool:
        """Tell whether the client has to take something before it is given more."""
        outbound = self.session.outbound
        if not (self._wanted and outbound.is_online):
            return False
        subscription = self._wanted[0][0]
        if outbound.outbox.state >= CONGESTED:
            return True
        queued_max = min(_QUEUED_MAX, outbound.queue_limits.messages_max // 2)
        return subscription.qos > 0 and outbound.window.room <= 0 and outbound.queued >= queued_max

    def _visit(
        self, subscription: Subscription, txn: PublishTransaction | None, now: float
    ) -> bool:
        """Take the search of a filter one step further; True when it is over."""
        scan = self._scan
        if scan is None:
            scan = self._scan = self._retained.scan(subscription.filter)
        before = scan.steps
        for message in scan.take(1):
            self._deliver(subscription, message, txn, now)
        self._runtime.work.spent += VISITED * (scan.steps - before)
        return scan.is_done

    def _deliver(
        self,
        subscription: Subscription,
        message: Message,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        envelope = message.envelope
        _, low, high = self._wanted[0]
        qos = min(envelope.qos, subscription.qos)
        if not low <= qos <= high or envelope.is_expired(now):
            return
        session = self.session
        if subscription.no_local and envelope.publisher == session.client_id:
            return
        # A retained copy says so, whatever Retain As Published says. [MQTT-3.3.1-8]
        options = DeliveryOptions(qos, True, subscription.identifiers)
        self.count += 1
        self._runtime.work.spent += DELIVERY + COPIED + (0 if txn is None else RECORDED)
        self._record(message, qos, now)
        if qos:
            session.outbound.deliver([message], options, txn, now)
        else:
            session.outbound.deliver_qos0([message], options, now)
        self._unseen_bytes += envelope.size
        self._look(_BYTES_UNSEEN_MAX, now)

    def _record(self, message: Message, qos: int, now: float) -> None:
        """Record a message that is about to be delivered; at QoS 0 nothing waits for a client."""
        outbound = self.session.outbound
        recorder = outbound.backlog.recorder
        topic = message.envelope.topic
        if recorder is None or topic.startswith("$SYS/"):
            return
        if qos or outbound.is_online:
            named = topic if self.count <= _NAMED_MAX else ""
            recorder.retained(outbound, named, qos, message.envelope.received_at, now)

    def _look(self, bytes_max: int, now: float) -> None:
        """Write, if it is more than this, to see whether the peer reads."""
        if self._unseen_bytes <= bytes_max:
            return
        self._unseen_bytes = 0
        box = self.session.outbound.outbox
        try:
            self._runtime.outboxes.write(box, now)
        except Exception as error:  # it costs this connection, as at the end of the turn
            box.owner.on_error(error, b"", now)


class RetainedDelivery:
    """Retained messages on their way to a session: an item of the agenda, and while that waits for
    the client, a source of the session, which is told when the client takes something.
    """

    __slots__ = ("_agenda", "_copies", "_is_waiting", "_sessions", "_work")

    def __init__(self, copies: RetainedCopies, runtime: Runtime, sessions: SessionRegistry) -> None:
        self._copies = copies
        self._agenda = runtime.agenda
        self._work = runtime.work
        self._sessions = sessions
        self._is_waiting = False

    @property
    def wanted(self) -> int:
        """Return how many subscriptions are still to bring something."""
        return self._copies.wanted

    @property
    def filters(self) -> list[str]:
        """The filters of the subscriptions that are still to bring something."""
        return self._copies.filters

    def want(self, subscription: Subscription, low: int, high: int) -> None:
        self._copies.want(subscription, low, high)

    def start(self, now: float) -> None:
        """Deliver some of it now, and the rest in other turns.

        The first part is small, so that many who subscribe in one turn do not make it long.
        """
        limit = self._work.narrow(_FIRST_PART)
        try:
            outcome = self._copies.go_on(now, waits=True)
        finally:
            self._work.widen(limit)
        if outcome != DONE:
            self._copies.session.outbound.add_source(self)
            if self._wait(outcome) == MORE:
                self._agenda.add(self)

    def go_on(self, now: float) -> int:
        """Deliver some more; see `WorkItem`."""
        session = self._copies.session
        outcome = DONE
        try:
            if self._sessions.get(session.client_id) is session:  # else it has ended
                outcome = self._wait(self._copies.go_on(now, waits=True))
        finally:
            if outcome == DONE:
                session.outbound.remove_source(self)
        return outcome

    def _wait(self, outcome: int) -> int:
        """Wait for the client, unless it has taken something since it had to be waited for."""
        if outcome == WAITS and not self._copies.must_wait():
            return MORE
        self._is_waiting = outcome == WAITS
        return outcome

    def on_room(self, now: float) -> None:
        """Go on in the next turn: the client has taken something, or its connection is gone."""
        if self._is_waiting:
            self._is_waiting = False
            self._agenda.add(self)

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """Do nothing: its messages are like others."""


class RetainedDeliveries:
    """Makes the deliveries of all sessions, and finds them."""

    __slots__ = ("_journal", "_retained", "_runtime", "_sessions")

    def __init__(
        self,
        runtime: Runtime,
        retained: RetainedMessages,
        sessions: SessionRegistry,
        journal: Journal | None,
    ) -> None:
        self._runtime = runtime
        self._retained = retained
        self._sessions = sessions
        self._journal = journal

    def copies(self, session: Session) -> RetainedCopies:
        """Begin with nothing."""
        return RetainedCopies(session, self._runtime, self._retained, self._journal)

    def send(
        self, session: Session, subscriptions: list[Subscription], high: int, now: float
    ) -> None:
        """Deliver what these bring at QoS `high` and less, behind what is on its way."""
        found = delivery_to(session)
        delivery = found or RetainedDelivery(self.copies(session), self._runtime, self._sessions)
        for subscription in subscriptions:
            delivery.want(subscription, 0, high)
        if found is None:
            delivery.start(now)


def delivery_to(session: Session) -> RetainedDelivery | None:
    """Find what is on its way to a session."""
    for source in session.outbound.sources or ():
        if isinstance(source, RetainedDelivery):
            return source
    return None
