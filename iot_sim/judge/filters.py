"""Topic Filters as the observers need them: do two overlap, and how do many become disjoint.

Two overlapping subscriptions of one client may bring a message twice, and MQTT allows that. An
observer that counts repeats therefore subscribes to filters that have no topic in common.
"""

from __future__ import annotations

from collections.abc import Iterable


def matches(text: str, topic: str) -> bool:
    """Whether Topic Filter `text` matches Topic Name `topic`."""
    wanted, levels = text.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def overlap(one: str, other: str) -> bool:
    """Whether some topic matches both."""
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
    """Whether every topic that matches `narrow` matches `wide`."""
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
    """Filters that match at least the same topics and never two of them the same one."""
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
            waiting.append(text if covers(text, other) else _union(text, other))
            break
        else:
            found.append(text)
    return found


def _union(one: str, other: str) -> str:
    """The common levels at the front, and everything below."""
    common: list[str] = []
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right or left == "#":
            break
        common.append(left)
    return "/".join([*common, "#"])


class FilterSet:
    """Many filters, most of them a literal root with everything below it."""

    def __init__(self, filters: Iterable[str]) -> None:
        self._roots: set[str] = set()
        self._others: list[str] = []
        for text in filters:
            if text.endswith("/#") and "+" not in text:
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
