"""Limit how much a client may send and be sent in a second.

A bucket holds a second's worth. What came was read already, and what is sent is a whole turn's:
both are paid for afterwards, so a bucket may be below zero. Then the client is not read, or
nothing more is written to it, until the bucket is filled again. The clients of one listener may
share a bucket beside their own.
"""

from __future__ import annotations

import math
from typing import Final

from mqtt_broker.core.limits.client_limits import ANY_RATE, ClientLimits

_WAIT_S_MAX: Final = 60.0  # one large packet at a small rate: longer would look like a dead peer


class TokenBucket:
    """Tokens for messages and for bytes; a rate of 0 is no limit."""

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
        """Change the rates. That does not fill the bucket, unless there was no limit before."""
        if not self.messages_per_s:
            self._messages = messages_per_s
        if not self.bytes_per_s:
            self._bytes = bytes_per_s
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s

    def take(self, messages: int, size: int, now: float) -> float:
        """Count them and return how many seconds to wait before the next."""
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
    """The limits of a listener: of each of its clients, and of all together."""

    __slots__ = ("limits", "meter")

    def __init__(self, limits: ClientLimits, meter: TokenBucket | None) -> None:
        self.limits = limits
        self.meter = meter


def window_max(limits: ClientLimits) -> int:
    """Return how much may be under way to a client: at most a second's worth of its rate.

    More would be written in one turn and paid for by a silence as long as that.
    """
    rate = limits.sent_messages_per_s
    if rate == ANY_RATE:
        return limits.inflight_max
    return min(limits.inflight_max, max(1, math.ceil(rate)))


def known_rate(rate: float) -> float:
    """The rate as a bucket takes it: 0 for no limit."""
    return 0.0 if rate == ANY_RATE else rate
