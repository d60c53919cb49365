"""Find the largest of the queues when all of them together have no room left.

Queues are sorted by the power of two below their size, and small ones not at all: to be sorted
costs a queue next to nothing, and one that is found is at least a quarter of the largest.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

SMALL_BYTES: Final = 64 << 10  # the room of those below is nobody else's
_LEVELS: Final = 48
_LOOKED_AT: Final = 16  # queues of one level that are compared


class LargeQueue(Protocol):
    """A queue that can give up messages for others."""

    memory_bytes: int

    @property
    def claimed_bytes(self) -> int:
        """The bytes that wait in it and are not given up."""

    def shed(self, size: int, now: float) -> None:
        """Give up the oldest messages, of `size` bytes at least or all there are."""


def level_of(size: int) -> int:
    """Return the level of a queue of this size; 0: it is small."""
    return (size // SMALL_BYTES).bit_length()


class LargeQueues:
    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[dict[LargeQueue, None]] = [{} for _ in range(_LEVELS)]

    def move(self, queue: LargeQueue, before: int, after: int) -> None:
        """Put a queue from one level into another; 0: into none."""
        if before:
            self._levels[before].pop(queue, None)
        if after:
            self._levels[after][queue] = None

    def largest(self) -> LargeQueue | None:
        """Return the largest queue, or about; None: all of them are small."""
        for found in reversed(self._levels):
            if found:
                return max(islice(found, _LOOKED_AT), key=_claimed_bytes)
        return None

    def largest_in_memory(self) -> LargeQueue | None:
        """Return the queue that has most in memory, or about; None: none of them has much."""
        for found in reversed(self._levels):
            if found:
                largest = max(islice(found, _LOOKED_AT), key=_memory_bytes)
                if largest.memory_bytes >= SMALL_BYTES:
                    return largest
        return None


def _claimed_bytes(queue: LargeQueue) -> int:
    return queue.claimed_bytes


def _memory_bytes(queue: LargeQueue) -> int:
    return queue.memory_bytes
