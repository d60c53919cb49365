"""Detect a device that has been silent for too long, for the machines of several jobs.

It only handles times, by the broker's clock. The machine decides whether a silence counts, and
reports it.
"""

from __future__ import annotations


class Silence:
    """The state of one device: `heard_us` and `is_told`."""

    __slots__ = ("_limit_us", "heard_us", "is_told")

    def __init__(self, limit_us: int) -> None:
        self._limit_us = limit_us  # 0: never too long
        self.heard_us: int | None = None
        self.is_told = False  # that it is silent now

    def hear(self, at_us: int) -> int | None:
        """Note a message; return when the silence began that it ends, or None."""
        due_us = self._due_us()
        self.is_told = False
        self.heard_us = at_us if self.heard_us is None else max(at_us, self.heard_us)
        return due_us if due_us is not None and at_us > due_us else None

    def due_us(self) -> int | None:
        """Return the time at which silence is due to be reported; None if it has been."""
        return None if self.is_told else self._due_us()

    def tell(self) -> int | None:
        """Mark the silence as reported; return when it began, or None if it was reported."""
        due_us = self.due_us()
        self.is_told = self.is_told or due_us is not None
        return due_us

    def _due_us(self) -> int | None:
        if self.heard_us is None or not self._limit_us:
            return None
        return self.heard_us + self._limit_us
