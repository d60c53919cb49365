"""Who is served first of those who wait: everybody in turn, address by address. Pure.

One address that sends thousands of wrong passwords then waits for itself, and nobody else does.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """First in, first out for each key; the keys take turns. Bounded in all."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._by_key: dict[str, deque[Item]] = {}
        self._turns: deque[str] = deque()  # keys that have something
        self.count = 0

    def put(self, key: str, item: Item) -> bool:
        """False when there is no room.

        When it is full, a key that has more than its share makes no room for others, but neither
        does it get more: what is beyond is refused, whoever comes.
        """
        if self.count >= self._items_max:
            return False
        waiting = self._by_key.get(key)
        # Half of the room is for whoever waits for little.
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
