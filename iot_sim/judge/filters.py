"""Topic Filters for the observers: match, overlap, and make filters disjoint.

MQTT allows a broker to deliver a message once for each overlapping subscription of a client. An
observer counts repeats, so it subscribes to filters that have no topic in common.

A filter that begins with a wildcard matches no topic that begins with `$` [MQTT-4.7.2-1]. The
broker's own matcher is not used: the verdict on a broker must not depend on its code.
"""

from __future__ import annotations

from collections.abc import Iterable


def _is_hidden(text: str, other: str) -> bool:
    """Tell whether `text` begins with a wildcard and `other` with `$`: no topic matches both."""
    return text[:1] in ("+", "#") and other[:1] == "$"


def matches(text: str, topic: str) -> bool:
    """Tell whether Topic Filter `text` matches Topic Name `topic`."""
    if _is_hidden(text, topic):
        return False
    wanted, levels = text.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def overlap(one: str, other: str) -> bool:
    """Tell whether some topic matches both filters."""
    if _is_hidden(one, other) or _is_hidden(other, one):
        return False
    here, there = one.split("/"), other.split("/")
    for place in range(max(len(here), len(there))):
        left = here[place] if place < len(here) else None
        right = there[place] if place < len(there) else None
        if left == "#" or right == "#":
            return True
        if left is None or right is None:
            return False
        if left != right and "+" not in (left, right):
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Tell whether every topic that matches `narrow` matches `wide`."""
    if _is_hidden(wide, narrow):
        return False
    outer, inner = wide.split("/"), narrow.split("/")
    for place, level in enumerate(outer):
        if level == "#":
            return True
        if place == len(inner) or inner[place] == "#":
            return False
        if level not in ("+", inner[place]):
            return False
    return len(outer) == len(inner)


def disjoint(filters: Iterable[str]) -> list[str]:
    """Return filters that together match at least the same topics, each topic only once."""
    found: list[str] = []
    waiting = list(dict.fromkeys(filters))
    while waiting:
        text = waiting.pop(0)
        for other in found:
            if not overlap(text, other):
                continue
            if covers(other, text):
                break
            found.remove(other)
            waiting.append(text if covers(text, other) else _common_parent(text, other))
            break
        else:
            found.append(text)
    return found


def _common_parent(one: str, other: str) -> str:
    """Return the filter for everything below the levels that both filters begin with."""
    common: list[str] = []
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right or left == "#":
            break
        common.append(left)
    return "/".join([*common, "#"])


class FilterSet:
    """Many filters, most of which have the form `root/#`, which are matched by a set look-up."""

    def __init__(self, filters: Iterable[str]) -> None:
        self._roots: set[str] = set()
        self._others: list[str] = []
        for text in filters:
            if text.endswith("/#") and len(text) > 2 and "+" not in text:
                self._roots.add(text[:-2])
            else:
                self._others.append(text)

    def matches(self, topic: str) -> bool:
        if self._roots:
            end = len(topic)
            while end > 0:
                if topic[:end] in self._roots:
                    return True
                end = topic.rfind("/", 0, end)
        return any(matches(text, topic) for text in self._others)
