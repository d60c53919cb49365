"""Limit how many requests a token, a session or an address may make.

A bucket each: `burst` requests at once, and `per_s` more each second. The table is bounded; what
was used least recently is forgotten, which gives it a full bucket again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEYS_MAX: Final = 10_000


class Rates:
    """The buckets of those who make requests."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, when

    def take(self, key: str, count: float = 1.0) -> float:
        """Take from a bucket; return 0, or the seconds until there is enough again."""
        now = self._clock()
        left, at = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        wait_s = 0.0 if left >= count else (count - left) / self._per_s
        self._buckets[key] = (left - count if not wait_s else left), now
        if len(self._buckets) > KEYS_MAX:
            self._buckets.popitem(last=False)
        return wait_s
