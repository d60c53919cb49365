"""Put subscriptions in force and take them back: of topics, shared ones and of streams."""

from __future__ import annotations

import random

from mqtt_broker.core.interfaces.message_log import ATTACHED, AWAY, ONLINE, MessageLog
from mqtt_broker.core.routing.routes import Routes
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.topics.names import is_stream_filter, split_share
from mqtt_broker.topics.shared import StrategyFactory
from sessions.journal.journal import Journal
from sessions.journal.rows import SubscriptionRow
from sessions.messages.backlog import Backlog
from sessions.session import Session, Subscription


class Subscriptions:
    __slots__ = ("_backlog", "_journal", "_rng", "_strategy", "groups", "log", "routes")

    def __init__(
        self,
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
        self.groups: dict[str, SharedGroup] = {}  # by the whole `$share/...` filter
        self.log: MessageLog | None = None  # None: there is no telemetry log

    def attach_log(self, log: MessageLog | None) -> None:
        """Let clients subscribe to streams of the telemetry log from now on."""
        self.log = log

    def add(self, subscription: Subscription, now: float, start: str | None = None) -> bool:
        """Put it in force and in the store; True when the client did not have the filter yet."""
        is_new = self.put_in_force(subscription, now, start)
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
        return is_new

    def put_in_force(
        self, subscription: Subscription, now: float, start: str | None = None
    ) -> bool:
        """Put it in force, and not in the store; `start`: where to begin to read a stream."""
        session = subscription.session
        text = subscription.filter
        is_new = text not in session.subscriptions
        session.subscriptions[text] = subscription  # in place of one before it. [MQTT-3.8.4-3]
        if is_stream_filter(text):
            if self.log is not None:
                goes_on = subscription.retain_handling == 1
                self.log.subscriptions.join(subscription, start, now, goes_on=goes_on)
            return is_new
        shared = split_share(text)
        if shared is None:
            self.routes.add(subscription)
        else:
            self._group(text, shared[1]).join(subscription, now)
            self.routes.count_shared(is_new)
        return is_new

    def remove(self, subscription: Subscription, now: float) -> None:
        """Deliver nothing new by the filter from now on. [MQTT-3.10.4-2]

        What is under way to the client stays in its window and is finished. [MQTT-3.10.4-3]
        """
        session = subscription.session
        text = subscription.filter
        del session.subscriptions[text]
        if session.session_number and self._journal is not None:
            self._journal.on_unsubscribed(session.session_number, text)
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
        for subscription in list(session.subscriptions.values()):
            self.remove(subscription, now)

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

    def on_offline(self, session: Session, now: float) -> None:
        """Give what the session held for its groups to other members. [MQTT-4.8.2-3]"""
        self._refresh_groups(session, now)
        self._tell_log(session, AWAY, now)
        mine: list[object] = [self.groups[t] for t in session.subscriptions if t in self.groups]
        outbound = session.outbound
        for item in outbound.take_back(mine) if mine or outbound.has_group_deliveries else ():
            group = item[1].group
            assert isinstance(group, SharedGroup)
            if not group.hand_over(session.session_number, item, now):
                self._backlog.drop("no_member")

    def _refresh_groups(self, session: Session, now: float) -> None:
        for text in session.subscriptions:
            group = self.groups.get(text)
            if group is not None:
                group.refresh(now)

    def _tell_log(self, session: Session, change: int, now: float) -> None:
        if self.log is not None and session.outbound.sources is not None:
            self.log.subscriptions.on_session(session, change, now)
