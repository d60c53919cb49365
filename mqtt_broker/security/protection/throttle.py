"""Limit how many connections an address may have, and how fast connections may come. Pure.

`admit` is called for each connection that is accepted, before TLS, and `release` when it is over.
A refusal is the name of the limit, for the counters; the connection is closed without an answer,
since nothing has been read from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqtt_broker.security.rules.identity import Address, network_of

_ADDRESSES_MAX: Final = 50_000  # whose rates are remembered


@dataclass(frozen=True, slots=True)
class ConnectLimits:
    """Limits of connections. 0: no limit."""

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
    """Counts open connections and the rate of new ones, by address and in all."""

    def __init__(self) -> None:
        self.open_connections: dict[Address, int] = {}
        self._all: _Bucket | None = None
        self.buckets: dict[Address, _Bucket] = {}

    def admit(self, limits: ConnectLimits, address: Address | None, now: float) -> str:
        """Count a connection, or return the name of the limit that refuses it.

        Unix sockets have no address.
        """
        address = network_of(address)
        count = 0 if address is None else self.open_connections.get(address, 0)
        if address is not None:
            if limits.connections_per_address and count >= limits.connections_per_address:
                return "connections_per_address"
            rate = limits.connects_per_s_per_address
            size = _bucket_size(limits, rate)
            if rate and not self._bucket(address, rate, size, now).take(rate, size, now):
                return "connects_per_s_per_address"
        rate = limits.connects_per_s
        if rate:
            size = _bucket_size(limits, rate)
            if self._all is None:
                self._all = _Bucket(size, now)
            if not self._all.take(rate, size, now):
                return "connects_per_s"
        if address is not None:  # also without a limit: there may be one tomorrow
            self.open_connections[address] = count + 1
        return ""

    def release(self, address: Address | None) -> None:
        """Stop counting a connection that was admitted."""
        address = network_of(address)
        if address is None or address not in self.open_connections:
            return
        self.open_connections[address] -= 1
        if not self.open_connections[address]:
            del self.open_connections[address]

    def _bucket(self, address: Address, rate: float, size: float, now: float) -> _Bucket:
        bucket = self.buckets.get(address)
        if bucket is None:
            if len(self.buckets) >= _ADDRESSES_MAX:
                full_after = size / rate
                self.buckets = {a: b for a, b in self.buckets.items() if now - b.at < full_after}
                if len(self.buckets) >= _ADDRESSES_MAX:
                    self.buckets.clear()
            bucket = self.buckets[address] = _Bucket(size, now)
        return bucket


def _bucket_size(limits: ConnectLimits, rate: float) -> float:
    return max(1.0, rate * limits.burst_s)
