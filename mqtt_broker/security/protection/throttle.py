"""Before anything is read: how many connections, and how fast, from where. Pure.

A listener asks `open` for each connection it accepts, before TLS, and says `closed` when it is
over. A refusal is a name that is counted; the connection is closed without a word, since nothing
has been said on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqtt_broker.security.rules.identity import Address, line_of

_ADDRESSES_MAX: Final = 50_000  # whose rate is remembered


@dataclass(frozen=True, slots=True)
class ConnectLimits:
    """0: no limit."""

    connections_per_address: int = 0
    connects_per_s: float = 0.0  # of all together
    connects_per_s_per_address: float = 0.0
    burst_s: float = 5.0  # so many seconds' worth may come at once


class _Bucket:
    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at

    def take(self, rate: float, size: float, now: float) -> bool:
        self.tokens = min(size, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class Throttle:
    def __init__(self, limits: ConnectLimits) -> None:
        self.limits = limits
        self._open: dict[Address, int] = {}
        self._all: _Bucket | None = None
        self._buckets: dict[Address, _Bucket] = {}

    def open(self, address: Address | None, now: float) -> str:
        """Empty when it may come in, else the name of the limit. Unix sockets have no address."""
        limits = self.limits
        address = line_of(address)
        count = 0 if address is None else self._open.get(address, 0)
        if address is not None:
            if limits.connections_per_address and count >= limits.connections_per_address:
                return "connections_per_address"
            rate = limits.connects_per_s_per_address
            if rate and not self._bucket(address, rate, now).take(rate, self._size(rate), now):
                return "connects_per_s_per_address"
        rate = limits.connects_per_s
        if rate:
            if self._all is None:
                self._all = _Bucket(self._size(rate), now)
            if not self._all.take(rate, self._size(rate), now):
                return "connects_per_s"
        if address is not None:  # also without a limit: there may be one tomorrow
            self._open[address] = count + 1
        return ""

    def closed(self, address: Address | None) -> None:
        """One that was let in is over."""
        address = line_of(address)
        if address is None or address not in self._open:
            return
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _size(self, rate: float) -> float:
        return max(1.0, rate * self.limits.burst_s)

    def _bucket(self, address: Address, rate: float, now: float) -> _Bucket:
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= _ADDRESSES_MAX:
                full_after = self._size(rate) / rate
                self._buckets = {a: b for a, b in self._buckets.items() if now - b.at < full_after}
                if len(self._buckets) >= _ADDRESSES_MAX:
                    self._buckets.clear()
            bucket = self._buckets[address] = _Bucket(self._size(rate), now)
        return bucket
