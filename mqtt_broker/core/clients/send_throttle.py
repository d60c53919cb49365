"""Limit how fast a client is sent messages: its outbox writes through a token bucket."""

from __future__ import annotations

from collections.abc import Callable

from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.core.limits.token_bucket import TokenBucket
from mqtt_broker.core.runtime.runtime import Runtime


class SendThrottle:
    """Shuts when the bucket is below zero, and opens again by a timer."""

    __slots__ = (
        "_counters",
        "_on_open",
        "_on_shut",
        "_outboxes",
        "_timers",
        "_write",
        "bucket",
        "is_shut",
    )

    def __init__(
        self,
        bucket: TokenBucket,
        runtime: Runtime,
        write: Callable[[bytes], int],
        on_shut: Callable[[], bool],
        on_open: Callable[[float], None],
    ) -> None:
        self.bucket = bucket
        self._counters = runtime.counters
        self._outboxes = runtime.outboxes
        self._timers = runtime.timers
        self._write = write  # of the link
        self._on_shut = on_shut  # False: the connection is not to be throttled now
        self._on_open = on_open
        self.is_shut = False

    def write(self, data: bytes) -> int:
        """Write to the link; returns how many bytes wait there."""
        bucket = self.bucket
        now = self._outboxes.flushed_at
        waiting = self._write(data)
        messages = count_publishes(data) if bucket.messages_per_s else 0
        wait_s = bucket.take(messages, len(data), now)
        if wait_s > 0 and not self.is_shut and self._on_shut():
            self.is_shut = True
            self._counters.throttled += 1
            self._timers.at(now + wait_s, self._open)
        return waiting

    def _open(self, now: float) -> None:
        self.is_shut = False
        self._on_open(now)


def count_publishes(data: bytes) -> int:
    """Count the PUBLISH packets in data: whole packets of our own, so unchecked."""
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
