"""The extremes of every field of every row and record, by what the field may be.

Rows have their ranges in `sessions.journal.value_ranges`; records of the journal have theirs
here. A field without a range is an error, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Any, Final

from sessions.journal import records
from sessions.journal.records import (
    Completed,
    Cursor,
    CursorsGone,
    Delivered,
    Done,
    Ended,
    Freed,
    Left,
    Received,
    Released,
    Retained,
    Sent,
    Stored,
    StreamGone,
    Unsubscribed,
)
from sessions.journal.rows import DeliveryRow, MessageRow, SessionRow, WillRow
from sessions.journal.value_ranges import (
    BYTES,
    FIELDS,
    FLAG,
    ID_MAX,
    NUMBER,
    NUMBERS,
    TEXT,
    TIME,
    TOPIC,
    U16_MAX,
    U32_MAX,
    WILL,
    Field,
)

LARGE_BYTES: Final = 3 << 20  # of a payload
_ID: Final = Field(NUMBER, 1, ID_MAX)
_PACKET_ID: Final = Field(NUMBER, 1, U16_MAX)
_PACKET_IDS: Final = Field(NUMBERS, 1, U16_MAX)
_NAME: Final = Field(TEXT, 1, U16_MAX)
_STREAM: Final = Field(TEXT, 1, 100)
_MESSAGE: Final = FIELDS[MessageRow]
_DELIVERY: Final = FIELDS[DeliveryRow]
COUNT: Final = Field("count", 1, U16_MAX)
LISTS: Final = Field("list")  # of parts whose extremes are those of their own fields

RECORD_FIELDS: Final[dict[type, dict[str, Field]]] = {
    Ended: {"sid": _ID},
    Unsubscribed: {"sid": _ID, "filter": _NAME},
    Stored: {
        **{name: _MESSAGE[name] for name in _MESSAGE if name != "payload"},
        "payloads": Field(BYTES, 0, LARGE_BYTES),
    },
    Delivered: {
        **{name: _DELIVERY[name] for name in _DELIVERY if name != "packet_id"},
        "count": COUNT,
        "packet_ids": _PACKET_IDS,
    },
    Sent: {"sid": _ID, "sent": LISTS},
    Done: {"sid": _ID, "runs": LISTS},
    Released: {"sid": _ID, "released": LISTS},
    Completed: {"sid": _ID, "packet_ids": _PACKET_IDS},
    Received: {"sid": _ID, "packet_ids": _PACKET_IDS},
    Freed: {"sid": _ID, "packet_ids": _PACKET_IDS},
    Retained: {"mid": _ID, "before": _ID},
    StreamGone: {"name": _STREAM},
    Cursor: {
        "owner": Field(TEXT, 1, 200_000),
        "stream": _STREAM,
        "epoch": Field(TEXT, 1, U16_MAX),
        "offsets": LISTS,
    },
    CursorsGone: {"owner": Field(TEXT, 1, 200_000), "stream": _STREAM},
    Left: {
        "sid": _ID,
        "base": Field(NUMBER, 1, ID_MAX >> 1),
        "messages": Field(NUMBER, 0, U32_MAX),
    },
}


def kinds() -> list[type]:
    """Every kind of record, and what stands in one."""
    return [*typing.get_args(records.Record), WillRow]


def fields_of(kind: type) -> dict[str, Field]:
    known = FIELDS.get(kind) or RECORD_FIELDS[kind]
    names = {field.name for field in dataclasses.fields(kind)}
    assert names == known.keys(), f"{kind.__name__}: extremes of {names ^ known.keys()}"
    return known


def numbers(low: int, high: float) -> list[int]:
    """Where signs and widths end, within a range."""
    edges = {low, low + 1, 0, 1, int(high) - 1, int(high)}
    for bits in (7, 8, 15, 16, 28, 31, 32, 62, 63):
        edges |= {(1 << bits) - 1, 1 << bits}
    return sorted(edge for edge in edges if low <= edge <= high)


def texts(low: int, high: float) -> list[str]:
    size = int(min(high, U16_MAX))
    found = [
        "x" * low, "x", "/", "x" * size, "ü" * (size // 2), "€" * (size // 3),
        "\N{GRINNING FACE}" * (size // 4), "\ufeff", "\U0010ffff", "'\"\\%_?{}", "a b",
    ]  # fmt: skip
    if high > U16_MAX:
        found.append("y" * 200_000)
    return [text for text in dict.fromkeys(found) if len(text) >= low]


def times(high: float) -> list[float]:
    found = [0.0, -0.0, 5e-324, 1.0, 2.0**31, 2.0**32, 1e11, 9e15]
    return [*found, 1e300, math.inf] if high == math.inf else found


def extremes(field: Field) -> list[Any]:
    kind, low, high = field.kind, field.low, field.high
    found: list[Any] = [None] if field.is_optional else []
    if kind == NUMBER:
        found += numbers(low, high)
    elif kind == "count":
        found += [low, low + 1, int(high)]
    elif kind in (TEXT, TOPIC):
        found += texts(low, high)
    elif kind == BYTES:
        size = int(min(high, LARGE_BYTES))
        found += [b"", b"\0", b"\xff", bytes(U16_MAX), b"\xff" * size]
    elif kind == TIME:
        found += times(high)
    elif kind == FLAG:
        found += [False, True]
    elif kind == NUMBERS:
        found += [(), (low,), tuple(numbers(low, high)), tuple(range(low, 300))]
    elif kind == WILL:
        found.append(WillRow("t", b"", 0, False, b""))
    return found


def every() -> Iterator[tuple[type, str, Any]]:
    """Kind, field, value."""
    for kind in kinds():
        for name, field in fields_of(kind).items():
            for value in extremes(field):
                yield kind, name, value


__all__ = [
    "SessionRow",
    "every",
    "extremes",
    "fields_of",
    "kinds",
    "numbers",
    "texts",
]
