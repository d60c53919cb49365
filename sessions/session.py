"""A client's Session State, which outlives its connections.

Identity, subscriptions, expiry and will are here, beside the inbound QoS 2 ids. Delivery to the
client is `sessions.outbound`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mqtt_broker.codec.constants import NEVER_EXPIRES
from mqtt_broker.codec.packets import Will
from qos import Receiver
from sessions.journal.rows import SessionRow, WillRow
from sessions.messages.message import Ids
from sessions.messages.outbox import NO_CONNECTION
from sessions.outbound import Outbound


class Cancellable(Protocol):
    """A deadline that somebody keeps for the session."""

    def cancel(self) -> None: ...


@dataclass(slots=True)
class Subscription:
    """A client's subscription to one Topic Filter."""

    session: Session
    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0  # 0: none

    @property
    def identifiers(self) -> Ids:
        return (self.identifier,) if self.identifier else ()


class Session:
    """State that outlives connections: subscriptions, expiry, will, and both directions of QoS."""

    __slots__ = (
        "client_id",
        "created_at",
        "expires_at",
        "expiry_interval",
        "expiry_timer",
        "outbound",
        "receiver",
        "recorded_expiry",
        "subscriptions",
        "username",
        "will",
        "will_at",
        "will_number",
        "will_timer",
    )

    def __init__(self, outbound: Outbound, *, receive_maximum: int, now: float) -> None:
        self.client_id = outbound.client_id
        self.outbound = outbound
        self.receiver = Receiver(receive_maximum)
        self.username: str | None = None
        self.created_at = now
        self.subscriptions: dict[str, Subscription] = {}
        self.expiry_interval = 0
        self.recorded_expiry = 0  # as the journal knows it
        self.expires_at = 0.0  # when away: the end of the session; inf: never
        self.expiry_timer: Cancellable | None = None
        self.will: Will | None = None
        self.will_at = 0.0  # when away: when the will is due
        self.will_timer: Cancellable | None = None
        self.will_number = 0  # of its will in the store, if the session itself is not there

    @property
    def is_online(self) -> bool:
        return self.outbound.outbox is not NO_CONNECTION

    @property
    def session_number(self) -> int:
        """Its number in the store; 0: it is not there."""
        return self.outbound.session_number

    @property
    def never_expires(self) -> bool:
        return self.expiry_interval == NEVER_EXPIRES

    # Connections come and go.

    def connected(
        self, username: str | None, expiry_interval: int, will: Will | None, receive_maximum: int
    ) -> None:
        """Take what a CONNECT says; one that outlives its connections is stored from now on."""
        if expiry_interval:
            self.outbound.store()
        self.username = username
        self.expiry_interval = expiry_interval
        self.cancel_timers()
        self.will = will  # [MQTT-3.1.2-7]
        self.will_at = self.expires_at = 0.0
        self.receiver.limit = receive_maximum

    def disconnected(self, now: float) -> None:
        """Work out when the session ends, if its client does not come back."""
        self.expires_at = float("inf") if self.never_expires else now + self.expiry_interval

    def set_expiry(self, interval: int) -> None:
        """Take the Session Expiry Interval of a DISCONNECT."""
        self.expiry_interval = interval

    def expire_with(self, timer: Cancellable) -> None:
        """Keep the timer that ends the session, to cancel it when the client is back."""
        self.expiry_timer = timer

    def cancel_timers(self) -> None:
        """Stop the clocks: the client is back, or the session is over."""
        for timer in (self.expiry_timer, self.will_timer):
            if timer is not None:
                timer.cancel()
        self.expiry_timer = self.will_timer = None

    def clear(self, now: float) -> None:
        """Forget every message, in the store too: the session ends."""
        journal = self.outbound.journal
        self.outbound.clear(now)
        if self.will_number and journal is not None:
            journal.on_end(self.will_number, [], now)
        self.will_number = 0

    # The will.

    def delay_will(self, due_at: float) -> None:
        """Note when the will is due, of a client that has gone."""
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

    # The store.

    def restore(self, row: SessionRow, will: Will | None) -> None:
        """Become what the store has of the session from an earlier life."""
        self.outbound.restore(row.sid, row.version)
        self.username = row.username
        self.expiry_interval = self.recorded_expiry = row.expiry_interval
        self.expires_at = row.expires_at
        self.will_at = row.will_at
        self.will = will

    def record(self) -> None:
        """Tell the journal what the session is now, beside its deliveries."""
        number, journal = self.outbound.session_number, self.outbound.journal
        if number and journal is not None:
            self.recorded_expiry = self.expiry_interval
            journal.on_session(self._row(number))

    def record_return(self, expiry_interval: int, will: Will | None) -> None:
        """Tell the journal that the client is back and asks for this, before the client is told."""
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

        Under a number of its own, to which nothing is delivered: after a crash it is a session
        that was connected and whose time is over.
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
            _will_row(self.will),
        )


def _will_row(will: Will | None) -> WillRow | None:
    if will is None:
        return None
    return WillRow(will.topic, will.payload, will.qos, will.retain, will.section)
