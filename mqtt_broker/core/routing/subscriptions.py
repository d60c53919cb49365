"""Put subscriptions in force and take them back: of topics, shared ones and of streams."""

from __future__ import annotations

import random

from mqtt_broker.core.interfaces.message_log import ATTACHED, AWAY, ONLINE, MessageLog
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.routing.retained_delivery import delivery_to
from mqtt_broker.core.routing.routes import Routes
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.core.routing.subscription_limits import SubscriptionLimits
from mqtt_broker.topics.names import is_stream_filter, split_share
from mqtt_broker.topics.shared import StrategyFactory
from sessions.journal.journal import Journal
from sessions.journal.rows import SubscriptionRow
from sessions.journal.transaction import Delivery
from sessions.messages.backlog import Backlog
from sessions.messages.work import DELIVERY, DONE, FILTER, LOOKED_AT, MORE, Work, WorkItem
from sessions.outbound import Outbound
from sessions.session import Session, Subscription


class Subscriptions:
    __slots__ = ("_backlog", "_journal", "_rng", "_strategy", "groups", "limits", "log", "routes")

    def __init__(
        self,
        settings: Settings,
        backlog: Backlog,
        journal: Journal | None,
        routes: Routes,
        strategy: StrategyFactory,
        rng: random.Random,
    ) -> None:
        self._backlog = backlog
        self._journal = journal
        self._strategy = strategy
        self._rng = rng
        self.routes = routes
        self.limits = SubscriptionLimits(settings, routes)
        self.groups: dict[str, SharedGroup] = {}  # by the whole `$share/...` filter
        self.log: MessageLog | None = None  # None: there is no telemetry log

    def attach_log(self, log: MessageLog | None) -> None:
        """Let clients subscribe to streams of the telemetry log from now on."""
        self.log = log

    def add(self, subscription: Subscription, now: float, start: str | None = None) -> bool:
        """Put it in force and in the store; True when the client did not have the filter yet."""
        is_new = self.put_in_force(subscription, now, start)
        self.record(subscription)
        return is_new

    def record(self, subscription: Subscription) -> None:
        """Put it in the store, if its session is there."""
        session = subscription.session
        if session.session_number and self._journal is not None:
            self._journal.on_subscribed(
                SubscriptionRow(
                    session.session_number,
                    subscription.filter,
                    subscription.qos,
                    subscription.no_local,
                    subscription.retain_as_published,
                    subscription.retain_handling,
                    subscription.identifier,
                )
            )

    def put_in_force(
        self, subscription: Subscription, now: float, start: str | None = None
    ) -> bool:
        """Put it in force, and not in the store; `start`: where to begin to read a stream."""
        session = subscription.session
        text = subscription.filter
        is_new = text not in session.subscriptions
        session.subscriptions[text] = subscription  # in place of one before it. [MQTT-3.8.4-3]
        shared = split_share(text)
        if is_stream_filter(text):
            if self.log is not None:
                goes_on = subscription.retain_handling == 1
                self.log.subscriptions.join(subscription, start, now, goes_on=goes_on)
        elif shared is None:
            self.routes.add(subscription)
        else:
            self._group(text, shared[1]).join(subscription, now)
            self.routes.count_shared(is_new)
        if is_new:
            self.limits.add(session, text)
        return is_new

    def remove(self, subscription: Subscription, now: float) -> None:
        """Deliver nothing new by the filter from now on. [MQTT-3.10.4-2]

        What is under way to the client stays in its window and is finished. [MQTT-3.10.4-3]
        """
        session = subscription.session
        text = subscription.filter
        del session.subscriptions[text]
        self.limits.remove(session, text)
        if session.session_number and self._journal is not None:
            self._journal.on_unsubscribed(session.session_number, text)
        recorder = self._backlog.recorder
        if recorder is not None and not session.outbound.is_over:
            recorder.unsubscribed(session.outbound, text, now)
        if is_stream_filter(text):
            if self.log is not None:
                self.log.subscriptions.leave(subscription, now)
            return
        if split_share(text) is None:
            self.routes.remove(subscription)
            return
        self.routes.count_shared(-1)
        self._leave_group(text, session, now)

    def remove_all(self, session: Session, now: float) -> None:
        """Remove the subscriptions of a session that has ended: many of them, in many turns.

        They find nobody any more, and a new session of the client has subscriptions of its own.
        """
        self.limits.forget_overlap(session)
        self._backlog.start(_Removal(self, session, self._backlog.work), now)

    def drop_routes(self, session: Session) -> None:
        """Forget the routes to a session: they sort receivers by the packets they take."""
        for text in session.subscriptions:
            self.routes.cache.drop(text)

    # Shared subscriptions.

    def _group(self, text: str, topic_filter: str) -> SharedGroup:
        """Find the group of a `$share` filter; its first member makes it."""
        group = self.groups.get(text)
        if group is None:
            strategy = self._strategy(self._rng)
            group = SharedGroup(text, topic_filter, strategy, self._backlog, self._journal)
            self.groups[text] = group
            self.routes.add_group(topic_filter, text, group)
        return group

    def _leave_group(self, text: str, session: Session, now: float) -> None:
        group = self.groups[text]
        group.leave(session)
        if not group.members:
            group.dissolve(now)
            self.routes.remove_group(group.filter, text)
            del self.groups[text]

    # Members come and go.

    def on_attached(self, session: Session, now: float) -> None:
        """Tell the log that a connection carries the session, which is about to resume."""
        self._tell_log(session, ATTACHED, now)

    def on_online(self, session: Session, now: float) -> None:
        """Let shared subscriptions and streams send to a session that has resumed."""
        self._refresh_groups(session, now)
        if session.is_online:
            self._tell_log(session, ONLINE, now)

    def on_offline(self, session: Session, now: float) -> WorkItem | None:
        """Give what the session held for its groups to other members. [MQTT-4.8.2-3]

        Returns what is left to do, if that is too much for one turn.
        """
        delivery = delivery_to(session)
        if delivery is not None:
            delivery.on_room(now)
        self._refresh_groups(session, now)
        self._tell_log(session, AWAY, now)
        mine: list[object] = [self.groups[t] for t in session.subscriptions if t in self.groups]
        outbound = session.outbound
        if not mine and not outbound.has_group_deliveries:
            return None
        returned = _Returned(self._backlog, session.session_number, outbound, mine)
        return None if returned.go_on(now) == DONE else returned

    def _refresh_groups(self, session: Session, now: float) -> None:
        if not self.groups:
            return
        self._backlog.work.spent += len(session.subscriptions) >> 2
        for text in session.subscriptions:
            group = self.groups.get(text)
            if group is not None:
                group.refresh(now)

    def _tell_log(self, session: Session, change: int, now: float) -> None:
        if self.log is not None and session.outbound.sources is not None:
            self.log.subscriptions.on_session(session, change, now)


class _Removal:
    """Removes the subscriptions of a session that has ended, a share of them in a turn."""

    __slots__ = ("_left", "_subscriptions", "_work")

    def __init__(self, subscriptions: Subscriptions, session: Session, work: Work) -> None:
        self._subscriptions = subscriptions
        self._left = list(session.subscriptions.values())
        self._work = work

    def go_on(self, now: float) -> int:
        """Remove some more; see `WorkItem`."""
        while self._left:
            self._subscriptions.remove(self._left.pop(), now)
            self._work.spent += FILTER
            if self._work.is_over and self._left:
                return MORE
        return DONE


class _Returned:
    """Messages of shared subscriptions that a client had when it went: they go to other members."""

    __slots__ = ("_backlog", "_groups", "_ids", "_is_queue_taken", "_items", "_outbound", "_sid")

    def __init__(
        self, backlog: Backlog, sid: int, outbound: Outbound, groups: list[object]
    ) -> None:
        self._backlog = backlog
        self._sid = sid  # of the session, in the store
        self._outbound = outbound
        self._groups = groups
        # What is looked at and handed over is taken from the end.
        self._ids = list(outbound.window.unacked)
        self._ids.reverse()
        self._items: list[Delivery] = []
        self._is_queue_taken = False

    def go_on(self, now: float) -> int:
        """Hand over some more; see `WorkItem`."""
        work = self._backlog.work
        while self._ids:
            item = self._outbound.take_back(self._ids.pop(), self._groups)
            work.spent += LOOKED_AT
            if item is not None:
                self._hand_over(item, now)
            if work.is_over:
                return MORE
        if not self._is_queue_taken:
            self._is_queue_taken = True
            work.spent += self._outbound.load >> 2
            self._items = self._outbound.take_back_queued(self._groups)
            self._items.reverse()
        while self._items:
            self._hand_over(self._items.pop(), now)
            if work.is_over and self._items:
                return MORE
        return DONE

    def _hand_over(self, item: Delivery, now: float) -> None:
        group = item[1].group
        assert isinstance(group, SharedGroup)
        self._backlog.work.spent += 2 * DELIVERY
        if not group.hand_over(self._sid, item, now):
            self._backlog.drop("no_member")
            group.record_dropped("no_member", item[0], now)
