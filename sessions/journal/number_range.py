"""The numbers that one journal may assign to sessions and messages.

A broker alone has all of them. Where several share one database, each has a range of its own, so
that no number is ever assigned twice in it: the number of the node stands in the upper bits. A
session keeps its number when it moves to another node, and so do its messages.
"""

from __future__ import annotations

from typing import Final

NODE_BITS: Final = 44  # of a number, below those of the node
NODES_MAX: Final = 1 << 18  # what is left of 62 bits


class NumberRange:
    """The numbers from `first` to `end` - 1."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end

    def newest(self, *numbers: int) -> int:
        """Return the largest of the numbers that are in the range; without any, its first."""
        return max([number for number in numbers if self.first <= number < self.end] + [self.first])


ALL: Final = NumberRange(0, 1 << 63)


def range_of(node: int) -> NumberRange:
    """Return the range of a node. The first number is never assigned."""
    if not 0 < node < NODES_MAX:
        raise ValueError(f"the number of a node is 1 to {NODES_MAX - 1}, not {node}")
    return NumberRange(node << NODE_BITS, (node + 1) << NODE_BITS)
