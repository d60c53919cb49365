"""The end of sessions: with their connection, when their time is over, or on Clean Start."""

from __future__ import annotations

from mqtt_broker.core.clients.authorization import Authorizer
from mqtt_broker.core.clients.registry import Client, ClientRegistry
from mqtt_broker.core.clients.wills import Wills
from mqtt_broker.core.routing.subscriptions import Subscriptions
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.registry import SessionRegistry
from sessions.session import Session


class Lifecycle:
    __slots__ = (
        "_authorizer",
        "_clients",
        "_counters",
        "_sessions",
        "_subscriptions",
        "_timers",
        "_wills",
    )

    def __init__(
        self,
        runtime: Runtime,
        sessions: SessionRegistry,
        subscriptions: Subscriptions,
        wills: Wills,
        authorizer: Authorizer,
        clients: ClientRegistry,
    ) -> None:
        self._clients = clients
        self._counters = runtime.counters
        self._timers = runtime.timers
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._wills = wills
        self._authorizer = authorizer

    def on_disconnected(self, session: Session, now: float) -> None:
        """Keep the session of a closed connection as long as it may live, and see to its will."""
        self._subscriptions.on_offline(session, now)  # first: its will may be for such a group
        self._wills.schedule(session, now)
        if not session.expiry_interval:  # [MQTT-3.1.2-23]
            self.end(session, now)
        else:
            session.disconnected(now)
            if not session.never_expires:
                self.watch_expiry(session)
        session.record()

    def on_abandoned(self, client: Client, client_id: str) -> None:
        """Leave the session of a client that left before its CONNACK as it was."""
        arriving = self._clients.arriving
        if arriving.get(client_id) is not client:
            return
        del arriving[client_id]
        session = self._sessions.get(client_id)
        if session is not None and session.recorded_expiry != session.expiry_interval:
            session.record()
            self._sessions.mark(client_id)

    def watch_expiry(self, session: Session) -> None:
        """Arm the timer of a session that ends some day."""
        session.expire_with(
            self._timers.at(session.expires_at, lambda then: self.expire(session, then))
        )

    def expire(self, session: Session, now: float) -> None:
        """End a session whose time is over. [MQTT-4.1.0-1], [MQTT-4.1.0-2]"""
        self._counters.clients_expired += 1
        self.end(session, now)

    def end(self, session: Session, now: float) -> None:
        """End a session: its will is due now, its subscriptions and messages go."""
        session.cancel_timers()
        if session.will_at:
            self._wills.send(session, now)
        session.clear_will()
        if session.session_number:
            self._sessions.mark(session.client_id)
        session.clear(now)  # in the store, what it had goes with it
        self._subscriptions.remove_all(session, now)
        self._sessions.remove(session, now)
        self._authorizer.forget(session.client_id)
