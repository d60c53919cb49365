"""The busiest topics: counters of a bounded number of them."""

from __future__ import annotations

from sys import getsizeof
from typing import Final

from mqtt_broker.recorder.runs import TopicFigures

FIGURES_BYTES: Final = 320  # of one topic, beside its text
_WINDOW_MS: Final = 5_000  # that rates are measured over


class BusyTopics:
    """Counts messages by topic. When there are too many topics, the quieter half is forgotten.

    A topic that comes back begins anew: its figures are those since `first_ms`.
    """

    __slots__ = ("_bytes_max", "_figures", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._figures: dict[str, TopicFigures] = {}

    def __len__(self) -> int:
        return len(self._figures)

    def find(self, topic: str, now_ms: int) -> TopicFigures:
        """Return the figures of a topic, or begin to count it."""
        found = self._figures.get(topic)
        if found is None:
            if self.bytes >= self._bytes_max:
                self._forget_half(now_ms)
            found = self._figures[topic] = TopicFigures(topic, now_ms)
            self.bytes += _weight(topic)
        elif now_ms - found.window_ms >= _WINDOW_MS:
            found.begin_window(now_ms)
        return found

    def _forget_half(self, now_ms: int) -> None:
        """Keep the busiest topics, as far as half of the bytes go."""
        ranked = self.busiest(len(self._figures) // 2, now_ms)
        self._figures = {}
        self.bytes = 0
        for figures in ranked:
            if self.bytes + _weight(figures.topic) <= self._bytes_max // 2:
                self._figures[figures.topic] = figures
                self.bytes += _weight(figures.topic)

    def busiest(self, count: int, now_ms: int) -> list[TopicFigures]:
        """Return the topics with the highest rates, the highest first."""
        return sorted(
            self._figures.values(),
            key=lambda figures: (-rate_of(figures, now_ms), -figures.messages, figures.topic),
        )[:count]


def _weight(topic: str) -> int:
    return FIGURES_BYTES + getsizeof(topic)


def rate_of(figures: TopicFigures, now_ms: int) -> float:
    """Return messages a second, over the last five to ten seconds."""
    since_ms, before = figures.previous_ms, figures.previous_messages
    if now_ms - figures.window_ms >= _WINDOW_MS:
        since_ms, before = figures.window_ms, figures.window_messages
    return (figures.messages - before) * 1000.0 / max(1000, now_ms - since_ms)
