"""A trie of Topic Filters with values, looked up by Topic Name.

Filters without a wildcard stand in a dict by their text, the rest in a trie of levels, so
a million exact filters cost a match one lookup. A match walks the trie level by level with
a list of the places it may be in: no recursion, whatever the depth.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from mqtt_broker.topics.names import is_wildcard

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Node(Generic[Key, Value]):
    """A level of the filters that share the levels above it."""

    __slots__ = ("below", "children", "here", "plus")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Key, Value]] = {}
        self.plus: _Node[Key, Value] | None = None
        self.here: dict[Key, Value] = {}  # filters that end at this level
        self.below: dict[Key, Value] = {}  # filters that end with # under this level

    def is_empty(self) -> bool:
        return not (self.children or self.plus or self.here or self.below)


class Trie(Generic[Key, Value]):
    """(Topic Filter, key) -> value. A second value under the same pair replaces the first."""

    __slots__ = ("_exact", "_root", "count")

    def __init__(self) -> None:
        self._exact: dict[str, dict[Key, Value]] = {}
        self._root: _Node[Key, Value] = _Node()
        self.count = 0

    def put(self, text: str, key: Key, value: Value) -> bool:
        """Put a value under a filter and a key; True if the pair is new, False if replaced."""
        place = self._place(text) if is_wildcard(text) else self._exact.setdefault(text, {})
        is_new = key not in place
        place[key] = value
        self.count += is_new
        return is_new

    def remove(self, text: str, key: Key) -> Value | None:
        if is_wildcard(text):
            return self._remove_wildcard(text, key)
        place = self._exact.get(text)
        if place is None or key not in place:
            return None
        value = place.pop(key)
        if not place:
            del self._exact[text]
        self.count -= 1
        return value

    def match(self, topic: str) -> list[Value]:
        """Return the values of every filter that matches the Topic Name. [MQTT-3.3.2-3]"""
        found: list[Value] = []
        exact = self._exact.get(topic)  # as it is, nothing normalised. [MQTT-4.7.3-4]
        if exact is not None:
            found.extend(exact.values())
        if self._root.is_empty():
            return found
        nodes = [self._root]
        for level in topic.split("/"):
            following: list[_Node[Key, Value]] = []
            for node in nodes:
                if node is not self._root or level[:1] != "$":  # [MQTT-4.7.2-1]
                    if node.below:
                        found.extend(node.below.values())
                    if node.plus is not None:
                        following.append(node.plus)
                child = node.children.get(level)
                if child is not None:
                    following.append(child)
            if not following:
                return found
            nodes = following
        for node in nodes:
            if node.here:
                found.extend(node.here.values())
            if node.below:  # "sport/#" matches "sport" too. [MQTT-4.7.1.2]
                found.extend(node.below.values())
        return found

    def _place(self, text: str) -> dict[Key, Value]:
        node = self._root
        for level in text.split("/"):
            if level == "#":
                return node.below
            if level == "+":
                if node.plus is None:
                    node.plus = _Node()
                node = node.plus
            else:
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
        return node.here

    def _remove_wildcard(self, text: str, key: Key) -> Value | None:
        path: list[tuple[_Node[Key, Value], str]] = []
        node = self._root
        for level in text.split("/"):
            if level == "#":
                break
            path.append((node, level))
            child = node.plus if level == "+" else node.children.get(level)
            if child is None:
                return None
            node = child
        place = node.below if text.endswith("#") else node.here
        if key not in place:
            return None
        value = place.pop(key)
        self.count -= 1
        for parent, level in reversed(path):  # leave no empty branch behind
            if not node.is_empty():
                break
            if level == "+":
                parent.plus = None
            else:
                del parent.children[level]
            node = parent
        return value
