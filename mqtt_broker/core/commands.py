"""Commands of operators: disconnect a client, end a session, drop a queue, publish, clear retained.

Each is done within the budget of a turn; what is more goes on the agenda and says at its end how
much it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import DISCONNECT
from mqtt_broker.codec.properties import NO_PROPERTIES, properties_of
from mqtt_broker.codec.reasons import may_carry
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.interfaces.payload_checks import problem_of
from mqtt_broker.core.interfaces.rows import NewMessage, Published
from mqtt_broker.topics.names import level_count
from mqtt_broker.topics.retained import RetainedScan
from sessions.messages.message import Envelope, Message
from sessions.messages.work import DELIVERY, DONE, MORE, VISITED
from sessions.outbound import Outbound

_PARTS: Final = 10  # of a share, of which a command takes one in a turn
_CLEARED_AT_ONCE: Final = 16 << 10  # bytes of a queue
_SCAN_STEPS: Final = 32


class Operator:
    """Does what operators ask of one broker."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def kick(self, client_id: str, reason: int, now: float, *, remove_session: bool) -> bool:
        """Disconnect a client, and end its session if asked; False: there is neither."""
        assert may_carry(DISCONNECT, reason)
        session = self._state.sessions.get(client_id)
        client = self._state.clients.connections.get(client_id)
        if session is None and client is None:
            return False
        if remove_session and session is not None and client is not None:
            session.set_expiry(0)
        if client is not None:
            client.end(now, reason, why="kicked")
        elif remove_session:
            self.expire(client_id, now)
        return True

    def expire(self, client_id: str, now: float) -> bool:
        """End the session of a client that is away; False: there is none, or it is connected."""
        session = self._state.sessions.get(client_id)
        if session is None or client_id in self._state.clients.connections:
            return False
        session.cancel_timers()
        self._state.lifecycle.expire(session, now)
        return True

    def clear_queue(self, client_id: str, now: float) -> int | None:
        """Drop all that waits for a client; return how many messages, None: there is no session."""
        session = self._state.sessions.get(client_id)
        if session is None:
            return None
        count = session.outbound.queued
        if count:
            self._state.agenda.add(_Clearing(self._state, session.outbound))
        return count

    def clear_retained(self, text: str, done: Callable[[int], None]) -> None:
        """Remove the retained messages that a filter matches."""
        scan = self._state.retained.scan(text)
        self._state.agenda.add(_RetainedClearing(self._state, scan, done))

    def publish(self, new: NewMessage, publisher: str, now: float) -> Published:
        """Publish a message; `publisher` stands for the client id.

        The rules of clients do not apply; topics that clients may not publish to, levels, schemas
        and the limits of retained messages do.
        """
        state, topic, payload = self._state, new.topic, new.payload
        if level_count(topic) > state.settings.topic_levels_max:
            return Published(reasons.TOPIC_NAME_INVALID, 0, "too many topic levels")
        router = state.router
        route = state.routes.cache.results.get(topic) or router.find(topic)
        if route.refusal:
            return Published(route.refusal, 0, "clients may not publish to this topic")
        if route.check is not None and payload:
            if why := problem_of(payload, route.check, is_text=False):
                return Published(reasons.PAYLOAD_FORMAT_INVALID, 0, why)
        properties = properties_of(new.section) if new.section else NO_PROPERTIES
        envelope = Envelope(
            topic, new.qos, new.retain, properties, new.section, len(payload), publisher, now
        )
        matched = len(route.targets) + len(route.groups)
        router.publish(Message(envelope, payload), None, now)
        envelope.forget_properties()
        return Published(0 if matched else reasons.NO_MATCHING_SUBSCRIBERS, matched, "")


class _Clearing:
    """Drops what waits for a client, some of it in a turn."""

    __slots__ = ("_left", "_outbound", "_state")

    def __init__(self, state: BrokerState, outbound: Outbound) -> None:
        self._state = state
        self._outbound = outbound
        self._left = outbound.queue_bytes

    def go_on(self, now: float) -> int:
        """Drop some more; see `WorkItem`."""
        work = self._state.work
        limit = work.narrow(_PARTS)
        while self._left > 0 and not self._outbound.is_over:
            work.spent += DELIVERY
            left = self._outbound.clear_queue(_CLEARED_AT_ONCE, now)
            self._left = min(self._left - _CLEARED_AT_ONCE, left)
            if work.is_over:
                break
        work.widen(limit)
        return MORE if self._left > 0 and not self._outbound.is_over else DONE


class _RetainedClearing:
    """Removes the retained messages that a filter matches, some of them in a turn."""

    __slots__ = ("_count", "_done", "_scan", "_state")

    def __init__(
        self, state: BrokerState, scan: RetainedScan[Message], done: Callable[[int], None]
    ) -> None:
        self._state = state
        self._scan = scan
        self._done = done
        self._count = 0

    def go_on(self, now: float) -> int:
        """Remove some more; see `WorkItem`."""
        work, scan = self._state.work, self._scan
        limit = work.narrow(_PARTS)
        while not scan.is_done:
            before = scan.steps
            found = scan.take(_SCAN_STEPS)
            for message in found:
                self._state.retained.remove(message.envelope.topic)
            self._count += len(found)
            work.spent += DELIVERY * len(found) + VISITED * (scan.steps - before)
            if work.is_over:
                break
        work.widen(limit)
        if not scan.is_done:
            return MORE
        self._done(self._count)
        return DONE
