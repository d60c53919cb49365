"""A trie of Topic Filters with values, looked up by Topic Name.

Filters without a wildcard stand in a dict by their text, the rest in a trie of levels, so
a million exact filters cost a match one lookup. Levels that only one branch has are a chain: one
node with their text, however many they are. A match walks down one branch and remembers the
others: no recursion, whatever the depth.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from mqtt_broker.topics.chains import (
    DICT_BYTES,
    ENTRY_BYTES,
    NODE_BYTES,
    fits_chain,
    join_chain,
    shared_levels,
    split_chain,
)
from mqtt_broker.topics.names import is_wildcard, text_bytes

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Node(Generic[Key, Value]):
    """A level, with the chain behind it, of the filters that share everything above.

    The level itself is in the parent: a key of `children`, or + for `plus`. What changes a node
    returns by how many bytes that grows.
    """

    __slots__ = ("below", "chain", "chain_levels", "children", "here", "is_wild", "plus")

    def __init__(self, chain: str, chain_levels: int) -> None:
        self.chain = chain
        self.chain_levels = chain_levels
        self.is_wild = "+" in chain
        self.children: dict[str, _Node[Key, Value]] | None = None
        self.plus: _Node[Key, Value] | None = None
        self.here: dict[Key, Value] | None = None  # filters that end with the chain
        self.below: dict[Key, Value] | None = None  # filters that end with # under it

    @property
    def bytes(self) -> int:
        """The bytes of the node and its chain."""
        return NODE_BYTES + (text_bytes(self.chain) if self.chain_levels else 0)

    def is_empty(self) -> bool:
        return not (self.children or self.plus or self.here or self.below)

    def is_pass(self) -> bool:
        """Tell whether it has one branch and nothing else, and so belongs to that branch."""
        if self.here or self.below:
            return False
        children = self.children
        if children is None:
            return self.plus is not None
        return self.plus is None and len(children) == 1

    def branch(self, level: str) -> _Node[Key, Value] | None:
        if level == "+":
            return self.plus
        return None if self.children is None else self.children.get(level)

    def link(self, level: str, child: _Node[Key, Value]) -> int:
        """Add a branch that it does not have."""
        if level == "+":
            self.plus = child
            return child.bytes
        grown = 0
        if self.children is None:
            self.children = {}
            grown = DICT_BYTES
        self.children[level] = child
        return grown + ENTRY_BYTES + text_bytes(level) + child.bytes

    def unlink(self, level: str) -> int:
        """Remove a branch."""
        if level == "+":
            assert self.plus is not None
            freed = self.plus.bytes
            self.plus = None
            return -freed
        assert self.children is not None
        freed = ENTRY_BYTES + text_bytes(level) + self.children.pop(level).bytes
        if not self.children:
            self.children = None
            freed += DICT_BYTES
        return -freed

    def place(self, is_below: bool) -> dict[Key, Value] | None:
        return self.below if is_below else self.here

    def set_place(self, is_below: bool, place: dict[Key, Value] | None) -> int:
        """Make a place, or remove an empty one."""
        if is_below:
            self.below = place
        else:
            self.here = place
        return -DICT_BYTES if place is None else DICT_BYTES

    def split(self, count: int) -> int:
        """End behind `count` levels of the chain, with the rest in a node below."""
        before = self.bytes
        upper, level, lower = split_chain(self.chain, count)
        rest: _Node[Key, Value] = _Node(lower, self.chain_levels - count - 1)
        rest._take_content(self)
        self._set_chain(upper, count)
        self.children = self.plus = self.here = self.below = None
        return self.link(level, rest) + self.bytes - before

    def merge(self) -> int:
        """Take the only branch into the chain."""
        before = self.bytes
        level, child = "+", self.plus
        if self.children is not None:
            level, child = next(iter(self.children.items()))
        assert child is not None
        grown = self.unlink(level)
        chain = join_chain(self.chain, self.chain_levels, level, child.chain, child.chain_levels)
        self._set_chain(chain, self.chain_levels + 1 + child.chain_levels)
        self._take_content(child)
        return grown + self.bytes - before

    def _set_chain(self, chain: str, chain_levels: int) -> None:
        self.chain = chain
        self.chain_levels = chain_levels
        self.is_wild = "+" in chain

    def _take_content(self, node: _Node[Key, Value]) -> None:
        self.children = node.children
        self.plus = node.plus
        self.here = node.here
        self.below = node.below


class Trie(Generic[Key, Value]):
    """(Topic Filter, key) -> value. A second value under the same pair replaces the first.

    `bytes` is about what the trie itself keeps, without keys, values and the texts of filters
    that have no wildcard, which are their owners'.
    """

    __slots__ = ("bytes", "count", "exact", "root", "steps")

    def __init__(self) -> None:
        self.exact: dict[str, dict[Key, Value]] = {}
        self.root: _Node[Key, Value] = _Node("", 0)
        self.count = 0
        self.bytes = 0
        self.steps = 0  # nodes that the last match visited, and half of the levels of chains

    def put(self, text: str, key: Key, value: Value) -> bool:
        """Put a value under a filter and a key; True if the pair is new, False if replaced."""
        place = self._place(text) if is_wildcard(text) else self.exact.get(text)
        if place is None:
            place = self.exact[text] = {}
            self.bytes += DICT_BYTES + ENTRY_BYTES
        is_new = key not in place
        place[key] = value
        if is_new:
            self.count += 1
            self.bytes += ENTRY_BYTES
        return is_new

    def remove(self, text: str, key: Key) -> Value | None:
        if is_wildcard(text):
            return self._remove_wildcard(text, key)
        place = self.exact.get(text)
        if place is None or key not in place:
            return None
        value = place.pop(key)
        self.bytes -= ENTRY_BYTES
        if not place:
            del self.exact[text]
            self.bytes -= DICT_BYTES + ENTRY_BYTES
        self.count -= 1
        return value

    def match(self, topic: str) -> list[Value]:
        """Return the values of every filter that matches the Topic Name. [MQTT-3.3.2-3]"""
        found: list[Value] = []
        exact = self.exact.get(topic)  # as it is, nothing normalised. [MQTT-4.7.3-4]
        if exact is not None:
            found.extend(exact.values())
        node = self.root
        if node.is_empty():
            self.steps = 0
            return found
        levels = topic.split("/")
        size = len(levels)
        is_hidden = topic[:1] == "$"
        nodes: list[_Node[Key, Value]] = []  # branches to take later,
        places: list[int] = []  # and the level behind that of each
        place = steps = 0
        while True:
            following: _Node[Key, Value] | None = None
            length = node.chain_levels
            steps += 1 + (length >> 1)
            if not length or self._fits(node, levels, place):
                place += length
                if place < size:
                    if node.children is not None:
                        following = node.children.get(levels[place])
                    if place or not is_hidden:  # [MQTT-4.7.2-1]
                        if node.below is not None:
                            found.extend(node.below.values())
                        plus = node.plus
                        if plus is not None:
                            if following is None:
                                following = plus
                            else:
                                nodes.append(plus)
                                places.append(place + 1)
                else:
                    if node.here is not None:
                        found.extend(node.here.values())
                    if node.below is not None:  # "sport/#" matches "sport" too. [MQTT-4.7.1.2]
                        found.extend(node.below.values())
            if following is not None:
                node = following
                place += 1
            elif nodes:
                node = nodes.pop()
                place = places.pop()
            else:
                self.steps = steps
                return found

    def _fits(self, node: _Node[Key, Value], levels: list[str], place: int) -> bool:
        """Tell whether the chain of a node matches the levels of a Topic Name from `place` on."""
        length = node.chain_levels
        if place + length > len(levels):
            return False
        if node.is_wild:
            return fits_chain(node.chain, levels, place)
        if length == 1:
            return node.chain == levels[place]
        return node.chain == "/".join(levels[place : place + length])

    # Places in the trie.

    def _place(self, text: str) -> dict[Key, Value]:
        """Find or make the place of a wildcard filter."""
        levels = text.split("/")
        is_below = _cut_hash(levels)
        node = self._node(levels)
        place = node.place(is_below)
        if place is None:
            place = {}
            self.bytes += node.set_place(is_below, place)
        return place

    def _node(self, levels: list[str]) -> _Node[Key, Value]:
        """Find or make the node at the end of these levels."""
        node = self.root
        at = 0
        while at < len(levels):
            level = levels[at]
            at += 1
            following = node.branch(level)
            if following is None:
                following = _Node("/".join(levels[at:]), len(levels) - at)
                self.bytes += node.link(level, following)
                return following
            node = following
            if node.chain_levels:
                shared = shared_levels(node.chain, levels, at)
                at += shared
                if shared < node.chain_levels:
                    self.bytes += node.split(shared)
        return node

    def _remove_wildcard(self, text: str, key: Key) -> Value | None:
        levels = text.split("/")
        is_below = _cut_hash(levels)
        path: list[tuple[_Node[Key, Value], str]] = []
        node = self.root
        at = 0
        while at < len(levels):
            following = node.branch(levels[at])
            if following is None:
                return None
            path.append((node, levels[at]))
            node = following
            at += 1
            if node.chain_levels:
                if shared_levels(node.chain, levels, at) < node.chain_levels:
                    return None
                at += node.chain_levels
        place = node.place(is_below)
        if place is None or key not in place:
            return None
        value = place.pop(key)
        self.count -= 1
        self.bytes -= ENTRY_BYTES
        if not place:
            self.bytes += node.set_place(is_below, None)
            self._tidy(node, path)
        return value

    def _tidy(self, node: _Node[Key, Value], path: list[tuple[_Node[Key, Value], str]]) -> None:
        """Leave no empty branch behind, and no node that only passes on."""
        while path and node.is_empty():
            node, level = path.pop()
            self.bytes += node.unlink(level)
        if path and node.is_pass():
            self.bytes += node.merge()


def _cut_hash(levels: list[str]) -> bool:
    """Take a # off the end of a filter's levels; False when there is none."""
    if levels[-1] != "#":
        return False
    levels.pop()
    return True
