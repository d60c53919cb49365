"""Messages that did not reach their client, collected until the turn is over."""

from __future__ import annotations

from collections import deque
from typing import Final

from sessions.messages.message import Message

WAITING_MAX: Final = 10_000  # of one turn; what is more is only counted
DeadLetter = tuple[str, Message, str, str]  # reason, message, client id, detail


class DeadLetterBuffer:
    """Collects dead letters of some reasons; the broker publishes them at the turn's end."""

    __slots__ = ("_overflow", "_waiting", "reasons")

    def __init__(self, reasons: frozenset[str]) -> None:
        self.reasons = reasons
        self._overflow = 0
        self._waiting: deque[DeadLetter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reason: str, message: Message, client_id: str, detail: str = "") -> None:
        """Keep the message, if its reason is wanted and it is no dead letter itself."""
        if reason not in self.reasons or message.envelope.topic.startswith("$"):
            return
        if len(self._waiting) >= WAITING_MAX:
            self._overflow += 1
            return
        self._waiting.append((reason, message, client_id, detail))

    def pop(self) -> DeadLetter:
        """Take the oldest out."""
        return self._waiting.popleft()

    def take_overflow(self) -> int:
        """Return how many did not fit since the last call."""
        overflow, self._overflow = self._overflow, 0
        return overflow
