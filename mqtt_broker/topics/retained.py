"""A tree of values by Topic Name, searched by Topic Filter, for retained messages.

Every value stands in a flat dict; beside it a tree of levels holds the names, so that a
wildcard visits only the branches it can match. Levels that only one branch has are a chain in
one node. Nothing recurses.

A search goes on in slices while the tree changes (`RetainedScan`). What it relies on: a node stays
at the place where it was made. When a chain is split, its node becomes the upper part; when a
node takes its only branch into its chain, the node of that branch leaves the tree as it is, and a
search that knew it still finds everything below. The branches of a node that has many are listed
once for all searches, in the order in which they came; a search notes how far in the list it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from mqtt_broker.topics.chains import (
    DICT_BYTES,
    ENTRY_BYTES,
    join_chain,
    shared_levels,
    split_chain,
)
from mqtt_broker.topics.names import is_wildcard, text_bytes

Value = TypeVar("Value")

_ALL: Final = -1  # a place in a filter: behind its #
_NOWHERE: Final = -2  # the filter does not match
_NODE_BYTES: Final = 84
_PLACE_BYTES: Final = 8  # in the list of all branches
_SPLIT_BYTES: Final = 200  # of four texts where there was one
_AT_ONCE: Final = 1 << 20
_FEW: Final = 64  # branches that a search lists for itself


class _Node:
    """A level, whose name is in the parent, with the chain behind it that no other name has.

    What changes a node returns by how many bytes that grows.
    """

    __slots__ = ("_listed", "chain", "chain_levels", "children", "topic")

    def __init__(self, chain: str, chain_levels: int, topic: str | None) -> None:
        self.chain = chain
        self.chain_levels = chain_levels
        self.children: dict[str, _Node] | None = None
        # Many children, since a search asked; what went stays in it, empty. It is only appended to.
        self._listed: list[_Node] | None = None
        self.topic = topic

    @property
    def bytes(self) -> int:
        """The bytes of the node and its chain."""
        return _NODE_BYTES + (text_bytes(self.chain) if self.chain_levels else 0)

    def is_empty(self) -> bool:
        return not self.children and self.topic is None

    def is_pass(self) -> bool:
        """Tell whether it has one branch and nothing else, and so belongs to that branch."""
        return self.topic is None and self.children is not None and len(self.children) == 1

    def set_topic(self, topic: str | None) -> None:
        """Have a value from now on, or none."""
        self.topic = topic

    def link(self, level: str, child: _Node) -> int:
        """Add a branch that it does not have."""
        grown = 0
        if self.children is None:
            self.children = {}
            grown = DICT_BYTES
        self.children[level] = child
        if self._listed is not None:
            self._listed.append(child)
        return grown + ENTRY_BYTES + _PLACE_BYTES + text_bytes(level) + child.bytes

    def unlink(self, level: str) -> int:
        """Remove a branch, which is empty."""
        assert self.children is not None
        child = self.children.pop(level)
        freed = ENTRY_BYTES + _PLACE_BYTES + text_bytes(level) + child.bytes
        child.chain = ""  # a list may go on to have the node
        child.chain_levels = 0
        if not self.children:
            self.children = self._listed = None
            freed += DICT_BYTES
        elif self._listed is not None:
            count = len(self.children)
            if len(self._listed) > count + (count >> 2) + _FEW:
                self._listed = None  # a quarter of it has gone
        return -freed

    def branches(self) -> list[_Node]:
        """List the branches, the oldest first. The list may become longer, and never shorter."""
        assert self.children is not None
        if len(self.children) <= _FEW:
            return list(self.children.values())
        if self._listed is None:
            self._listed = list(self.children.values())
        return self._listed

    def split(self, count: int) -> int:
        """End behind `count` levels of the chain, with the rest in a new node below."""
        before = self.bytes
        upper, level, lower = split_chain(self.chain, count)
        rest = _Node(lower, self.chain_levels - count - 1, self.topic)
        rest._take_children(self)
        self.chain = upper
        self.chain_levels = count
        self.children = self._listed = self.topic = None
        return self.link(level, rest) + self.bytes - before

    def merge(self) -> int:
        """Take the only branch into the chain.

        Neither that node nor the dict that had it is changed: a search may still know them.
        """
        assert self.children is not None
        level, child = next(iter(self.children.items()))
        branch = ENTRY_BYTES + _PLACE_BYTES + text_bytes(level)
        before = self.bytes + child.bytes + DICT_BYTES + branch
        self.chain = join_chain(
            self.chain, self.chain_levels, level, child.chain, child.chain_levels
        )
        self.chain_levels += 1 + child.chain_levels
        self.topic = child.topic
        self._take_children(child)
        return self.bytes - before

    def _take_children(self, node: _Node) -> None:
        """Have the children of another node, in the same dict and list."""
        self.children = node.children
        self._listed = node._listed


class RetainedTree(Generic[Value]):
    """Topic Name -> value.

    `bytes` is about what the tree keeps, names included, without the values.
    """

    __slots__ = ("_values", "bytes", "root")

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}
        self.root = _Node("", 0, None)
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, topic: str) -> Value | None:
        return self._values.get(topic)

    def put(self, topic: str, value: Value) -> Value | None:
        """Keep the value; what stood there before, if anything."""
        before = self._values.get(topic)
        self._values[topic] = value
        if before is None:
            self._node(topic.split("/")).set_topic(topic)
            self.bytes += ENTRY_BYTES + text_bytes(topic)
        return before

    def cost(self, topic: str) -> int:
        """Return the most by which the tree grows with a topic that it does not have."""
        return (
            2 * (_NODE_BYTES + DICT_BYTES + text_bytes(topic))
            + 4 * (ENTRY_BYTES + _PLACE_BYTES)
            + _SPLIT_BYTES
        )

    def remove(self, topic: str) -> Value | None:
        value = self._values.pop(topic, None)
        if value is None:
            return None
        self.bytes -= ENTRY_BYTES + text_bytes(topic)
        path: list[tuple[_Node, str]] = []
        node = self.root
        levels = topic.split("/")
        place = 0
        while place < len(levels):
            level = levels[place]
            path.append((node, level))
            assert node.children is not None
            node = node.children[level]
            place += 1 + node.chain_levels
        node.set_topic(None)
        while path and node.is_empty():
            node, level = path.pop()
            self.bytes += node.unlink(level)
        if path and node.is_pass():
            self.bytes += node.merge()
        return value

    def values(self) -> Iterator[Value]:
        return iter(self._values.values())

    def match(self, text: str) -> list[Value]:
        """Return the values whose names the Topic Filter matches."""
        scan = RetainedScan(self, text)
        found: list[Value] = []
        while not scan.is_done:
            found += scan.take(_AT_ONCE)
        return found

    def _node(self, levels: list[str]) -> _Node:
        """Find or make the node at the end of these levels."""
        node = self.root
        place = 0
        while place < len(levels):
            level = levels[place]
            place += 1
            following = None if node.children is None else node.children.get(level)
            if following is None:
                following = _Node("/".join(levels[place:]), len(levels) - place, None)
                self.bytes += node.link(level, following)
                return following
            node = following
            if node.chain_levels:
                shared = shared_levels(node.chain, levels, place)
                place += shared
                if shared < node.chain_levels:
                    self.bytes += node.split(shared)
        return node


class RetainedScan(Generic[Value]):
    """A search by Topic Filter that finds the values of a tree a slice at a time.

    The tree may change between slices. A topic that matches and has had a value all the time is
    found once, with the value that it has when it is found. One that came or went meanwhile may be
    found, once at most. What it keeps is a place for each level that it is below, and few branches.
    """

    __slots__ = (
        "_all_at",
        "_ends",
        "_hides",
        "_levels",
        "_next",
        "_places",
        "_topic",
        "_values",
        "nodes",
        "steps",
    )

    def __init__(self, tree: RetainedTree[Value], text: str, *, with_hidden: bool = False) -> None:
        self._values = tree._values
        self._topic = None if is_wildcard(text) else text
        self._levels = text.split("/")
        self._all_at = len(self._levels) - 1 if self._levels[-1] == "#" else _NOWHERE
        self._hides = self._levels[0] in ("+", "#") and not with_hidden  # [MQTT-4.7.2-1]
        # What is still to be visited, branches of one node each: where it goes on in their list,
        # where that ended when it came there, and the filter's level.
        self.nodes: list[list[_Node]] = [[tree.root]]
        self._next: list[int] = [0]
        self._ends: list[int] = [1]
        self._places: list[int] = [0]
        self.steps = 0  # visited so far

    @property
    def is_done(self) -> bool:
        return not self.nodes

    def take(self, steps: int) -> list[Value]:
        """Visit up to so many nodes and return the values that they have."""
        if self._topic is not None:
            return self._take_topic(self._topic)
        found: list[Value] = []
        values = self._values
        end = self.steps + steps
        while self.nodes and self.steps < end:
            place = self._places[-1]
            at = self._next[-1]
            node = self.nodes[-1][at]
            at += 1
            if at < self._ends[-1]:
                self._next[-1] = at
            else:
                self.nodes.pop()
                self._next.pop()
                self._ends.pop()
                self._places.pop()
            self.steps += 1
            if node.chain_levels and place >= 0:
                place = self._behind(node, place)
            topic = self._visit(node, place)
            if topic is not None and not (self._hides and topic[:1] == "$"):
                value = values.get(topic)  # it may have gone
                if value is not None:
                    found.append(value)
        return found

    def _take_topic(self, topic: str) -> list[Value]:
        self.steps += 1
        self.nodes.clear()
        value = self._values.get(topic)
        return [] if value is None else [value]

    def _behind(self, node: _Node, place: int) -> int:
        """Return the place in the filter behind the chain of a node."""
        levels = self._levels
        size = len(levels)
        self.steps += node.chain_levels >> 1
        for level in node.chain.split("/"):
            if place == size:
                return _NOWHERE
            wanted = levels[place]
            if wanted == "#":
                return _ALL
            if wanted != "+" and wanted != level:
                return _NOWHERE
            place += 1
        return place

    def _visit(self, node: _Node, place: int) -> str | None:
        """Note the branches of a node that are still to be visited; its topic if that matches."""
        if place == _NOWHERE:
            return None
        if place == _ALL or place == self._all_at:
            if node.children:
                self._push(node.branches(), _ALL)
            return node.topic
        if place == len(self._levels):
            return node.topic
        if node.children:
            level = self._levels[place]
            if level == "+":
                self._push(node.branches(), place + 1)
            else:
                child = node.children.get(level)
                if child is not None:
                    self._push([child], place + 1)
        return None

    def _push(self, nodes: list[_Node], place: int) -> None:
        """Visit all of these next. A list of many of them is work, too."""
        self.steps += len(nodes) >> 6
        self.nodes.append(nodes)
        self._next.append(0)
        self._ends.append(len(nodes))
        self._places.append(place)
