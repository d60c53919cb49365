"""A set of whole numbers, stored as intervals.

The sequence numbers that arrived of a flow are nearly always 0..n, so a million messages take as
little memory as ten. The cost depends on the number of gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Intervals:
    """A set of numbers: `edges` has start, end, start, end... in order, ends exclusive."""

    __slots__ = ("count", "edges")

    def __init__(self) -> None:
        self.edges: list[int] = []
        self.count = 0

    def __contains__(self, number: int) -> bool:
        return bisect_right(self.edges, number) & 1 == 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.edges[::2], self.edges[1::2], strict=True)

    def add(self, number: int) -> bool:
        """Add a number; return False if the set had it already."""
        edges = self.edges
        if not edges:
            edges += (number, number + 1)
        elif edges[-1] == number:  # in order, as nearly always
            edges[-1] = number + 1
        elif edges[-1] < number:
            edges += (number, number + 1)
        else:
            at = bisect_right(edges, number)
            if at & 1:
                return False
            joins_left = at > 0 and edges[at - 1] == number
            joins_right = edges[at] == number + 1
            if joins_left and joins_right:
                del edges[at - 1 : at + 1]
            elif joins_left:
                edges[at - 1] = number + 1
            elif joins_right:
                edges[at] = number
            else:
                edges[at:at] = (number, number + 1)
        self.count += 1
        return True

    def difference(self, other: Intervals) -> Iterator[tuple[int, int]]:
        """Return the intervals of this set that are not in the other."""
        edges = other.edges
        for start, end in self:
            at = start
            place = bisect_right(edges, at)
            while at < end:
                if place & 1:  # inside an interval of the other
                    at = edges[place]
                else:
                    stop = min(end, edges[place]) if place < len(edges) else end
                    if stop > at:
                        yield at, stop
                    at = stop
                place += 1

    def difference_count(self, other: Intervals) -> int:
        if self.edges == other.edges:
            return 0
        return sum(end - start for start, end in self.difference(other))
