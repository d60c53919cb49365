"""How long what only the telemetry log wants waits for company.

Nobody waits for QoS 0 to be on disk, so its rows share a commit: what came within `LOG_LINGER_S`
goes together. While a burst pours in, writing it would take its time from those who deliver it,
so it goes when the burst is over, or when there is enough of it.
"""

from __future__ import annotations

from typing import Final

LOG_LINGER_S: Final = 0.1


class LogLinger:
    def __init__(self, stream_bytes_max: int) -> None:
        self.bytes_enough: Final = stream_bytes_max * 3 // 4  # it waits no longer with so much
        self._burst_bytes: Final = stream_bytes_max // 8  # more than that in one linger: a burst
        self._due_at = 0.0  # 0: nothing lingers
        self._seen_bytes = 0  # that waited when the last linger was over

    def left_s(self, now: float) -> float:
        """How long it still waits, if nothing comes any more; it begins to when it did not."""
        if not self._due_at:
            self._due_at = now + LOG_LINGER_S
        return self._due_at - now

    def is_over(self, now: float, waiting_bytes: int) -> bool:
        """Whether it is to go, when so much waits; else it goes on."""
        if now < self._due_at:
            return False
        if waiting_bytes - self._seen_bytes < self._burst_bytes:
            return True
        self._seen_bytes = waiting_bytes
        self._due_at = now + LOG_LINGER_S
        return False

    def end(self) -> None:
        """It went."""
        self._due_at = 0.0
        self._seen_bytes = 0
