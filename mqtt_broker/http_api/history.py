"""An hour of the broker's numbers, kept in fixed arrays: one sample each five seconds.

Rates are means of their five seconds. A sample that is missing, because the loop was late, is nan.
`take` and `History.read` are called on the broker's loop.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final

STEP_S: Final = 5
SLOTS: Final = 720  # an hour
COUNTED: Final = (  # counters, kept as rates a second
    "messages_in", "messages_out", "bytes_in", "bytes_out", "connects", "disconnects", "drops",
    "cpu",
)  # fmt: skip
MEASURED: Final = (
    "clients_online", "sessions", "subscriptions", "retained", "queued_messages", "unread_bytes",
    "loop_late_ms", "memory_bytes", "store_lag", "ack_latency_p50_ms", "ack_latency_p99_ms",
)  # fmt: skip
_NAN: Final = float("nan")


class History:
    """The samples of the last hour, a ring for each series."""

    def __init__(self) -> None:
        self._series = {name: array("d", [_NAN]) * SLOTS for name in (*COUNTED, *MEASURED)}
        self._slot = -1  # of the newest sample, counted from the epoch in steps
        self._before: Mapping[str, float] | None = None
        self._before_at = 0.0
        self.rates = dict.fromkeys(COUNTED, 0.0)  # of the newest sample

    def take(self, now: float, counters: Mapping[str, float], values: Mapping[str, float]) -> None:
        """Keep a sample: counters since the start, and what was measured now."""
        slot = int(now // STEP_S)
        if self._slot < 0 or slot - self._slot > SLOTS:
            self._slot = slot - SLOTS
        while self._slot < slot:
            self._slot += 1
            for ring in self._series.values():
                ring[self._slot % SLOTS] = _NAN
        if self._before is not None and now > self._before_at:
            seconds = now - self._before_at
            for name in COUNTED:
                rate = max(0.0, counters[name] - self._before[name]) / seconds
                self.rates[name] = rate
                self._series[name][slot % SLOTS] = rate
        self._before, self._before_at = counters, now
        for name in MEASURED:
            self._series[name][slot % SLOTS] = values[name]

    def read(self, seconds: float) -> tuple[float, dict[str, list[float | None]]]:
        """Return when the first of the last samples began, and the samples; None: missing."""
        count = min(SLOTS, max(1, math.ceil(seconds / STEP_S)))
        first = self._slot - count + 1
        found = {
            name: [
                None if math.isnan(ring[slot % SLOTS]) else ring[slot % SLOTS]
                for slot in range(first, self._slot + 1)
            ]
            for name, ring in self._series.items()
        }
        return float(first * STEP_S), found
