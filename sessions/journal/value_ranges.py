"""Ranges of the values that a store may hold, and substitutes for values outside of them.

    FIELDS   the fields of every kind of row: type, range and substitute
    mend     repairs a row, or raises `Irreparable` if a value has no substitute

Each row is checked alone; contradictions between rows are resolved where they are restored. The
ranges are those of the protocol and of the numbers that a database holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from sessions.journal.rows import (
    BacklogRow,
    CursorRow,
    DeliveryRow,
    MessageRow,
    SessionRow,
    ShareRow,
    StreamRow,
    SubscriptionRow,
    WillRow,
)

U16_MAX: Final = (1 << 16) - 1
U32_MAX: Final = (1 << 32) - 1
VARINT_MAX: Final = (1 << 28) - 1
NUMBER_MAX: Final = (1 << 63) - 1  # of a database
ID_MAX: Final = 1 << 62  # of numbers that count up: there is always a next one
STRING_BYTES_MAX: Final = U16_MAX
NOT_GIVEN: Final = object()

# Types of values.
NUMBER: Final = "number"
FLAG: Final = "flag"
TIME: Final = "time"  # low 0; it may be infinite where `high` is
TEXT: Final = "text"  # `high` bytes of UTF-8 at most, without U+0000
TOPIC: Final = "topic"  # a text that is a Topic Name
BYTES: Final = "bytes"
NUMBERS: Final = "numbers"
WILL: Final = "will"


class Field(NamedTuple):
    kind: str
    low: int = 0
    high: float = NUMBER_MAX
    otherwise: Any = NOT_GIVEN  # the substitute
    is_optional: bool = False


class Irreparable(ValueError):
    """A row with a value that has no substitute: it is left out."""


_ID: Final = Field(NUMBER, 1, ID_MAX)
_COUNT: Final = Field(NUMBER, otherwise=0)
_QOS: Final = Field(NUMBER, 0, 2, 1)
_FLAG: Final = Field(FLAG, otherwise=False)
_NAME: Final = Field(TEXT, 1, STRING_BYTES_MAX)
_STREAM: Final = Field(TEXT, 1, 100)  # a key of a table, as short as the log allows
_WORDS: Final = Field(TEXT, 0, math.inf, "")
_SECTION: Final = Field(BYTES, otherwise=b"")
_PAST: Final = Field(TIME, 0, NUMBER_MAX, 0.0)

FIELDS: Final[dict[type, dict[str, Field]]] = {
    WillRow: {
        "topic": Field(TOPIC, 1, STRING_BYTES_MAX),
        "payload": Field(BYTES, 0, U16_MAX),
        "qos": _QOS,
        "retain": _FLAG,
        "section": _SECTION,
    },
    SessionRow: {
        "sid": _ID,
        "client_id": _NAME,
        "username": Field(TEXT, 0, STRING_BYTES_MAX, None, True),
        "version": Field(NUMBER, 3, 5, 5),
        "created_at": _PAST,
        # Kept rather than lost: as a session that never expires.
        "expiry_interval": Field(NUMBER, 0, U32_MAX, U32_MAX),
        "is_online": _FLAG,
        "expires_at": Field(TIME, 0, math.inf, math.inf),
        "will_at": _PAST,
        "will": Field(WILL, otherwise=None, is_optional=True),
    },
    ShareRow: {"sid": _ID, "filter": _NAME},
    SubscriptionRow: {
        "sid": _ID,
        "filter": _NAME,
        "qos": Field(NUMBER, 0, 2, 2),
        "no_local": _FLAG,
        "retain_as_published": _FLAG,
        "retain_handling": Field(NUMBER, 0, 2, 0),
        "identifier": Field(NUMBER, 0, VARINT_MAX, 0),
    },
    MessageRow: {
        "mid": _ID,
        "topic": Field(TOPIC, 1, STRING_BYTES_MAX),
        "qos": _QOS,
        "retain": _FLAG,
        "section": _SECTION,
        "payload": Field(BYTES),
        "publisher": Field(TEXT, 0, STRING_BYTES_MAX, ""),
        "received_at": _PAST,
        "expiry_interval": Field(NUMBER, -1, U32_MAX, -1),
    },
    DeliveryRow: {
        "sid": _ID,
        "n": _ID,
        "mid": _ID,
        "qos": _QOS,
        "retain": _FLAG,
        "subscription_ids": Field(NUMBERS, 1, VARINT_MAX, ()),
        "share": Field(TEXT, 0, STRING_BYTES_MAX, ""),
        "packet_id": Field(NUMBER, 0, U16_MAX, 0),
        "size": Field(NUMBER, 0, U32_MAX, 0),
    },
    BacklogRow: {
        "sid": _ID,
        "messages": _COUNT,
        "bytes": _COUNT,
        "n_first": Field(NUMBER, 0, ID_MAX, 0),
        "n_last": Field(NUMBER, 0, ID_MAX, 0),
    },
    StreamRow: {
        "name": _STREAM,
        "epoch": _WORDS,
        "filter": _WORDS,
        "settings": _WORDS,
        "created_at": _PAST,
    },
    CursorRow: {
        "owner": Field(TEXT, 1, math.inf),
        "stream": _STREAM,
        "epoch": _WORDS,
        "partition": Field(NUMBER, 0, U16_MAX),
        "offset": Field(NUMBER, 0),
    },
}


def mend(row: Any) -> list[str]:
    """Replace values outside their range and return their names. Raises Irreparable."""
    wrong: list[str] = []
    for name, field in FIELDS[type(row)].items():
        value = getattr(row, name)
        if _fits(value, field):
            continue
        if field.kind == WILL:
            wrong += _mend_will(row)
            continue
        if field.otherwise is NOT_GIVEN:
            raise Irreparable(name)
        setattr(row, name, field.otherwise)
        wrong.append(name)
    return wrong


def _mend_will(row: SessionRow) -> list[str]:
    try:
        return [f"will's {name}" for name in mend(row.will)]
    except (Irreparable, KeyError):
        row.will = None
        return ["will"]


def sound(rows: Iterable[Any], wrong: dict[str, int]) -> Iterator[Any]:
    """Yield the rows, repaired where needed, without the irreparable ones; count both."""
    for row in rows:
        kind = KINDS[type(row)]
        try:
            for name in mend(row):
                count(wrong, f"{kind} with an impossible {name}")
        except Irreparable as error:
            count(wrong, f"{kind} left out, with an impossible {error}")
        else:
            yield row


def count(wrong: dict[str, int], what: str, more: int = 1) -> None:
    wrong[what] = wrong.get(what, 0) + more


KINDS: Final = {
    WillRow: "will",
    SessionRow: "session",
    ShareRow: "shared subscription",
    SubscriptionRow: "subscription",
    MessageRow: "message",
    DeliveryRow: "delivery",
    BacklogRow: "queue",
    StreamRow: "stream",
    CursorRow: "cursor",
}


def _fits(value: Any, field: Field) -> bool:
    kind = field.kind
    if value is None:
        return field.is_optional
    if kind == NUMBER:
        return type(value) is int and field.low <= value <= field.high
    if kind in (TEXT, TOPIC):
        return isinstance(value, str) and _is_text(value, field)
    if kind == BYTES:
        return isinstance(value, bytes) and len(value) <= field.high
    if kind == FLAG:
        return type(value) is bool
    if kind == TIME:
        if type(value) not in (float, int):
            return False
        return bool(field.low <= value <= field.high)  # False for NaN
    if kind == NUMBERS:
        return isinstance(value, tuple) and all(
            type(one) is int and field.low <= one <= field.high for one in value
        )
    return isinstance(value, WillRow) and all(
        _fits(getattr(value, name), part) for name, part in FIELDS[WillRow].items()
    )


def _is_text(text: str, field: Field) -> bool:
    if len(text) < field.low or "\0" in text:
        return False
    if field.kind == TOPIC and ("#" in text or "+" in text):
        return False
    if 4 * len(text) <= field.high and text.isascii():
        return True
    try:
        return len(text.encode()) <= field.high
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
