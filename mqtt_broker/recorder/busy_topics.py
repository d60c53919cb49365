"""The busiest topics: counters of a bounded number of them."""

from __future__ import annotations

from typing import Final

from mqtt_broker.recorder.runs import TopicFigures

FIGURES_BYTES: Final = 400  # of one topic, with a text of some length
_WINDOW_MS: Final = 5_000  # that rates are measured over


class BusyTopics:
    """Counts messages by topic. When there are too many topics, the quieter half is forgotten.

    A topic that comes back begins anew: its figures are those since `first_ms`.
    """

    __slots__ = ("_figures", "_topics_max")

    def __init__(self, topics_max: int) -> None:
        self._topics_max = max(2, topics_max)
        self._figures: dict[str, TopicFigures] = {}

    def __len__(self) -> int:
        return len(self._figures)

    def find(self, topic: str, now_ms: int) -> TopicFigures:
        """Return the figures of a topic, or begin to count it."""
        found = self._figures.get(topic)
        if found is None:
            if len(self._figures) >= self._topics_max:
                kept = self.busiest(self._topics_max // 2, now_ms)
                self._figures = {figures.topic: figures for figures in kept}
            found = self._figures[topic] = TopicFigures(topic, now_ms)
        elif now_ms - found.window_ms >= _WINDOW_MS:
            found.begin_window(now_ms)
        return found

    def busiest(self, count: int, now_ms: int) -> list[TopicFigures]:
        """Return the topics with the highest rates, the highest first."""
        return sorted(
            self._figures.values(),
            key=lambda figures: (-rate_of(figures, now_ms), -figures.messages, figures.topic),
        )[:count]


def rate_of(figures: TopicFigures, now_ms: int) -> float:
    """Return messages a second, over the last five to ten seconds."""
    since_ms, before = figures.previous_ms, figures.previous_messages
    if now_ms - figures.window_ms >= _WINDOW_MS:
        since_ms, before = figures.window_ms, figures.window_messages
    return (figures.messages - before) * 1000.0 / max(1000, now_ms - since_ms)
