"""Read the time that a device gives: from a user property, or from a JSON payload.

    property:NAME            the first user property of that name
    json:$.a.b[0]            a member, a member of that, its first element; $['a b'] for odd names
    json:$.ts ms             with a unit: s, ms, us, ns or iso

Without a unit a string is parsed as a number or as ISO 8601, and a number as seconds, milli-,
micro- or nanoseconds of Unix time depending on its size, which is right from 1973 to 5138. A value
that is missing, is not a time, or lies outside the years 1970 to 9999 is `NULL`. No payload raises
an error, and a payload longer than `JSON_BYTES_MAX` is not parsed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.offsets import parse_time
from mqtt_broker.streams.format.partitioning import User

JSON_BYTES_MAX: Final = 1 << 20
TIME_US_MAX: Final = 253_402_300_800_000_000  # the year 10000
_UNITS: Final = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_STEP: Final = re.compile(
    r"\.([A-Za-z_][\w-]*)|\[(0|[1-9]\d{0,8})\]|\['([^'\]]+)'\]|\[\"([^\"\]]+)\"\]"
)
_PATH_CHARS_MAX: Final = 256
_ABSENT: Final = object()

Path = tuple[str | int, ...]


def parse_path(key: str, text: str) -> Path:
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            break
        number = step[2]
        steps.append(int(number) if number is not None else step[1] or step[3] or step[4])
        at = step.end()
    if not text.startswith("$") or at < len(text) or not steps or len(text) > _PATH_CHARS_MAX:
        raise Invalid(key, f"{text!r} is invalid: expected a path like $.a.b[0]")
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class TimeRule:
    """Where messages have a time: in a user property, or at a path in a JSON payload."""

    name: str
    path: Path
    unit: str

    @classmethod
    def parse(cls, key: str, text: str) -> TimeRule:
        kind, _, rest = text.partition(":")
        what, _, unit = rest.rpartition(" ") if " " in rest else (rest, "", "")
        if unit not in ("", "iso", *_UNITS):
            what, unit = rest, ""
        if kind == "property" and what:
            return cls(what, (), unit)
        if kind == "json":
            return cls("", parse_path(key, what), unit)
        raise Invalid(key, f"{text!r} is invalid: expected property:NAME or json:$.path")

    def read(self, value: object) -> int:
        """Return microseconds of Unix time, or NULL."""
        if isinstance(value, str):
            value = value.strip()
            is_digits = value.isascii() and value.isdigit()  # some numbers are ISO 8601, too
            if self.unit == "iso" or (not self.unit and not is_digits):
                found = parse_time(value)
                if found is not None:
                    return found if 0 <= found < TIME_US_MAX else NULL
            try:
                value = int(value) if is_digits else float(value)
            except ValueError:
                return NULL
        if self.unit == "iso" or isinstance(value, bool) or not isinstance(value, int | float):
            return NULL
        return _microseconds(value, self.unit)


def _microseconds(value: float, unit: str) -> int:
    if not 0 <= value < 1e20 or math.isnan(value):
        return NULL
    if not unit:
        unit = "s" if value < 1e11 else "ms" if value < 1e14 else "us" if value < 1e17 else "ns"
    if isinstance(value, int):  # exact: a float has too few digits for current times in nanoseconds
        found = value // 1000 if unit == "ns" else value * int(_UNITS[unit])
    else:
        found = round(value * _UNITS[unit])
    return found if found < TIME_US_MAX else NULL


class EventTimes:
    """The rules of one stream, for event time and send time; both are optional."""

    __slots__ = ("_event", "_sent", "is_wanted")

    def __init__(self, event_time: str, sent_time: str) -> None:
        self._event = TimeRule.parse("event_time", event_time) if event_time else None
        self._sent = TimeRule.parse("sent_time", sent_time) if sent_time else None
        self.is_wanted = bool(event_time or sent_time)

    def find(self, payloads: Sequence[bytes], user: User) -> tuple[list[int], list[int]]:
        """Return (event times, send times), each with one a payload, or empty."""
        event, sent = self._event, self._sent
        trees: list[Any] = []
        if (event and event.path) or (sent and sent.path):
            trees = [_tree(payload) for payload in payloads]
        return _times(event, trees, user, payloads), _times(sent, trees, user, payloads)


def _times(
    rule: TimeRule | None, trees: list[Any], user: User, payloads: Sequence[bytes]
) -> list[int]:
    if rule is None:
        return []
    if rule.path:
        return [rule.read(_follow(tree, rule.path)) for tree in trees]
    for name, value in user:
        if name == rule.name:
            return [rule.read(value)] * len(payloads)
    return []


def _tree(payload: bytes) -> Any:
    if len(payload) > JSON_BYTES_MAX:
        return _ABSENT
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return _ABSENT


def _follow(tree: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, str):
            if not isinstance(tree, dict):
                return _ABSENT
            tree = tree.get(step, _ABSENT)
        elif isinstance(tree, list) and step < len(tree):
            tree = tree[step]
        else:
            return _ABSENT
    return tree
