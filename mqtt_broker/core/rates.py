"""How much one client may send and be sent: buckets, filled as time goes.

A bucket holds a second's worth. What came was read already, and what is sent is a whole turn's:
both are paid for afterwards, so a bucket may be below zero. Then the client is not read, or
nothing more is written to it, until it is filled again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Packet, Publish
from mqtt_broker.core import states
from mqtt_broker.core.access import Rates
from sessions.outbox import CONGESTED

if TYPE_CHECKING:
    from mqtt_broker.core.connection import Connection

_WAIT_S_MAX: Final = 60.0  # one large packet at a small rate: longer would look like a dead peer


class Meter:
    """What one connection may send now, by its rates."""

    __slots__ = ("_at", "_bytes", "_messages", "bytes_per_s", "messages_per_s")

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        self._at = 0.0
        self._messages = messages_per_s
        self._bytes = bytes_per_s

    def take(self, messages: int, size: int, now: float) -> float:
        """Count them; how many seconds to wait before the next."""
        elapsed = max(0.0, now - self._at) if self._at else 0.0
        self._at = now
        wait_s = 0.0
        limit = self.messages_per_s
        if limit:
            self._messages = min(limit, self._messages + elapsed * limit) - messages
            wait_s = -self._messages / limit
        limit = self.bytes_per_s
        if limit:
            self._bytes = min(limit, self._bytes + elapsed * limit) - size
            wait_s = max(wait_s, -self._bytes / limit)
        return min(max(wait_s, 0.0), _WAIT_S_MAX)


class Valve:
    """The way out to a client that may be sent so much: its outbox writes through it."""

    __slots__ = ("_connection", "is_shut", "meter")

    def __init__(self, connection: Connection, bytes_per_s: float) -> None:
        self._connection = connection
        self.meter = Meter(0.0, bytes_per_s)
        self.is_shut = False

    def write(self, data: bytes) -> int:
        connection = self._connection
        broker = connection.broker
        waiting = connection.link.write(data)
        wait_s = self.meter.take(0, len(data), broker.flushed_at)
        if wait_s > 0 and not self.is_shut and connection.state == states.ACTIVE:
            self.is_shut = True
            broker.stats.throttled += 1
            connection.outbox.state |= CONGESTED
            broker.timers.at(broker.flushed_at + wait_s, self._open)
        return waiting

    def _open(self, now: float) -> None:
        self.is_shut = False
        if self._connection.state == states.ACTIVE:
            self._connection.write_on(now)


def limit(connection: Connection, rates: Rates | None) -> None:
    """What the client may do from now on; a re-authentication fills no bucket."""
    if rates is None:
        connection.meter = None
        return
    meter = connection.meter
    if not (rates.messages_per_s or rates.bytes_per_s):
        connection.meter = None
    elif meter is None:
        connection.meter = Meter(rates.messages_per_s, rates.bytes_per_s)
    else:
        meter.messages_per_s, meter.bytes_per_s = rates.messages_per_s, rates.bytes_per_s
    if connection.valve is not None:
        connection.valve.meter.bytes_per_s = rates.sent_bytes_per_s
    elif rates.sent_bytes_per_s:  # at CONNECT: its outbox is made next
        connection.valve = Valve(connection, rates.sent_bytes_per_s)


def pay(
    connection: Connection,
    meter: Meter,
    packets: list[Packet | Violation],
    size: int,
    now: float,
) -> None:
    """Count what came; who is ahead of its rate is not read until it is not."""
    messages = 0
    for packet in packets:
        if type(packet) is Publish:
            messages += packet.count
    wait_s = meter.take(messages, size, now)
    if wait_s > 0 and not connection.is_throttled and connection.state == states.ACTIVE:
        connection.is_throttled = True
        connection.broker.stats.throttled += 1
        connection.link.pause_reading()
        connection.broker.timers.at(now + wait_s, lambda then: _read_on(connection))


def _read_on(connection: Connection) -> None:
    connection.is_throttled = False
    if connection.state == states.ACTIVE:
        connection.read_on()
