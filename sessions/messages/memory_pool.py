"""Limit what clients make the broker keep of one kind, all of them together.

Each may have a part of what the others leave free. So many that take much leave something for those
who come later and take little, and the total holds.
"""

from __future__ import annotations


class MemoryPool:
    """Counts bytes against a limit; `part`: how many times as much as it takes one has to leave."""

    __slots__ = ("_part", "bytes", "bytes_max")

    def __init__(self, bytes_max: int, part: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._part = part

    def allows(self, own: int, more: int) -> bool:
        """Tell whether one that has `own` bytes may have `more` of them."""
        if more <= 0:
            return True
        return (own + more) * self._part <= self.bytes_max - self.bytes

    def count(self, change: int) -> None:
        """Count bytes that are kept from now on, or (below 0) no longer are."""
        self.bytes += change
