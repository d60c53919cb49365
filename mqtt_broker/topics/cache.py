"""A cache of match results by Topic Name, kept until a subscription changes them.

A change under a filter empties only what its literal levels can reach: topics are indexed
by their first two levels, so a fleet that subscribes to `cmd/<device>/#` device by device
does not empty the cache of the telemetry beside it.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from mqtt_broker.topics.names import is_wildcard, literal_prefix

Result = TypeVar("Result")

TOPICS_MAX: Final = 65_536


def _head(topic: str) -> str:
    first = topic.find("/")
    second = topic.find("/", first + 1) if first >= 0 else -1
    return topic if second < 0 else topic[:second]


class MatchCache(Generic[Result]):
    """`results` is read directly on the hot path; `put` and `drop` keep its index."""

    __slots__ = ("_by_head", "_topics_max", "results")

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self.results: dict[str, Result] = {}
        self._by_head: dict[str, list[str]] = {}
        self._topics_max = topics_max

    def put(self, topic: str, result: Result) -> None:
        if len(self.results) >= self._topics_max:
            self.clear()
        self.results[topic] = result
        self._by_head.setdefault(_head(topic), []).append(topic)

    def drop(self, text: str) -> None:
        """Forget the topics that filter `text` could match."""
        if not is_wildcard(text):
            self._drop_topic(text)
            return
        prefix = literal_prefix(text)
        if prefix.count("/") >= 1:
            for topic in self._by_head.pop(_head(prefix), ()):
                self.results.pop(topic, None)
        else:
            self.clear()

    def clear(self) -> None:
        self.results.clear()
        self._by_head.clear()

    def _drop_topic(self, topic: str) -> None:
        if self.results.pop(topic, None) is not None:
            head = _head(topic)
            siblings = self._by_head[head]
            siblings.remove(topic)
            if not siblings:
                del self._by_head[head]
