"""Work out how many levels of a set of Topic Filters one Topic Name could visit, at most.

Of the branches below a level, a name visits the one with its own level and the one of a +. So what
it visits there at most is what it visits below + and the most below any of the others. 10,000
filters `dev/<id>/+` have four levels and one end; 1,024 filters of a and + in every order have
2,047 levels and 1,024 ends.
"""

from __future__ import annotations

from mqtt_broker.topics.chains import (
    DICT_BYTES,
    ENTRY_BYTES,
    NODE_BYTES,
    join_chain,
    shared_levels,
    split_chain,
)
from mqtt_broker.topics.names import text_bytes


class _Node:
    """A level and the chain behind it, as in the trie; + is a branch like others.

    What changes the shape of a node returns by how many bytes that grows.
    """

    __slots__ = ("branches", "chain", "chain_levels", "counts", "ends", "largest", "most")

    def __init__(self, chain: str, chain_levels: int, ends: int) -> None:
        self.chain = chain
        self.chain_levels = chain_levels
        self.ends = ends  # filters that end here, with # or without
        self.branches: dict[str, _Node] | None = None
        # Of the branches but +: by what one name visits there at most, how many have it.
        self.counts: dict[int, int] | None = None
        self.largest = 0  # of these
        self.most = 1 + chain_levels + ends  # levels and filters that one name visits from here on

    @property
    def bytes(self) -> int:
        """The bytes of the node and its chain."""
        return NODE_BYTES + (text_bytes(self.chain) if self.chain_levels else 0)

    def is_empty(self) -> bool:
        return not self.branches and not self.ends

    def is_pass(self) -> bool:
        return self.branches is not None and len(self.branches) == 1 and not self.ends

    def branch(self, level: str) -> _Node | None:
        return None if self.branches is None else self.branches.get(level)

    def add_end(self, change: int) -> None:
        self.ends += change
        self.most += change

    def link(self, level: str, node: _Node) -> int:
        """Add a branch, which counts once `adjust` is told of it."""
        grown = 0
        if self.branches is None:
            self.branches = {}
            grown = DICT_BYTES
        self.branches[level] = node
        return grown + ENTRY_BYTES + text_bytes(level) + node.bytes

    def unlink(self, level: str) -> int:
        """Remove a branch, of which `adjust` is told as well."""
        assert self.branches is not None
        freed = ENTRY_BYTES + text_bytes(level) + self.branches.pop(level).bytes
        if not self.branches:
            self.branches = None
            freed += DICT_BYTES
        return -freed

    def adjust(self, level: str, before: int, after: int) -> int:
        """Count a branch that has changed; 0: it was not there, or is not any more."""
        if level == "+":
            self.most += after - before
            return 0
        grown = 0
        counts = self.counts
        if counts is None:
            counts = self.counts = {}
            grown = DICT_BYTES
        if before:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
        if after:
            counts[after] = counts.get(after, 0) + 1
        largest = max(counts) if counts else 0
        self.most += largest - self.largest
        self.largest = largest
        if not counts:
            self.counts = None
            grown -= DICT_BYTES
        return grown

    def split(self, count: int) -> int:
        """End behind `count` levels of the chain, with the rest in a node below."""
        before = self.bytes
        upper, level, lower = split_chain(self.chain, count)
        rest = _Node(lower, self.chain_levels - count - 1, self.ends)
        rest._take_branches(self)
        self.chain = upper
        self.chain_levels = count
        self.ends = self.largest = 0
        self.branches = self.counts = None
        self.most = 1 + count
        grown = self.link(level, rest) + self.adjust(level, 0, rest.most)
        return grown + self.bytes - before

    def merge(self) -> int:
        """Take the only branch into the chain, which changes nothing about `most`."""
        assert self.branches is not None
        ((level, child),) = self.branches.items()
        before = self.bytes
        grown = self.unlink(level) + self.adjust(level, child.most, 0)
        self.chain = join_chain(
            self.chain, self.chain_levels, level, child.chain, child.chain_levels
        )
        self.chain_levels += 1 + child.chain_levels
        self.ends = child.ends
        self._take_branches(child)
        return grown + self.bytes - before

    def _take_branches(self, node: _Node) -> None:
        self.branches = node.branches
        self.counts = node.counts
        self.largest = node.largest
        plus = self.branch("+")
        below = self.largest + (0 if plus is None else plus.most)
        self.most = 1 + self.chain_levels + self.ends + below


class FilterOverlap:
    """A set of Topic Filters; one may be in it several times, under different shared names."""

    __slots__ = ("bytes", "root")

    def __init__(self) -> None:
        self.root = _Node("", 0, 0)
        self.bytes = 0  # about what is kept

    @property
    def most(self) -> int:
        """The most levels, and filters at their ends, that one Topic Name visits."""
        return self.root.most

    def add(self, text: str) -> None:
        levels = _levels(text)
        path: list[tuple[_Node, str, int]] = []
        node = self.root
        at = 0
        while at < len(levels):
            level = levels[at]
            at += 1
            following = node.branch(level)
            if following is None:
                following = _Node("/".join(levels[at:]), len(levels) - at, 0)
                self.bytes += node.link(level, following)
                path.append((node, level, 0))
                node = following
                break
            path.append((node, level, following.most))
            node = following
            if node.chain_levels:
                shared = shared_levels(node.chain, levels, at)
                at += shared
                if shared < node.chain_levels:
                    self.bytes += node.split(shared)
        node.add_end(1)
        self._climb(node, path)

    def remove(self, text: str) -> None:
        """Take out a filter that is in the set."""
        levels = _levels(text)
        path: list[tuple[_Node, str, int]] = []
        node = self.root
        at = 0
        while at < len(levels):
            following = node.branch(levels[at])
            assert following is not None
            path.append((node, levels[at], following.most))
            node = following
            at += 1 + node.chain_levels
        node.add_end(-1)
        while path and node.is_empty():
            node, level, before = path.pop()
            self.bytes += node.unlink(level) + node.adjust(level, before, 0)
        if path and node.is_pass():
            self.bytes += node.merge()
        self._climb(node, path)

    def _climb(self, node: _Node, path: list[tuple[_Node, str, int]]) -> None:
        """Tell every node above that one has changed."""
        for parent, level, before in reversed(path):
            self.bytes += parent.adjust(level, before, node.most)
            node = parent


def _levels(text: str) -> list[str]:
    levels = text.split("/")
    if levels[-1] == "#":
        levels.pop()
    return levels
