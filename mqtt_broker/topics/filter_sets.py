"""Topic Filters as sets of Topic Names: whether one covers another, and what two have in common.

A filter is a tuple of levels here. Filters that begin with a wildcard match no name that
begins with `$` [MQTT-4.7.2-1], so `#` does not cover `$SYS/#`, and the two have nothing in
common.
"""

from __future__ import annotations

Levels = tuple[str, ...]


def levels_of(text: str) -> Levels:
    return tuple(text.split("/"))


def _is_hidden(wild: Levels, other: Levels) -> bool:
    """Tell whether `wild` begins with a wildcard and `other` with `$`, which never match."""
    return wild[0] in ("+", "#") and other[0][:1] == "$"


def covers(outer: Levels, inner: Levels) -> bool:
    """Tell whether `outer` matches every Topic Name that `inner` matches."""
    if _is_hidden(outer, inner):
        return False
    if inner in (("#",), ("", "#")):  # a Topic Name is not empty, so it has a level more
        inner = (*inner[:-1], "+", "#")
    for place, level in enumerate(outer):
        if level == "#":
            return True  # `a/#` matches `a`, too. [MQTT-4.7.1.2]
        if place == len(inner) or inner[place] == "#":
            return False
        if level != "+" and level != inner[place]:
            return False
    return len(inner) == len(outer)


def common(one: Levels, two: Levels) -> Levels | None:
    """Return the one filter of the names that both match; None if there are none."""
    found = _common(one, two)
    return None if found == ("",) else found  # a Topic Name is not empty


def _common(one: Levels, two: Levels) -> Levels | None:
    if _is_hidden(one, two) or _is_hidden(two, one):
        return None
    found: list[str] = []
    for place in range(max(len(one), len(two))):
        a = one[place] if place < len(one) else ""
        b = two[place] if place < len(two) else ""
        if place == len(one) or place == len(two):
            longer = b if place == len(one) else a
            return tuple(found) if longer == "#" else None
        if a == "#":
            return _joined(found, two[place:])
        if b == "#":
            return _joined(found, one[place:])
        if a != b and "+" not in (a, b):
            return None
        found.append(b if a == "+" else a)
    return tuple(found)


def _joined(found: list[str], rest: Levels) -> Levels:
    """Join the rest of one filter to the `#` of another; `x/#` and `x` have `x` in common."""
    return (*found, *rest)
