"""The messages that wait for one session, oldest first. The middle of a long queue is on disk only.

    head     in memory, next to go
    stored   only in the store: a count, and the place behind which it begins
    tail     in memory, younger than what is stored

A short queue is all head. `unload` frees what the store has; `load` brings a page of it back.
Deliveries that are not in the store stay in memory, and so does everything behind them; and what
a session has from a shared subscription, which moves on when its client goes.

A queue counts what it holds in the broker's `Backlog`, whatever brings it in or takes it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sessions.journal.transaction import Delivery
from sessions.messages.backlog import Backlog, QueueLimits


class MessageQueue:
    __slots__ = (
        "_backlog",
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

    def __init__(self, backlog: Backlog, *, is_shared: bool = False) -> None:
        self._backlog = backlog
        self._is_shared = is_shared  # a shared subscription's own
        self.head: deque[Delivery] = deque()
        self._tail: deque[Delivery] | None = None  # there is one while something is stored
        self.stored_messages = 0
        self.stored_bytes = 0
        self.stored_after = 0  # the stored ones have a place above this
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

    def load_later(self) -> None:
        """Note that the next page was asked for."""
        self.is_loading = True

    @property
    def wants_page(self) -> bool:
        """Tell whether the head should be filled from the store."""
        return self.stored_messages > 0 and not self.is_loading

    def allows(self, limits: QueueLimits, size: int) -> bool:
        """Tell whether one more message of `size` bytes is within these limits and the broker's."""
        return self._backlog.allows(limits, len(self), self.bytes, size)

    def append(self, item: Delivery) -> None:
        size = item[0].envelope.size
        (self.head if self._tail is None else self._tail).append(item)
        self.memory_bytes += size
        backlog = self._backlog
        backlog.memory_bytes += size
        backlog.queued_messages += 1
        backlog.queued_bytes += size

    def popleft(self) -> Delivery:
        """Take out the oldest one; the head may not be empty."""
        item = self.head.popleft()
        size = item[0].envelope.size
        self.memory_bytes -= size
        backlog = self._backlog
        backlog.memory_bytes -= size
        backlog.queued_messages -= 1
        backlog.queued_bytes -= size
        return item

    def items(self) -> list[Delivery]:
        """List what is in memory, in order."""
        return [*self.head, *(self._tail or ())]

    def take(self, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take items out of what is in memory."""
        taken = [item for item in self.items() if is_wanted(item)]
        if taken:
            self.head = deque(item for item in self.head if not is_wanted(item))
            if self._tail is not None:
                self._tail = deque(item for item in self._tail if not is_wanted(item))
            size = sum(item[0].envelope.size for item in taken)
            self._count_in_memory(-size)
            self._backlog.queued_messages -= len(taken)
            self._backlog.queued_bytes -= size
        return taken

    def clear(self) -> list[Delivery]:
        """Empty the queue, in the store too; returns what was in memory."""
        items = self.items()
        self._backlog.queued_messages -= len(self)
        self._backlog.queued_bytes -= self.bytes
        self._count_in_memory(-self.memory_bytes)
        self.head = deque()
        self._tail = None
        self.stored_messages = self.stored_bytes = 0
        return items

    def _count_in_memory(self, size: int) -> None:
        self.memory_bytes += size
        self._backlog.memory_bytes += size

    def restore(self, messages: int, size: int, last_place: int) -> None:
        """Begin with messages that are all in the store."""
        self.stored_messages, self.stored_bytes = messages, size
        self.stored_last = last_place
        self._tail = deque()
        self._backlog.queued_messages += messages
        self._backlog.queued_bytes += size

    def unload(self, folded: int, keep: int) -> None:
        """Free what the tables hold up to group `folded`, but for `keep` messages at the front."""
        tail = self._tail
        if tail is None:
            items = list(self.head)
            kept, rest = items[:keep], items[keep:]
            if not rest or not self._may_go(rest[0], folded):
                return
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
        self._count_in_memory(-freed)

    def _may_go(self, item: Delivery, folded: int) -> bool:
        """Tell whether the tables hold this delivery, so that it can be read again from there."""
        _, options, place, txn = item
        if not place or (options.group is not None and not self._is_shared):
            return False
        return txn is None or txn.number <= folded

    def load(self, items: list[Delivery]) -> None:
        """Append a page of the store to the head.

        What was counted as stored and turns out not to be there is no longer counted.
        """
        self.is_loading = False
        for item in items:
            if item[2] > self.stored_last:
                break
            size = item[0].envelope.size
            self.head.append(item)
            self._count_in_memory(size)
            self.stored_messages -= 1
            self.stored_bytes -= size
            self.stored_after = item[2]
        if not items or items[-1][2] >= self.stored_last or self.stored_messages <= 0:
            self._backlog.queued_messages -= self.stored_messages
            self._backlog.queued_bytes -= self.stored_bytes
            self.stored_messages = self.stored_bytes = 0
            if self._tail is not None:
                self.head.extend(self._tail)
            self._tail = None
