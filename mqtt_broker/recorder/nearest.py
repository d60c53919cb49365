"""The subscription that nearly matches a topic: a misspelt level, a missing one, one too many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LEVELS_MAX: Final = 12  # of topics and filters that are compared
_CHARS_MAX: Final = 40  # of a level
_FILTERS_MAX: Final = 500
_FAR: Final = 0.67  # of the levels wrong: nothing near


def nearest_filter(filters: Iterable[str], topic: str) -> str:
    """Return the filter that differs least from a topic; empty: none is near."""
    levels = _levels_of(topic)
    best, least = "", _FAR * max(1, len(levels))
    for count, text in enumerate(filters):
        if count == _FILTERS_MAX:
            break
        found = _distance(_levels_of(text), levels)
        if found < least:
            best, least = text, found
    return best


def _levels_of(text: str) -> list[str]:
    if text.startswith("$share/"):
        text = text.split("/", 2)[-1]
    return [level[:_CHARS_MAX] for level in text.split("/")[:_LEVELS_MAX]]


def _distance(wanted: list[str], levels: list[str]) -> float:
    """Return how many levels have to change: the edit distance of the lists of levels."""
    row = [float(count) for count in range(len(levels) + 1)]
    for place, level in enumerate(wanted, 1):
        if level == "#":  # it matches all that follows
            return min(row)
        before, row = row, [float(place)]
        for index, other in enumerate(levels):
            changed = before[index] + _difference(level, other)
            row.append(min(changed, before[index + 1] + 1.0, row[index] + 1.0))
    return row[-1]


def _difference(level: str, other: str) -> float:
    """Return 0 for levels that match, up to 1 for those that have nothing in common."""
    if level in ("+", other):
        return 0.0
    longest = max(len(level), len(other))
    row = list(range(len(other) + 1))
    for place, letter in enumerate(level, 1):
        before, row = row, [place]
        for index, one in enumerate(other):
            row.append(min(before[index] + (letter != one), before[index + 1] + 1, row[index] + 1))
    return min(1.0, 0.1 + 0.9 * row[-1] / longest)
