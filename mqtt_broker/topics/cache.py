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
BYTES_MAX: Final = 64 << 20  # of what is noted
NOTED_BYTES: Final = 256  # smaller weights are not worth a note


def _head(topic: str) -> str:
    first = topic.find("/")
    second = topic.find("/", first + 1) if first >= 0 else -1
    return topic if second < 0 else topic[:second]


class MatchCache(Generic[Result]):
    """`results` is read directly on the hot path; `put` and `drop` keep its index."""

    __slots__ = ("_bytes_max", "_topics_max", "_weights", "by_head", "bytes", "results")

    def __init__(self, topics_max: int = TOPICS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.results: dict[str, Result] = {}
        self.by_head: dict[str, dict[str, None]] = {}
        self._topics_max = topics_max
        self._bytes_max = bytes_max
        self._weights: dict[str, int] = {}  # of heavy results
        self.bytes = 0  # of these

    def put(self, topic: str, result: Result, weight: int = 0) -> None:
        """Keep the result of a topic that has none; `weight`: the bytes that it takes and others
        do not.
        """
        if len(self.results) >= self._topics_max or self.bytes + weight > self._bytes_max:
            self.clear()
        if weight >= NOTED_BYTES:
            self._weights[topic] = weight
            self.bytes += weight
        self.results[topic] = result
        self.by_head.setdefault(_head(topic), {})[topic] = None

    def drop(self, text: str) -> None:
        """Forget the topics that filter `text` could match."""
        if not is_wildcard(text):
            self._drop_topic(text)
            return
        prefix = literal_prefix(text)
        if prefix.count("/") >= 1:
            for topic in self.by_head.pop(_head(prefix), ()):
                self.results.pop(topic, None)
                self._forget_weight(topic)
        else:
            self.clear()

    def clear(self) -> None:
        self.results.clear()
        self.by_head.clear()
        self._weights.clear()
        self.bytes = 0

    def _drop_topic(self, topic: str) -> None:
        if self.results.pop(topic, None) is not None:
            head = _head(topic)
            siblings = self.by_head[head]
            self._forget_weight(topic)
            del siblings[topic]
            if not siblings:
                del self.by_head[head]

    def _forget_weight(self, topic: str) -> None:
        if self._weights:
            self.bytes -= self._weights.pop(topic, 0)
