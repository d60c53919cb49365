"""The frames that came from one sender: which are repeated, late or missing."""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.frames.layout import Drop

WINDOW: Final = 1024  # frames by which one may be late, and still be told from a repeated one
_BITS: Final = (1 << WINDOW) - 1


class Arrivals:
    """The sequence numbers that came, of the frames from one number and epoch to one number."""

    __slots__ = ("_highest", "_in_order", "_seen", "missing")

    def __init__(self) -> None:
        self._highest = 0
        self._in_order = 0  # the highest of those that may not be late
        self._seen = 0  # a bit for each of the last `WINDOW`; the lowest bit is `_highest`
        self.missing = 0  # between the first that came and the last

    def add(self, sequence: int, *, in_order: bool) -> Drop | None:
        """Note that a frame came; return why it is dropped, if it is."""
        ahead = sequence - self._highest
        if ahead > 0:
            if self._seen:
                self.missing += ahead - 1
            self._seen = (self._seen << ahead | 1) & _BITS if ahead < WINDOW else 1
            self._highest = sequence
        elif ahead <= -WINDOW:
            return Drop.LATE
        else:
            bit = 1 << -ahead
            if self._seen & bit:
                return Drop.REPEATED
            self._seen |= bit
            self.missing = max(0, self.missing - 1)
        if in_order:
            if sequence < self._in_order:
                return Drop.LATE
            self._in_order = sequence
        return None
