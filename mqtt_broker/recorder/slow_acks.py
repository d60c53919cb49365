"""The slowest subscribers: the time from the arrival of a message to its acknowledgement."""

from __future__ import annotations

from typing import Final

_ENTRY_BYTES: Final = 600
_LEAST_S: Final = 0.5  # faster ones are not looked at
_HALF_LIFE_S: Final = 300.0


class SlowAck:
    """The slow acknowledgements of one client for messages of one topic."""

    __slots__ = ("client_id", "count", "last_at", "slowest_s", "sum_s", "topic")

    def __init__(self, client_id: str, topic: str) -> None:
        self.client_id = client_id
        self.topic = topic
        self.count = 0
        self.sum_s = 0.0
        self.slowest_s = 0.0
        self.last_at = 0.0

    def note(self, took_s: float, now: float) -> None:
        """Count one more slow acknowledgement."""
        self.count += 1
        self.sum_s += took_s
        self.slowest_s = max(self.slowest_s, took_s)
        self.last_at = now

    def weight(self, now: float) -> float:
        """Return by what it ranks: its slowest time, halved with each five minutes since."""
        return float(self.slowest_s * 0.5 ** (max(0.0, now - self.last_at) / _HALF_LIFE_S))


class SlowAcks:
    """Ranks clients and topics; when there are too many, the lighter half is forgotten."""

    __slots__ = ("_entries", "_entries_max", "least_s")

    def __init__(self, bytes_max: int) -> None:
        self.least_s = _LEAST_S
        self._entries_max = max(2, bytes_max // _ENTRY_BYTES)
        self._entries: dict[tuple[str, str], SlowAck] = {}

    def note(self, client_id: str, topic: str, took_s: float, now: float) -> None:
        """Note an acknowledgement that came late."""
        entry = self._entries.get((client_id, topic))
        if entry is None:
            if len(self._entries) >= self._entries_max:
                kept = self.slowest(self._entries_max // 2, now)
                self._entries = {(one.client_id, one.topic): one for one in kept}
            entry = self._entries[(client_id, topic)] = SlowAck(client_id, topic)
        entry.note(took_s, now)

    def slowest(self, count: int, now: float) -> list[SlowAck]:
        """Return the slowest, the slowest first."""
        return sorted(
            self._entries.values(),
            key=lambda entry: (-entry.weight(now), entry.client_id, entry.topic),
        )[:count]
