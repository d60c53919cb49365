"""How much may wait, for one session and for all, and what was dropped for which reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from sessions.messages.message import Message


class QueueFull(enum.Enum):
    """What a full queue does with the next message."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEW = "drop_new"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Of one queue."""

    messages_max: int
    bytes_max: int


class DeadLetterSink(Protocol):
    """Takes messages that clients do not get, with the reason."""

    def add(self, reason: str, message: Message, client_id: str, why: str = "") -> None:
        """`why` says more than the reason, if there is more to be said."""


@dataclass(slots=True)
class Backlog:
    """Shared by every session of a broker: limits, and the sums they are held against."""

    queue_messages_max: int = 100_000
    queue_bytes_max: int = 64 << 20
    queue_total_bytes_max: int = 1 << 30
    queue_full: QueueFull = QueueFull.DROP_OLDEST
    queue_qos0: bool = False
    inflight_max: int = 65_535
    memory_bytes_max: int = 0  # for what only memory has, beside a store; 0: the sums above do
    queued_messages: int = 0
    queued_bytes: int = 0  # of them, wherever they are
    memory_bytes: int = 0  # of those, in memory
    published: int = 0  # PUBLISH packets that sessions have written
    dropped: dict[str, int] = field(default_factory=dict)
    mourner: DeadLetterSink | None = None
    _limits: QueueLimits | None = None

    @property
    def limits(self) -> QueueLimits:
        """The limits of a queue that has none of its own."""
        if self._limits is None:
            self._limits = QueueLimits(self.queue_messages_max, self.queue_bytes_max)
        return self._limits

    def allows(self, limits: QueueLimits, messages: int, waiting_bytes: int, size: int) -> bool:
        """Tell whether one more message of `size` bytes may join a queue that has so many."""
        return (
            messages < limits.messages_max
            and waiting_bytes + size <= limits.bytes_max
            and self.queued_bytes + size <= self.queue_total_bytes_max
        )

    def has_memory(self, size: int) -> bool:
        """Whether one more of `size` bytes may wait that no store takes off our hands."""
        return not self.memory_bytes_max or self.memory_bytes + size <= self.memory_bytes_max

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def lose(self, reason: str, message: Message, client_id: str) -> None:
        """This client, or all of a shared subscription, will not get it."""
        self.drop(reason)
        if self.mourner is not None:
            self.mourner.add(reason, message, client_id)
