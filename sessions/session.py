"""A client's Session State, which outlives its connections.

This module has identity, subscriptions, expiry, will and the inbound QoS 2 ids;
`sessions.outbound` delivers to the client.
"""

from __future__ import annotations

from typing import Final, Protocol

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import NEVER_EXPIRES
from mqtt_broker.codec.packets import Will
from mqtt_broker.recorder import kinds
from qos import Receiver
from sessions.journal.rows import SessionRow, WillRow
from sessions.messages.memory_pool import MemoryPool
from sessions.messages.message import Ids
from sessions.messages.outbox import NO_CONNECTION
from sessions.outbound import Outbound

_IDS_FREE: Final = 8  # QoS 2 exchanges that a session may have open before they are counted
_ID_BYTES: Final = 96  # of one in a set
_WILL_BYTES: Final = 500  # of a will, beside what came with it


class Cancellable(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None: ...


class Subscription:
    """A client's subscription to one Topic Filter."""

    __slots__ = (
        "filter",
        "identifier",
        "no_local",
        "qos",
        "retain_as_published",
        "retain_handling",
        "session",
        "target",
    )

    def __init__(
        self,
        session: Session,
        filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None:
        self.session = session
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifier = identifier  # 0: none
        self.target: object = None  # where routes that have no other of the session deliver to

    def deliver_to(self, target: object) -> None:
        """Remember the target of this subscription alone, for all routes."""
        self.target = target

    @property
    def identifiers(self) -> Ids:
        return (self.identifier,) if self.identifier else ()


def state_bytes(client_id: str, username: str | None, will: WillRow | Will | None) -> int:
    """Return the bytes that a session keeps of these, beside what every session takes."""
    size = client_id.__sizeof__()
    if username is not None:
        size += username.__sizeof__()
    if will is not None:
        size += _WILL_BYTES + will.topic.__sizeof__() + len(will.payload) + len(will.section)
    return size


class Session:
    """State that outlives connections: subscriptions, expiry, will, and both directions of QoS."""

    __slots__ = (
        "_pool",
        "client_id",
        "created_at",
        "disconnected_at",
        "expires_at",
        "expiry_interval",
        "expiry_timer",
        "ids_bytes",
        "inbound",
        "outbound",
        "receive_maximum",
        "recorded_expiry",
        "state_bytes",
        "subscription_bytes",
        "subscription_levels",
        "subscriptions",
        "username",
        "will",
        "will_at",
        "will_delay",
        "will_number",
        "will_timer",
    )

    def __init__(
        self,
        outbound: Outbound,
        *,
        receive_maximum: int,
        now: float,
        pool: MemoryPool | None = None,
    ) -> None:
        self._pool = pool  # that names and wills of all sessions are counted in
        self.state_bytes = 0  # of this one, in the pool
        self.client_id = outbound.client_id
        self.outbound = outbound
        self.receive_maximum = receive_maximum  # the limit of `inbound` is what there is room for
        self.inbound = Receiver(min(receive_maximum, _IDS_FREE))
        self.ids_bytes = 0  # of exchanges that there is room for, in the pool
        self.username: str | None = None
        self.created_at = now
        self.subscriptions: dict[str, Subscription] = {}
        self.subscription_bytes = 0  # counted against the limit of a client
        self.subscription_levels = 0  # levels of its filters that may overlap
        self.expiry_interval = 0
        self.recorded_expiry = 0  # the Session Expiry Interval in the journal
        self.disconnected_at = 0.0  # 0: not known
        self.expires_at = 0.0  # while disconnected: the end of the session; inf: never
        self.expiry_timer: Cancellable | None = None
        self.will: WillRow | None = None
        self.will_delay = 0  # that it asks for, in seconds
        self.will_at = 0.0  # when away: when the will is due
        self.will_timer: Cancellable | None = None
        self.will_number = 0  # of its will in the store, if the session itself is not there

    @property
    def is_online(self) -> bool:
        return self.outbound.outbox is not NO_CONNECTION

    @property
    def session_number(self) -> int:
        """The number of the session in the store; 0: not stored."""
        return self.outbound.session_number

    @property
    def is_recorded(self) -> bool:
        """Tell whether the store has the session, or its will."""
        return self.outbound.session_number > 0 or self.will_number > 0

    @property
    def never_expires(self) -> bool:
        return self.expiry_interval == NEVER_EXPIRES

    def count_subscription(self, size: int, levels: int) -> None:
        """Count a new or removed filter against the limits of the client."""
        self.subscription_bytes += size
        self.subscription_levels += levels

    # Connections.

    def connected(
        self, username: str | None, expiry_interval: int, will: Will | None, receive_maximum: int
    ) -> None:
        """Apply a CONNECT; a session that outlives its connections is stored from now on."""
        if expiry_interval:
            self.outbound.store()
        self.username = username
        self.expiry_interval = expiry_interval
        self.cancel_timers()
        self.will = _will_row(will)  # [MQTT-3.1.2-7]
        self.will_delay = 0
        if will is not None:
            self.will_delay = will.properties.number(prop.WILL_DELAY_INTERVAL)
        self.will_at = self.expires_at = 0.0
        self.receive_maximum = receive_maximum
        self.fit_ids()
        self._count_state()

    def disconnected(self, now: float) -> None:
        """Set the time at which the session ends if its client does not reconnect."""
        self.disconnected_at = now
        self.expires_at = float("inf") if self.never_expires else now + self.expiry_interval

    def set_expiry(self, interval: int) -> None:
        """Set the Session Expiry Interval of a DISCONNECT."""
        self.expiry_interval = interval

    def expire_with(self, timer: Cancellable) -> None:
        """Keep the timer that ends the session, to cancel it when the client is back."""
        self.expiry_timer = timer

    def cancel_timers(self) -> None:
        """Cancel the timers: the client has reconnected, or the session has ended."""
        for timer in (self.expiry_timer, self.will_timer):
            if timer is not None:
                timer.cancel()
        self.expiry_timer = self.will_timer = None

    def clear(self, now: float) -> None:
        """Forget every message, also in the store: the session ends."""
        journal = self.outbound.journal
        self._record_end(now)
        self.outbound.clear(now)
        if self.will_number and journal is not None:
            journal.on_end(self.will_number)
        self.will_number = 0
        self._count_in_pool(0)
        self._count_ids(0)

    def give_away(self) -> None:
        """Forget everything, but not in the store: another broker goes on with it."""
        self.outbound.give_away()
        self._count_in_pool(0)
        self._count_ids(0)

    def _record_end(self, now: float) -> None:
        outbound = self.outbound
        recorder = outbound.backlog.recorder
        if recorder is not None:
            how = kinds.REPLACED
            if not self.expiry_interval:
                how = kinds.NOT_KEPT
            elif self.expires_at and now >= self.expires_at:
                how = kinds.EXPIRED
            recorder.session_ended(
                outbound, how, len(outbound.window.unacked), outbound.queued, now
            )

    # Inbound QoS 2 exchanges.

    @property
    def spares_ids(self) -> bool:
        """Tell whether there is room for many more exchanges than are open."""
        limit = self.inbound.limit
        return limit > _IDS_FREE and len(self.inbound.ids) * 4 < limit

    def fit_ids(self) -> None:
        """Make room for the exchanges that are open, and twice as many."""
        self._make_room(2 * len(self.inbound.ids))

    def allow_more_ids(self) -> bool:
        """Make room for more exchanges; False: the client may have no more, or there is none."""
        before = self.inbound.limit
        limit = min(self.receive_maximum, 2 * before)
        size = _ID_BYTES * (limit - before)
        if not size or (self._pool is not None and not self._pool.allows(self.ids_bytes, size)):
            return False
        self._make_room(limit)
        return True

    def _make_room(self, count: int) -> None:
        limit = self.inbound.limit = min(self.receive_maximum, max(count, _IDS_FREE))
        size = _ID_BYTES * max(0, max(limit, len(self.inbound.ids)) - _IDS_FREE)
        self._count_ids(size)

    def _count_ids(self, size: int) -> None:
        if self._pool is not None:
            self._pool.count(size - self.ids_bytes)
        self.ids_bytes = size

    def _count_state(self) -> None:
        """Count the names and the will that are kept now."""
        self._count_in_pool(state_bytes(self.client_id, self.username, self.will))

    def _count_in_pool(self, size: int) -> None:
        if self._pool is not None:
            self._pool.count(size - self.state_bytes)
        self.state_bytes = size

    # The will.

    def delay_will(self, due_at: float) -> None:
        """Set the time at which the will of a disconnected client is due."""
        self.will_at = due_at

    def send_will_with(self, timer: Cancellable) -> None:
        """Keep the timer that sends the will, to cancel it when the client is back."""
        self.will_timer = timer

    def clear_will(self) -> None:
        """Forget the will: it was sent, or must not be. [MQTT-3.1.2-10]"""
        self.will = None
        self.will_at = 0.0
        if self.will_timer is not None:
            self.will_timer.cancel()
            self.will_timer = None
        if self.state_bytes:
            self._count_state()

    # The store.

    def restore(self, row: SessionRow, will_delay: int) -> None:
        """Become what the store has of the session from an earlier life."""
        self.outbound.restore(row.sid, row.version)
        self.username = row.username
        self.expiry_interval = self.recorded_expiry = row.expiry_interval
        self.expires_at = row.expires_at
        if 0 < row.expires_at < float("inf"):
            self.disconnected_at = row.expires_at - row.expiry_interval
        self.will_at = row.will_at
        self.will = row.will
        self.will_delay = will_delay
        self._count_state()

    def record(self) -> None:
        """Record the session in the journal, without its deliveries."""
        number, journal = self.outbound.session_number, self.outbound.journal
        if number and journal is not None:
            self.recorded_expiry = self.expiry_interval
            journal.on_session(self._row(number))

    def record_return(self, expiry_interval: int, will: Will | None) -> None:
        """Record that the client has reconnected, before CONNACK is sent."""
        number, journal = self.outbound.session_number, self.outbound.journal
        if number and journal is not None:
            self.recorded_expiry = expiry_interval
            row = self._row(number)
            row.is_online = True
            row.expires_at = row.will_at = 0.0
            row.expiry_interval = expiry_interval
            row.will = _will_row(will)
            journal.on_session(row)

    def record_will(self) -> None:
        """Store the will of a connected client whose session is not stored itself.

        It has a number of its own, without deliveries: after a crash it looks like a connected
        session that has expired.
        """
        journal = self.outbound.journal
        if self.will is not None and not self.outbound.session_number and journal is not None:
            self.will_number = journal.new_session_number()
            journal.on_session(self._row(self.will_number))

    def _row(self, number: int) -> SessionRow:
        is_online = self.is_online
        return SessionRow(
            number,
            self.client_id,
            self.username,
            self.outbound.version,
            self.created_at,
            self.expiry_interval,
            is_online,
            0.0 if is_online else self.expires_at,
            0.0 if is_online else self.will_at,
            self.will,
        )


def _will_row(will: Will | None) -> WillRow | None:
    if will is None:
        return None
    return WillRow(will.topic, will.payload, will.qos, will.retain, will.section)
