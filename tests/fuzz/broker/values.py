"""Values at the boundaries of their types, and topics by their grammar.

What a property may hold follows from its wire type in the property table, what a field may
hold from its width. Nothing here knows of any fault.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.properties import Kind
from tests.fuzz.broker.decisions import Decisions

LONGEST: Final = 65_535
VARINT_BOUNDS: Final = (127, 16_383, 2_097_151, 268_435_455)  # the most in one to four bytes
LEVELS: Final = ("a", "b", "", "w", "é漢", "$x")
Value = int | bytes | tuple[bytes, bytes]


def number(c: Decisions, low: int, high: int) -> int:
    """Small ones, the ends, what is beside a power of two (so: beside a sign), and any."""
    kind = c.below(8)
    if kind < 3:
        found = low + c.below(6)
    elif kind < 5:
        found = high - c.below(3)
    elif kind < 7:
        found = (1 << c.below(high.bit_length() + 1)) + c.below(3) - 1
    else:
        found = c.number(high)
    return max(low, min(high, found))


def varint(c: Decisions, low: int, high: int) -> int:
    if c.below(2):
        return number(c, low, high)
    return max(low, min(high, c.pick(VARINT_BOUNDS) + c.below(2)))


def text(c: Decisions) -> bytes:
    """Well-formed UTF-8 without what a server may refuse: none, short, two to four bytes a sign."""
    kind = c.below(16)
    if kind < 12:
        return c.pick(
            (b"", b"x", "é".encode(), "漢".encode(), "😀".encode(), b"\xef\xbb\xbf", b"a/b")
        )
    if kind < 15:
        return b"x" * c.pick((2, 126, 127, 128, 255, 256))
    return b"y" * (LONGEST - c.below(2))


def binary(c: Decisions) -> bytes:
    kind = c.below(16)
    if kind < 11:
        return c.pick((b"", b"\0", b"\xff", b"\0\xff\x80", b"x"))
    if kind < 15:
        return b"\xc3" * c.pick((2, 127, 128, 255, 256))
    return b"\0" * (LONGEST - c.below(2))


def properties(c: Decisions, packet: int, skipped: frozenset[int]) -> list[tuple[int, Value]]:
    """A few that belong to the packet, each once but user properties, in any order."""
    rows = [key for key, row in prop.TABLE.items() if packet in row.packets and key not in skipped]
    found: list[tuple[int, Value]] = []
    for _ in range(c.pick((0, 1, 1, 2, 4))):
        key = c.pick(rows) if rows else 0
        if key and (key == prop.USER_PROPERTY or all(key != other for other, _ in found)):
            found.append((key, value(c, key)))
    return found


def value(c: Decisions, key: int) -> Value:
    row = prop.TABLE[key]
    if row.kind is Kind.PAIR:
        return text(c), text(c)
    if row.kind is Kind.STRING:
        return topic(c) if key == prop.RESPONSE_TOPIC else text(c)
    if row.kind is Kind.BINARY:
        return binary(c)
    if row.kind is Kind.VARINT:
        return varint(c, max(1, row.low), VARINT_BOUNDS[-1])
    return number(c, row.low, min(row.high, (1 << 8 * row.kind.value) - 1))


def topic(c: Decisions) -> bytes:
    """A Topic Name: few levels of few kinds, so that filters meet them; rarely the longest."""
    if c.below(64) == 63:
        return ("a/" + "t" * (LONGEST - 2)).encode()
    found = "/".join(c.pick(LEVELS) for _ in range(1 + c.below(3)))
    return (found or "a").encode()


def topic_filter(c: Decisions) -> bytes:
    levels = [c.pick((*LEVELS, "+", "+")) for _ in range(1 + c.below(3))]
    if c.below(3) == 2:
        levels[-1] = "#"
    return ("/".join(levels) or "#").encode()


class Subject:
    """A few topics that one play is about, so that those who publish meet those who subscribe."""

    def __init__(self, c: Decisions) -> None:
        self.shares = c.pick((2, 6, 0, 6))  # of eight filters
        self.topics = [topic(c) for _ in range(1 + c.below(3))]
        self.used: list[bytes] = []  # filters that somebody asked for

    def topic(self, c: Decisions) -> bytes:
        return c.pick(self.topics) if c.below(4) < 3 else topic(c)

    def topic_filter(self, c: Decisions) -> bytes:
        """One that was asked for before, one that matches one of the topics, or any."""
        if self.used and c.below(3):
            return c.pick(self.used)
        found = topic_filter(c) if c.below(4) == 3 else self._matching(c)
        shared = b"$share/" + c.pick((b"g", b"g", b"g", "é".encode())) + b"/" + found
        if c.below(8) >= 8 - self.shares and len(shared) <= LONGEST:
            found = shared
        self.used.append(found)
        return found

    def _matching(self, c: Decisions) -> bytes:
        levels = c.pick(self.topics).split(b"/")
        kind = c.below(6)
        if kind == 4:
            levels[c.below(len(levels))] = b"+"
        elif kind == 5:
            levels[c.below(len(levels)) :] = [b"#"]
        return b"/".join(levels) or b"#"


def seconds(c: Decisions) -> float:
    """Up to 2^32: what intervals are counted in."""
    kind = c.below(16)
    if kind < 9:
        return c.pick((0.0, 0.001, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0))
    if kind < 14:
        return c.pick((59.0, 60.0, 61.0, 100.0, 3_600.0))
    return float(number(c, 0, 1 << 32))


# The steps of a play, and how often each comes.
STEP_KINDS: Final = (
    ("publish", 40),
    ("connect", 12),
    ("subscribe", 30),
    ("commit", 10),
    ("crash", 6),
    ("wait", 8),
    ("lose", 6),
    ("disconnect", 4),
    ("toggle", 5),
    ("unsubscribe", 3),
    ("mutate", 6),
    ("pack", 3),
    ("commit one", 3),
    ("fold", 3),
    ("fail", 2),
    ("stop", 2),
)
STEPS_ALWAYS: Final = {"publish", "connect", "subscribe"}
