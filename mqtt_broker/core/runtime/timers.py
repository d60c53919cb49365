"""Timers: a heap of deadlines, driven by `now` from outside.

A keep alive is not moved at every packet; its timer asks, when it fires, when the client
was last heard and arms itself again. So a busy connection costs the heap nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from sessions.messages.work import TIMER, Work

Action = Callable[[float], None]


class Timer:
    """A deadline. A cancelled timer lets go of its action at once and is skipped later."""

    __slots__ = ("_order", "_timers", "action", "when")

    def __init__(self, timers: Timers, when: float, order: int, action: Action) -> None:
        self.when = when
        self._timers = timers
        self._order = order
        self.action: Action | None = action

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self._order) < (other.when, other._order)

    def fire(self, now: float) -> None:
        action, self.action = self.action, None
        assert action is not None
        action(now)

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self._timers.on_cancelled()


class Timers:
    __slots__ = ("_cancelled", "_heap", "_order", "earliest")

    def __init__(self) -> None:
        self.earliest = float("inf")  # no timer fires before; cheap to ask every turn
        self._heap: list[Timer] = []
        self._cancelled = 0  # how many of them will never fire
        self._order = 0

    def at(self, when: float, action: Action) -> Timer:
        self._order += 1
        timer = Timer(self, when, self._order, action)
        heapq.heappush(self._heap, timer)
        if when < self.earliest:
            self.earliest = when
        return timer

    def __len__(self) -> int:
        return len(self._heap)

    def on_cancelled(self) -> None:
        """Rebuild the heap when most of it is dead: a far deadline would stay for ever."""
        self._cancelled += 1
        if self._cancelled > 32 and self._cancelled * 2 > len(self._heap):
            self._heap = [timer for timer in self._heap if timer.action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next(self) -> float:
        """Return the next deadline; infinity when there is none."""
        heap = self._heap
        while heap and heap[0].action is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        self.earliest = heap[0].when if heap else float("inf")
        return self.earliest

    def run(self, now: float, work: Work) -> None:
        """Fire what is due, in the order of the deadlines, as far as the share of work goes."""
        while self.next() <= now:
            timer = heapq.heappop(self._heap)
            work.spent += TIMER
            timer.fire(now)
            if work.is_over:
                return
