"""How fast one client may send: a bucket of messages and one of bytes, filled as time goes.

A bucket holds a second's worth. What came was read already and is paid for afterwards, so a
bucket may be below zero: the client is not read until it is filled again.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.core.access import Rates

_WAIT_S_MAX: Final = 60.0  # one large packet at a small rate: longer would look like a dead peer


class Meter:
    """What one connection may send now, by its rates."""

    __slots__ = ("_at", "_bytes", "_messages", "rates")

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self._at = 0.0
        self._messages = rates.messages_per_s
        self._bytes = rates.bytes_per_s

    def take(self, messages: int, size: int, now: float) -> float:
        """Count them; how many seconds to wait before the next."""
        rates = self.rates
        elapsed = max(0.0, now - self._at) if self._at else 0.0
        self._at = now
        wait_s = 0.0
        limit = rates.messages_per_s
        if limit:
            self._messages = min(limit, self._messages + elapsed * limit) - messages
            wait_s = -self._messages / limit
        limit = rates.bytes_per_s
        if limit:
            self._bytes = min(limit, self._bytes + elapsed * limit) - size
            wait_s = max(wait_s, -self._bytes / limit)
        return min(max(wait_s, 0.0), _WAIT_S_MAX)
