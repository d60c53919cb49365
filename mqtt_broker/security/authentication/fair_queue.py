"""A queue that serves its keys in turn, here client addresses. Pure.

An address that sends thousands of wrong passwords delays itself, and no other.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """First in, first out for each key; the keys take turns. The total is bounded."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._by_key: dict[str, deque[Item]] = {}
        self._turns: deque[str] = deque()  # keys that have something
        self.count = 0

    def put(self, key: str, item: Item) -> bool:
        """Add an item; False when the queue is full.

        In a queue that is more than half full, a key gets no more than its share. Items that wait
        are never dropped for others.
        """
        if self.count >= self._items_max:
            return False
        waiting = self._by_key.get(key)
        # Half of the queue is for keys with few items.
        if waiting is not None and self.count >= self._items_max // 2:
            if len(waiting) >= self._items_max // (2 * len(self._by_key)) and len(self._by_key) > 1:
                return False
        if waiting is None:
            waiting = self._by_key[key] = deque()
            self._turns.append(key)
        waiting.append(item)
        self.count += 1
        return True

    def take(self) -> Item | None:
        """Remove and return the next item; None when the queue is empty."""
        if not self._turns:
            return None
        key = self._turns.popleft()
        waiting = self._by_key[key]
        item = waiting.popleft()
        self.count -= 1
        if waiting:
            self._turns.append(key)
        else:
            del self._by_key[key]
        return item
