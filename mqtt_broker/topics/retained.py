"""A tree of values by Topic Name, searched by Topic Filter, for retained messages.

Every value stands in a flat dict; beside it a tree of levels holds the names, so that a
wildcard visits only the branches it can match. Nothing recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from mqtt_broker.topics.names import is_wildcard

Value = TypeVar("Value")


class _Node:
    __slots__ = ("children", "topic")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.topic: str | None = None

    def is_empty(self) -> bool:
        return not self.children and self.topic is None


class RetainedTree(Generic[Value]):
    __slots__ = ("_root", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}
        self._root = _Node()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, topic: str) -> Value | None:
        return self._values.get(topic)

    def put(self, topic: str, value: Value) -> Value | None:
        """Keep the value; what stood there before, if anything."""
        before = self._values.get(topic)
        self._values[topic] = value
        if before is None:
            node = self._root
            for level in topic.split("/"):
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
            node.topic = topic
        return before

    def remove(self, topic: str) -> Value | None:
        value = self._values.pop(topic, None)
        if value is None:
            return None
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic.split("/"):
            path.append((node, level))
            node = node.children[level]
        node.topic = None
        for parent, level in reversed(path):
            if not node.is_empty():
                break
            del parent.children[level]
            node = parent
        return value

    def values(self) -> Iterator[Value]:
        return iter(self._values.values())

    def match(self, text: str) -> list[Value]:
        """Return the values whose names the Topic Filter matches."""
        values = self._values
        if not is_wildcard(text):
            value = values.get(text)
            return [] if value is None else [value]
        nodes = [self._root]
        for level in text.split("/"):
            if level == "#":
                return [values[topic] for topic in self._names(nodes)]
            following: list[_Node] = []
            for node in nodes:
                if level != "+":
                    child = node.children.get(level)
                    if child is not None:
                        following.append(child)
                elif node is self._root:  # [MQTT-4.7.2-1]
                    following += [c for name, c in node.children.items() if name[:1] != "$"]
                else:
                    following += node.children.values()
            nodes = following
        return [values[node.topic] for node in nodes if node.topic is not None]

    def _names(self, nodes: list[_Node]) -> Iterator[str]:
        """Yield every name at or below the nodes."""
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node.topic is not None:
                yield node.topic
            if node is self._root:  # [MQTT-4.7.2-1]
                stack += [c for name, c in node.children.items() if name[:1] != "$"]
            else:
                stack += node.children.values()
