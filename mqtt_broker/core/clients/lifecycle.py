"""The end of sessions: with their connection, when their time is over, or on Clean Start.

What follows the end of a connection has an order: messages of shared subscriptions go to other
members, then the will is sent, then the session ends if it does. Each step may take many turns;
a new connection of the client waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.core.clients.authorization import Authorizer
from mqtt_broker.core.clients.registry import Client, ClientRegistry
from mqtt_broker.core.clients.wills import Wills
from mqtt_broker.core.interfaces.owners import Owners
from mqtt_broker.core.routing.subscriptions import Subscriptions
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.messages.work import DONE, MORE, WorkItem
from sessions.registry import SessionRegistry
from sessions.session import Session

_RETRY_S: Final = 0.1  # until a session expires that has something left to do before
_Step = Callable[[Session, float], None]


class Lifecycle:
    __slots__ = (
        "_authorizer",
        "_clients",
        "_counters",
        "_owners",
        "_runtime",
        "_sessions",
        "_subscriptions",
        "_timers",
        "_wills",
        "unfinished",
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
        self._runtime = runtime
        self._clients = clients
        self._counters = runtime.counters
        self._timers = runtime.timers
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._wills = wills
        self._authorizer = authorizer
        self._owners: Owners | None = None  # None: no other broker has these sessions
        # By client id, what is too much for one turn and comes before anything else of the client.
        self.unfinished: dict[str, WorkItem] = {}

    def share_with(self, owners: Owners) -> None:
        """Tell `owners` from now on what becomes of clients."""
        self._owners = owners

    def on_disconnected(self, session: Session, now: float) -> None:
        """Keep the session of a closed connection as long as it may live, and see to its will."""
        left = self._subscriptions.on_offline(session, now)  # first: its will may be for a group
        self._follow(left, session, self._schedule_will, now)

    def _schedule_will(self, session: Session, now: float) -> None:
        self._follow(self._wills.schedule(session, now), session, self._keep, now)

    def _keep(self, session: Session, now: float) -> None:
        """Let the session live on without a connection, if it does."""
        if not session.expiry_interval:  # [MQTT-3.1.2-23]
            self.end(session, now)
            return
        session.disconnected(now)
        if not session.never_expires:
            self.watch_expiry(session)
        if session.will_at:
            self.watch_will(session)
        session.record()

    def _follow(self, left: WorkItem | None, session: Session, then: _Step, now: float) -> None:
        """Go on with `then`, when what is left to do before is done."""
        if left is None:
            then(session, now)
            return
        step = _SessionStep(self, left, session, then)
        self.unfinished[session.client_id] = step
        self._runtime.agenda.add(step)

    def on_step_done(self, session: Session, then: _Step, now: float) -> None:
        """Go on with a session behind what was left to do."""
        del self.unfinished[session.client_id]
        try:
            then(session, now)
        finally:
            if session.client_id not in self.unfinished:
                self._clients.finish(session.client_id)

    def on_step_error(self, error: Exception) -> None:
        """Report an error of ours; what follows the step is done all the same."""
        self._runtime.on_bug(None, b"", error)

    def on_abandoned(self, client: Client, client_id: str) -> None:
        """Leave the session of a client that left before its CONNACK as it was."""
        arriving = self._clients.arriving
        if arriving.get(client_id) is not client:
            return
        del arriving[client_id]
        if self._owners is not None:
            self._owners.on_abandoned(client_id)
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
        if session.client_id in self.unfinished:
            session.expire_with(
                self._timers.at(now + _RETRY_S, lambda then: self.expire(session, then))
            )
            return
        self._counters.clients_expired += 1
        self.end(session, now)

    def watch_will(self, session: Session) -> None:
        """Arm the timer of a will that is due later."""
        session.send_will_with(
            self._timers.at(session.will_at, lambda then: self.send_will(session, then))
        )

    def send_will(self, session: Session, now: float) -> None:
        """Send a will that is due."""
        if session.client_id in self.unfinished:
            session.send_will_with(
                self._timers.at(now + _RETRY_S, lambda then: self.send_will(session, then))
            )
            return
        self._follow(self._wills.send(session, now), session, _record, now)

    def end(self, session: Session, now: float) -> None:
        """End a session: its will is due now, its subscriptions and messages go."""
        session.cancel_timers()
        will = self._wills.send(session, now) if session.will_at else None
        self._follow(will, session, self._end, now)

    def _end(self, session: Session, now: float) -> None:
        session.clear_will()
        was_stored = session.is_recorded
        if session.session_number:
            self._sessions.mark(session.client_id)
        self._sessions.remove(session, now)  # in the store, what it had goes with it
        self._authorizer.forget(session.client_id)
        self._subscriptions.remove_all(session, now)
        if self._owners is not None:
            self._owners.on_session_end(session.client_id, was_stored=was_stored)

    def leave(self, session: Session, now: float) -> None:
        """Forget a session that moves to another broker, with its will and its messages."""
        session.cancel_timers()
        self._sessions.give_away(session)
        self._authorizer.forget(session.client_id)
        self._subscriptions.remove_all(session, now)


def _record(session: Session, now: float) -> None:
    session.record()


class _SessionStep:
    """Something left to do for a session, and what follows; its client waits with a CONNECT."""

    __slots__ = ("_left", "_lifecycle", "_session", "_then")

    def __init__(self, lifecycle: Lifecycle, left: WorkItem, session: Session, then: _Step) -> None:
        self._lifecycle = lifecycle
        self._left = left
        self._session = session
        self._then = then

    def go_on(self, now: float) -> int:
        """Do some more; see `WorkItem`."""
        try:
            if self._left.go_on(now) == MORE:
                return MORE
        except Exception as error:
            self._lifecycle.on_step_error(error)
        self._lifecycle.on_step_done(self._session, self._then, now)
        return DONE
