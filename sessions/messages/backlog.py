"""Limits of what may wait, for one session and for all, and counts of what was dropped."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from sessions.messages.message import Message


class QueueFull(enum.Enum):
    """The policy of a full queue when another message comes."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEW = "drop_new"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one queue."""

    messages_max: int
    bytes_max: int


class DeadLetterSink(Protocol):
    """Takes messages that clients do not get, with the reason."""

    def add(self, reason: str, message: Message, client_id: str, why: str = "") -> None:
        """Take a message that this client does not get; `why` may explain the reason."""


@dataclass(slots=True)
class Backlog:
    """Limits of waiting messages, and the sums of all sessions that are held against them."""

    queue_messages_max: int = 100_000
    queue_bytes_max: int = 64 << 20
    queue_total_bytes_max: int = 1 << 30
    queue_full: QueueFull = QueueFull.DROP_OLDEST
    queue_qos0: bool = False
    inflight_max: int = 65_535
    memory_bytes_max: int = 0  # of messages that no store has; 0: no limit beside those above
    queued_messages: int = 0
    queued_bytes: int = 0  # of all of them, in memory or not
    memory_bytes: int = 0  # of those that are in memory
    published: int = 0  # PUBLISH packets that sessions have sent
    dropped: dict[str, int] = field(default_factory=dict)
    dead_letters: DeadLetterSink | None = None
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
        """Tell whether one more message of `size` bytes may wait that the store does not have."""
        return not self.memory_bytes_max or self.memory_bytes + size <= self.memory_bytes_max

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def lose(self, reason: str, message: Message, client_id: str) -> None:
        """Count a message that a client, or a shared subscription, does not get, and pass it on."""
        self.drop(reason)
        if self.dead_letters is not None:
            self.dead_letters.add(reason, message, client_id)
