"""Authorization of clients: that of each connection, and the guards of all sessions.

A guard answers for one client as long as its session lasts. What it allows is remembered with
the connection, so that a publisher pays for its rules once a topic. When rules change,
`Authorizer.reauthorize` forgets all that and takes back subscriptions that are no longer allowed.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.errors import Violation
from mqtt_broker.core.clients.registry import ClientRegistry
from mqtt_broker.core.interfaces.access import Access, AskingGuard, Guard
from mqtt_broker.core.routing.subscriptions import Subscriptions
from mqtt_broker.core.runtime.runtime import Runtime
from mqtt_broker.core.runtime.timers import Timer
from mqtt_broker.topics.names import level_count, matches, split_share
from sessions.registry import SessionRegistry
from sessions.session import Session

TOPICS_REMEMBERED_MAX: Final = 512  # of one client: those it may publish to, and did
_TOPIC_CHARS_REMEMBERED_MAX: Final = 256
_REAUTHORIZED_AT_ONCE: Final = 200  # sessions, when rules change: then others have their turn
_REAUTHORIZE_PAUSE_S: Final = 0.002


class Authorization:
    """The user name of a client, its guard, and the expiry of its credentials."""

    __slots__ = ("_expiry", "_levels_max", "allowed", "guard", "username")

    def __init__(
        self,
        username: str | None,
        guard: Guard | None,
        *,
        levels_max: int,
        remembers: bool,
        expiry: Timer | None,
    ) -> None:
        self.username = username
        self.guard = guard  # None: everything is open to it
        self._levels_max = levels_max  # of a topic
        self.allowed: set[str] | None = set() if remembers else None  # topics; None: any
        self._expiry = expiry  # ends the connection when its credentials expire

    @property
    def expires_at(self) -> float:
        """The time at which the credentials expire; 0: never."""
        return self._expiry.when if self._expiry is not None else 0.0

    def may_publish(self, topic: str) -> bool:
        """Ask the guard, and remember the topics it allows as long as the rules stand."""
        allowed = self.allowed
        if allowed is None or topic in allowed:
            return True
        if level_count(topic) > self._levels_max:
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.3-3", "too many topic levels")
        if self.guard is not None and not self.guard.may_publish(topic):
            return False
        if len(topic) <= _TOPIC_CHARS_REMEMBERED_MAX:
            if len(allowed) >= TOPICS_REMEMBERED_MAX:
                allowed.clear()
            allowed.add(topic)
        return True

    def why_not_publish(self, topic: str) -> str:
        """Name the rule that refuses a topic, if the guard knows it."""
        return why_not(self.guard, topic, is_publish=True)

    def forget_topics(self) -> None:
        """Ask the guard again for every topic: the rules changed."""
        if self.allowed is not None:
            self.allowed.clear()

    def end(self) -> None:
        """Cancel the expiry: the connection is closed, or has another authorization."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


def why_not(guard: Guard | None, text: str, *, is_publish: bool) -> str:
    """Name the rule by which a guard refuses a topic or a filter; empty: it does not say."""
    explain = getattr(guard, "why_not", None)
    return "" if explain is None else str(explain(text, is_publish=is_publish))


class ReadableTopics:
    """The topics that a returned client may read, among those of messages that waited for it.

    Its subscriptions were checked before, so what they match it may read. About other topics the
    guard is asked: they are of subscriptions that were taken back.
    """

    __slots__ = ("_filters", "_guard", "_known")

    def __init__(self, guard: Guard, session: Session) -> None:
        self._guard = guard
        self._filters = [_matched_filter(text) for text in session.subscriptions]
        self._known: dict[str, bool] = {}

    def may_read(self, topic: str) -> bool:
        """Tell whether the client may read messages on a topic."""
        known = self._known.get(topic)
        if known is None:
            known = any(matches(text, topic) for text in self._filters)
            known = known or self._guard.may_subscribe(topic, 0)
            if len(self._known) >= TOPICS_REMEMBERED_MAX:
                self._known.clear()
            self._known[topic] = known
        return known


def _matched_filter(text: str) -> str:
    shared = split_share(text)
    return text if shared is None else shared[1]


# Of clients without a user name where everything is open, and of those not connected yet.
OPEN: Final = Authorization(None, None, levels_max=0, remembers=False, expiry=None)


class Authorizer:
    """The guards of every session whose client was here, and what happens when rules change."""

    __slots__ = (
        "_clients",
        "_log",
        "_sessions",
        "_subscriptions",
        "_timers",
        "_unchecked",
        "access",
        "guarded",
        "guards",
    )

    def __init__(
        self,
        access: Access,
        runtime: Runtime,
        sessions: SessionRegistry,
        subscriptions: Subscriptions,
        clients: ClientRegistry,
    ) -> None:
        self.access = access
        self.guarded = access.guards_topics
        self.guards: dict[str, Guard] = {}  # by client id
        self._log = runtime.log
        self._timers = runtime.timers
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._clients = clients
        self._unchecked: list[str] = []  # client ids that are still to be checked

    def replace_access(self, access: Access) -> None:
        """Ask this access from now on, in a test. It guards topics if the one before did."""
        self.access = access

    def guard_for(self, guard: Guard | None, client_id: str, username: str | None) -> Guard | None:
        """Complete a verdict's guard: without one, the access is asked if it guards topics."""
        if guard is None and self.guarded:
            return AskingGuard(self.access, client_id, username)
        return guard

    def set_guard(self, client_id: str, guard: Guard | None) -> None:
        """Remember the guard with the session."""
        if guard is None:
            self.guards.pop(client_id, None)
        else:
            self.guards[client_id] = guard

    def forget(self, client_id: str) -> None:
        """Drop the guard of a session that is over."""
        self.guards.pop(client_id, None)

    def guard_of(self, session: Session) -> Guard:
        """Find a guard; of a session from the store only client id and user name are known."""
        guard = self.guards.get(session.client_id)
        return guard or AskingGuard(self.access, session.client_id, session.username)

    # Rules change.

    def reauthorize(self, now: float) -> None:
        """Forget what was allowed, and check subscriptions again: the rules changed.

        Sessions from the store whose client was not here since are checked when it comes.
        """
        self.guarded = self.access.guards_topics
        for client in self._clients.connections.values():
            client.forget_topics()
        is_under_way = bool(self._unchecked)
        self._unchecked = list(self.guards)
        if not is_under_way:
            self._reauthorize_some(now)

    def _reauthorize_some(self, now: float) -> None:
        for _ in range(min(_REAUTHORIZED_AT_ONCE, len(self._unchecked))):
            self.reauthorize_client(self._unchecked.pop(), now)
        if self._unchecked:
            self._timers.at(now + _REAUTHORIZE_PAUSE_S, self._reauthorize_some)

    def reauthorize_client(self, client_id: str, now: float) -> None:
        """Check one client again. MQTT can end its connection, not take back a subscription."""
        session = self._sessions.get(client_id)
        if session is None:
            return
        client = self._clients.connections.get(client_id)
        guard = self.guards.get(client_id)
        is_gone = guard is not None and not guard.is_welcome
        is_less = self.revoke(session, now)
        self.check_queue(session)
        if (is_less or is_gone) and client is not None:
            client.end(now, reasons.NOT_AUTHORIZED, why="no longer allowed")

    def revoke(self, session: Session, now: float) -> bool:
        """Take back the subscriptions it may no longer have; True if there were any."""
        guard = self.guards.get(session.client_id)
        if guard is None:
            return False
        lost = [
            s for s in session.subscriptions.values() if not guard.may_subscribe(s.filter, s.qos)
        ]
        for subscription in lost:
            self._subscriptions.remove(subscription, now)
            self._log(
                f"{session.client_id}: no longer allowed to subscribe {subscription.filter!r}"
            )
        return bool(lost)

    def check_queue(self, session: Session) -> None:
        """Hold back what waits for a session from the store and its client may no longer read.

        While the client was away only its client id and user name were known, so subscriptions
        that a rule for its role or its address had allowed were still in force.
        """
        if session.outbound.is_restored:
            guard = self.guards.get(session.client_id)
            readable = None if guard is None else ReadableTopics(guard, session)
            session.outbound.check_queue(None if readable is None else readable.may_read)
