"""Time that is simulated: the next event is the earliest of those that were planned."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Final

EVENTS_MAX: Final = 2_000_000


class Events:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 1_000.0
        self.order = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self._events, (self.now + seconds, self.order, action))

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            assert self.order < EVENTS_MAX, "the simulation does not come to rest"
            action()
        self.now = max(self.now, end)
