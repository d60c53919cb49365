"""How much one client may send and be sent: buckets, filled as time goes.

A bucket holds a second's worth. What came was read already, and what is sent is a whole turn's:
both are paid for afterwards, so a bucket may be below zero. Then the client is not read, or
nothing more is written to it, until it is filled again. The clients of one listener may share a
bucket beside their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Packet, Publish
from mqtt_broker.core.clients import states
from mqtt_broker.core.limits.client_limits import ANY_RATE, ClientLimits
from sessions.messages.outbox import CONGESTED

if TYPE_CHECKING:
    from mqtt_broker.core.clients.connection import Connection

_WAIT_S_MAX: Final = 60.0  # one large packet at a small rate: longer would look like a dead peer


class TokenBucket:
    """What may be sent now, by its rates; 0: as fast as one likes."""

    __slots__ = ("_at", "_bytes", "_messages", "bytes_per_s", "messages_per_s", "shared")

    def __init__(
        self, messages_per_s: float, bytes_per_s: float, shared: TokenBucket | None = None
    ) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        self.shared = shared  # others pay into it too
        self._at = 0.0
        self._messages = messages_per_s
        self._bytes = bytes_per_s

    def set(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Other rates from now on. A bucket is not filled by that, unless there was none."""
        if not self.messages_per_s:
            self._messages = messages_per_s
        if not self.bytes_per_s:
            self._bytes = bytes_per_s
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s

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
        if self.shared is not None:
            wait_s = max(wait_s, self.shared.take(messages, size, now))
        return min(max(wait_s, 0.0), _WAIT_S_MAX)


class ListenerLimits:
    """What a listener lets each of its clients have, and what they may send together."""

    __slots__ = ("limits", "meter")

    def __init__(self, limits: ClientLimits, meter: TokenBucket | None) -> None:
        self.limits = limits
        self.meter = meter


class SendThrottle:
    """The way out to a client that may be sent so much: its outbox writes through it."""

    __slots__ = ("_connection", "is_shut", "meter")

    def __init__(self, connection: Connection, meter: TokenBucket) -> None:
        self._connection = connection
        self.meter = meter
        self.is_shut = False

    def write(self, data: bytes) -> int:
        connection = self._connection
        broker = connection.broker
        meter = self.meter
        waiting = connection.link.write(data)
        messages = count_publishes(data) if meter.messages_per_s else 0
        wait_s = meter.take(messages, len(data), broker.flushed_at)
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


def count_publishes(data: bytes) -> int:
    """How many PUBLISH packets stand in what is written: whole packets, ours, so not checked."""
    count = at = 0
    size = len(data)
    while at + 1 < size:
        count += data[at] >> 4 == PUBLISH
        at += 1
        length = shift = 0
        while data[at] >= 0x80:
            length |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
        at += 1 + (length | data[at] << shift)
    return count


def window_max(limits: ClientLimits) -> int:
    """How much may be under way to a client: no more than a second's worth of what it is sent.

    More would be written in one turn and paid for by a silence as long as that.
    """
    rate = limits.sent_messages_per_s
    if rate == ANY_RATE:
        return limits.inflight_max
    return min(limits.inflight_max, max(1, math.ceil(rate)))


def limit(connection: Connection, limits: ClientLimits, shared: TokenBucket | None) -> None:
    """How fast the client may be from now on; a re-authentication fills no bucket."""
    messages, size = _rate(limits.messages_per_s), _rate(limits.bytes_per_s)
    if not (messages or size or shared is not None):
        connection.meter = None
    elif connection.meter is None:
        connection.meter = TokenBucket(messages, size, shared)
    else:
        connection.meter.set(messages, size)
    messages, size = _rate(limits.sent_messages_per_s), _rate(limits.sent_bytes_per_s)
    if connection.valve is not None:
        connection.valve.meter.set(messages, size)
    elif messages or size:
        connection.valve = SendThrottle(connection, TokenBucket(messages, size))
        if connection.state == states.ACTIVE:  # else its outbox is made next
            connection.outbox.write = connection.valve.write


def _rate(found: float) -> float:
    return 0.0 if found == ANY_RATE else found


def pay(
    connection: Connection,
    meter: TokenBucket,
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
