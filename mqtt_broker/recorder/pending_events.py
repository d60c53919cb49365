"""Events of clients on their way to the disk: a bounded list that the server empties."""

from __future__ import annotations

from sys import getsizeof
from typing import Final

BYTES_MAX: Final = 4 << 20  # of events between two writes of the server: 10,000 and more
TEXT_CHARS_MAX: Final = 1_000  # of a topic or a reason, which may have 65,535
_EVENT_BYTES: Final = 150  # of one event, beside its texts

# client id, kind, code, topic or address, publisher or reason, milliseconds, messages
Event = tuple[str, int, int, str, str, int, int]


class PendingEvents:
    """Collects events while somebody takes them. What does not fit is counted."""

    __slots__ = ("_bytes", "_events", "_lost", "_lost_since_ms", "is_wanted")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._bytes = 0
        self.is_wanted = False
        self._lost = 0
        self._lost_since_ms = 0

    def __len__(self) -> int:
        return len(self._events)

    def collect(self) -> None:
        """Collect events from now on: somebody takes them."""
        self.is_wanted = True

    def add(
        self, client_id: str, kind: int, code: int, topic: str, why: str, at_ms: int, count: int
    ) -> None:
        """Add an event, unless nobody takes them or too many wait."""
        if not self.is_wanted:
            return
        if self._bytes >= BYTES_MAX:
            if not self._lost:
                self._lost_since_ms = at_ms
            self._lost += 1
            return
        topic, why = _shortened(topic), _shortened(why)
        self._bytes += _EVENT_BYTES + getsizeof(client_id) + getsizeof(topic) + getsizeof(why)
        self._events.append((client_id, kind, code, topic, why, at_ms, count))

    def take_lost(self) -> tuple[int, int]:
        """Return how many did not fit since the last time, and the time of the first."""
        lost, self._lost = self._lost, 0
        return lost, self._lost_since_ms

    def take(self) -> list[Event]:
        """Return the events that wait, and begin a new list."""
        taken, self._events = self._events, []
        self._bytes = 0
        return taken


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."
