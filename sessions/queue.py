"""What waits for one session, oldest first. The middle of a long queue is on disk only.

    head     in memory, next to go
    stored   only in the store: a count, and the place behind which it begins
    tail     in memory, younger than what is stored

A short queue is all head. `evict` lets go of what the store has; `load` brings a page of it
back. Deliveries that are not in the store are never let go of, nor is what is behind them;
nor what a session has from a shared subscription, which moves on when its client goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sessions.journal.journal import Item


class MessageQueue:
    __slots__ = (
        "_is_shared",
        "_tail",
        "head",
        "is_loading",
        "memory_bytes",
        "stored_after",
        "stored_bytes",
        "stored_last",
        "stored_messages",
    )

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared  # it is a shared subscription's own
        self.head: deque[Item] = deque()
        self._tail: deque[Item] | None = None  # there is one while something is stored
        self.stored_messages = 0
        self.stored_bytes = 0
        self.stored_after = 0  # the stored ones have an n above this
        self.stored_last = 0  # and up to this
        self.is_loading = False
        self.memory_bytes = 0

    def __len__(self) -> int:
        tail = self._tail
        return len(self.head) + self.stored_messages + (0 if tail is None else len(tail))

    @property
    def bytes(self) -> int:
        return self.memory_bytes + self.stored_bytes

    @property
    def in_memory(self) -> int:
        return len(self.head) + (0 if self._tail is None else len(self._tail))

    @property
    def wants_page(self) -> bool:
        """Whether the head should be filled from the store."""
        return self.stored_messages > 0 and not self.is_loading

    def append(self, item: Item) -> None:
        (self.head if self._tail is None else self._tail).append(item)
        self.memory_bytes += item[0].envelope.size

    def popleft(self) -> Item:
        """The oldest one; the head may not be empty."""
        item = self.head.popleft()
        self.memory_bytes -= item[0].envelope.size
        return item

    def items(self) -> list[Item]:
        """What is in memory, in order."""
        return [*self.head, *(self._tail or ())]

    def take(self, is_wanted: Callable[[Item], bool]) -> list[Item]:
        """Take items out of what is in memory."""
        taken = [item for item in self.items() if is_wanted(item)]
        if taken:
            self.head = deque(item for item in self.head if not is_wanted(item))
            if self._tail is not None:
                self._tail = deque(item for item in self._tail if not is_wanted(item))
            self.memory_bytes -= sum(item[0].envelope.size for item in taken)
        return taken

    def restore(self, messages: int, size: int, n_last: int) -> None:
        """Everything is in the store: the beginning after a start."""
        self.stored_messages, self.stored_bytes = messages, size
        self.stored_last = n_last
        self._tail = deque()

    def evict(self, folded: int, keep: int) -> int:
        """Let go of what the store has, but for `keep` at the front; how many bytes that were."""
        tail = self._tail
        if tail is None:
            items = list(self.head)
            kept, rest = items[:keep], items[keep:]
            if not rest or not self._may_go(rest[0], folded):
                return 0
            self.head = deque(kept)
            tail = deque(rest)
            self.stored_after = rest[0][2] - 1
        freed = 0
        while tail and self._may_go(tail[0], folded):
            item = tail.popleft()
            freed += item[0].envelope.size
            self.stored_messages += 1
            self.stored_last = item[2]
        self._tail = tail
        self.stored_bytes += freed
        self.memory_bytes -= freed
        return freed

    def _may_go(self, item: Item, folded: int) -> bool:
        """Whether the tables hold this delivery, so that it can be read again from there."""
        _, grant, n, txn = item
        if not n or (grant.group is not None and not self._is_shared):
            return False
        return txn is None or txn.number <= folded

    def load(self, items: list[Item]) -> tuple[int, int]:
        """A page of the store: what stands behind the head now.

        Returns how many messages and bytes were counted as stored and are not there.
        """
        self.is_loading = False
        for item in items:
            if item[2] > self.stored_last:
                break
            size = item[0].envelope.size
            self.head.append(item)
            self.memory_bytes += size
            self.stored_messages -= 1
            self.stored_bytes -= size
            self.stored_after = item[2]
        missing = (0, 0)
        if not items or items[-1][2] >= self.stored_last or self.stored_messages <= 0:
            missing = (self.stored_messages, self.stored_bytes)
            self.stored_messages = self.stored_bytes = 0
            if self._tail is not None:
                self.head.extend(self._tail)
            self._tail = None
        return missing
