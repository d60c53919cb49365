"""The slowest subscribers: the time from the arrival of a message to its acknowledgement.

A client is ranked with its first slow acknowledgement. From then on the fast ones of the same topic
are counted as well, for the percentiles; those of all others cost one comparison. Of messages that
are acknowledged together, the oldest counts.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Final

from mqtt_broker.recorder.log_histogram import LogHistogram

LEAST_S: Final = 0.5  # an acknowledgement that takes so long is slow
_ENTRY_BYTES: Final = 800  # of one entry, beside its texts
_HALF_LIFE_S: Final = 300.0


class SlowAck:
    """The acknowledgements of one client for messages of one topic, since its first slow one."""

    __slots__ = ("client_id", "count", "last_at", "slowest_s", "sum_s", "times", "topic")

    def __init__(self, client_id: str, topic: str) -> None:
        self.client_id = client_id
        self.topic = topic
        self.count = 0  # of the slow ones; so are the sum, the slowest and the last
        self.sum_s = 0.0
        self.slowest_s = 0.0
        self.last_at = 0.0
        self.times = LogHistogram()  # of all

    def note(self, took_s: float, now: float) -> None:
        """Count one more acknowledgement."""
        self.times.add(took_s)
        if took_s < LEAST_S:
            return
        self.count += 1
        self.sum_s += took_s
        self.slowest_s = max(self.slowest_s, took_s)
        self.last_at = now

    def weight(self, now: float) -> float:
        """Return by what it ranks: its slowest time, halved with each five minutes since."""
        return float(self.slowest_s * 0.5 ** (max(0.0, now - self.last_at) / _HALF_LIFE_S))


class SlowAcks:
    """Ranks clients and topics; when there are too many, the lighter half is forgotten."""

    __slots__ = ("_bytes_max", "_clients", "_entries", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._entries: dict[tuple[str, str], SlowAck] = {}
        self._clients: set[str] = set()  # that have entries

    def note(self, client_id: str, topic: str, took_s: float, now: float) -> float:
        """Note an acknowledgement that was slow, or is of a client that was.

        Returns from how many seconds on the client's next ones are to be noted.
        """
        entry = self._entries.get((client_id, topic))
        if entry is None and took_s >= LEAST_S:
            if self.bytes >= self._bytes_max:
                self._forget_lighter(now)
            entry = self._entries[(client_id, topic)] = SlowAck(client_id, topic)
            self._clients.add(client_id)
            self.bytes += _weight(entry)
        if entry is not None:
            entry.note(took_s, now)
        return 0.0 if client_id in self._clients else LEAST_S

    def _forget_lighter(self, now: float) -> None:
        """Keep the slowest, as far as half of the bytes go."""
        ranked = self.slowest(len(self._entries) // 2, now)
        self._entries = {}
        self._clients = set()
        self.bytes = 0
        for entry in ranked:
            if self.bytes + _weight(entry) <= self._bytes_max // 2:
                self._entries[(entry.client_id, entry.topic)] = entry
                self._clients.add(entry.client_id)
                self.bytes += _weight(entry)

    def slowest(self, count: int, now: float) -> list[SlowAck]:
        """Return the slowest, the slowest first."""
        return sorted(
            self._entries.values(),
            key=lambda entry: (-entry.weight(now), entry.client_id, entry.topic),
        )[:count]


def _weight(entry: SlowAck) -> int:
    return _ENTRY_BYTES + getsizeof(entry.client_id) + getsizeof(entry.topic)
