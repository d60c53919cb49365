"""What is to happen later: a heap of deadlines, driven by `now` from outside.

A keep alive is not moved at every packet; its timer asks, when it fires, when the client
was last heard and arms itself again. So a busy connection costs the heap nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[float], None]


class Timer:
    """One deadline. A cancelled timer lets go of its action at once and is skipped later."""

    __slots__ = ("_order", "action", "when")

    def __init__(self, when: float, order: int, action: Action) -> None:
        self.when = when
        self._order = order
        self.action: Action | None = action

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self._order) < (other.when, other._order)

    def cancel(self) -> None:
        self.action = None


class Timers:
    __slots__ = ("_heap", "_order", "earliest")

    def __init__(self) -> None:
        self.earliest = float("inf")  # no timer fires before; cheap to ask every turn
        self._heap: list[Timer] = []
        self._order = 0

    def at(self, when: float, action: Action) -> Timer:
        self._order += 1
        timer = Timer(when, self._order, action)
        heapq.heappush(self._heap, timer)
        if when < self.earliest:
            self.earliest = when
        return timer

    def next(self) -> float:
        """The next deadline; infinity when there is none."""
        heap = self._heap
        while heap and heap[0].action is None:
            heapq.heappop(heap)
        self.earliest = heap[0].when if heap else float("inf")
        return self.earliest

    def run(self, now: float) -> None:
        """Fire what is due, in the order of the deadlines."""
        while self.next() <= now:
            action = heapq.heappop(self._heap).action
            assert action is not None
            action(now)
