"""The messages that wait for one session, oldest first. The middle of a long queue is on disk only.

    head     in memory, sent next
    stored   in the store only: a count, and the place after which it begins
    tail     in memory, younger than the stored ones

A short queue has a head only. `unload` frees deliveries that the store has; `load` reads a page of
them back. Deliveries that are not in the store stay in memory, with all that follow them, and so
do those of shared subscriptions, which move to another member when the client disconnects.

A queue counts its contents in the broker's `Backlog`. When all queues together are full, the
largest gives up its oldest messages for one that comes to another; those that are in the store only
are *owed* until a page brings them. So a few absent clients cannot use up what all may have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from sessions.journal.transaction import Delivery
from sessions.messages.backlog import Backlog, QueueFull, QueueLimits
from sessions.messages.large_queues import SMALL_BYTES, level_of
from sessions.messages.work import DELIVERY


class QueueOwner(Protocol):
    """The session or the shared subscription whose queue it is."""

    def on_shed(self, items: list[Delivery], now: float) -> None:
        """Record that these are given up; they are out of the queue already."""

    def want_page(self, queue: MessageQueue) -> None:
        """Ask the store for the next page of the queue."""


class MessageQueue:
    __slots__ = (
        "_backlog",
        "_is_shared",
        "_level",
        "_level_above",
        "_level_below",
        "_owner",
        "_tail",
        "head",
        "is_loading",
        "memory_bytes",
        "owed_bytes",
        "stored_after",
        "stored_bytes",
        "stored_last",
        "stored_messages",
    )

    def __init__(self, backlog: Backlog, owner: QueueOwner, *, is_shared: bool = False) -> None:
        self._backlog = backlog
        self._owner = owner
        self._level = 0  # among the large queues
        self._level_above = SMALL_BYTES  # from this size on it has another level
        self._level_below = 0  # and below this one
        self._is_shared = is_shared  # the queue of a shared subscription itself
        self.head: deque[Delivery] = deque()
        self._tail: deque[Delivery] | None = None  # None while nothing is in the store only
        self.stored_messages = 0
        self.stored_bytes = 0
        self.stored_after = 0  # the places of the stored ones are greater than this
        self.stored_last = 0  # and at most this
        self.is_loading = False
        self.memory_bytes = 0
        self.owed_bytes = 0  # that are given up when the store has brought them

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
        """Note that the next page is requested."""
        self.is_loading = True

    @property
    def wants_page(self) -> bool:
        """Tell whether the head should be filled from the store."""
        return self.stored_messages > 0 and not self.is_loading

    @property
    def claimed_bytes(self) -> int:
        """The bytes that wait in it and are not given up."""
        return self.memory_bytes + self.stored_bytes - self.owed_bytes

    def make_room(
        self,
        limits: QueueLimits,
        size: int,
        dropped: list[Delivery],
        now: float,
        *,
        is_stored: bool,
    ) -> bool:
        """Drop older messages if need be; True when one more of `size` bytes may wait here."""
        backlog = self._backlog
        may_drop = backlog.queue_full is QueueFull.DROP_OLDEST
        if size > limits.bytes_max:  # nothing would be left of the queue
            return False
        while True:
            waiting_bytes = self.claimed_bytes
            is_within = len(self) < limits.messages_max and waiting_bytes + size <= limits.bytes_max
            has_memory = is_stored or backlog.has_memory(size)
            if is_within and has_memory and backlog.has_room(size):
                return may_drop or backlog.leaves_room(waiting_bytes, size)
            if not may_drop:
                return False
            if is_within and not has_memory:
                if backlog.spare_memory(self.memory_bytes, size, now):
                    continue
            elif is_within and backlog.spare(waiting_bytes, size, now):
                continue
            if not len(self):
                return False
            if not self.head:  # the oldest are in the store: they come, and then they go
                self.shed(size, now)
                return True
            dropped.append(self.popleft())

    def shed(self, size: int, now: float) -> None:
        """Give up the oldest messages, of `size` bytes at least or all there are."""
        work = self._backlog.work
        given: list[Delivery] = []
        while self.head and size > 0:
            item = self.popleft()
            work.spent += DELIVERY
            size -= item[0].envelope.size
            given.append(item)
        if size > 0 and self.stored_messages:
            owed = min(size, self.stored_bytes - self.owed_bytes)
            if owed > 0:
                self.owed_bytes += owed
                self._backlog.count_owed(owed)
            if not self.is_loading:
                self._owner.want_page(self)
        if given:
            self._owner.on_shed(given, now)

    def pay_owed(self, now: float) -> None:
        """Give up what is owed, of what a page has brought."""
        if self.owed_bytes:
            size = self.owed_bytes
            self._pay(size)
            self.shed(size, now)

    def _pay(self, size: int) -> None:
        paid = min(size, self.owed_bytes)
        self.owed_bytes -= paid
        self._backlog.count_owed(-paid)

    def _find_level(self) -> None:
        """Take the level among the large queues that fits its size."""
        level = level_of(self.bytes)
        if level != self._level:
            self._backlog.large.move(self, self._level, level)
            self._level = level
        self._level_above = SMALL_BYTES << level
        self._level_below = (SMALL_BYTES << level) >> 2 if level else 0

    def append(self, item: Delivery) -> None:
        size = item[0].envelope.size
        (self.head if self._tail is None else self._tail).append(item)
        self.memory_bytes += size
        backlog = self._backlog
        backlog.count_queued(1, size)
        backlog.count_memory(size)
        if self.memory_bytes + self.stored_bytes >= self._level_above:
            self._find_level()

    def popleft(self) -> Delivery:
        """Remove and return the oldest delivery; the head must not be empty."""
        item = self.head.popleft()
        size = item[0].envelope.size
        self.memory_bytes -= size
        backlog = self._backlog
        backlog.count_queued(-1, -size)
        backlog.count_memory(-size)
        if self.owed_bytes:
            self._pay(size)
        if self.memory_bytes + self.stored_bytes < self._level_below:
            self._find_level()
        return item

    def items(self) -> list[Delivery]:
        """List the deliveries in memory, in order."""
        return [*self.head, *(self._tail or ())]

    def take(self, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the wanted deliveries from those in memory."""
        taken = [item for item in self.items() if is_wanted(item)]
        if taken:
            self.head = deque(item for item in self.head if not is_wanted(item))
            if self._tail is not None:
                self._tail = deque(item for item in self._tail if not is_wanted(item))
            size = sum(item[0].envelope.size for item in taken)
            self._count_in_memory(-size)
            self._backlog.count_queued(-len(taken), -size)
            self._find_level()
        return taken

    def clear(self) -> list[Delivery]:
        """Empty the queue, also in the store; return the deliveries that were in memory."""
        items = self.items()
        self._backlog.count_queued(-len(self), -self.bytes)
        self._count_in_memory(-self.memory_bytes)
        self.head = deque()
        self._tail = None
        self.stored_messages = self.stored_bytes = 0
        self._pay(self.owed_bytes)
        self._find_level()
        return items

    def _count_in_memory(self, size: int) -> None:
        self.memory_bytes += size
        self._backlog.count_memory(size)

    def restore(self, messages: int, size: int, last_place: int) -> None:
        """Begin with messages that are in the store only."""
        self.stored_messages, self.stored_bytes = messages, size
        self.stored_last = last_place
        self._tail = deque()
        self._backlog.count_queued(messages, size)
        self._find_level()

    def unload(self, folded: int, keep: int) -> None:
        """Free deliveries that the tables have up to group `folded`, except the first `keep`."""
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
        """Tell whether the tables have this delivery, so that it can be read from there."""
        _, options, place, txn = item
        if not place or (options.group is not None and not self._is_shared):
            return False
        return txn is None or txn.number <= folded

    def load(self, items: list[Delivery]) -> None:
        """Append a page of the store to the head.

        Deliveries that were counted as stored and are not there are no longer counted.
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
            self._backlog.count_queued(-self.stored_messages, -self.stored_bytes)
            self.stored_messages = self.stored_bytes = 0
            if self._tail is not None:
                self.head.extend(self._tail)
            self._tail = None
            self._find_level()
