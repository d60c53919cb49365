"""The valid ranges of values in a store, and substitutes for values outside of them.

    FIELDS        the fields of each kind of row: type, range and substitute
    repair_row    repairs a row, or raises `Irreparable` if a value has no substitute

Each row is checked alone; contradictions between rows are resolved where they are restored. The
ranges are those of the protocol and of numbers in a database.
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
ID_MAX: Final = 1 << 62  # of numbers that count up, so that there is always a next one
STRING_BYTES_MAX: Final = U16_MAX
NOT_GIVEN: Final = object()
NAMES_MAX: Final = 5  # in one line
NAME_CHARACTERS_MAX: Final = 80
ALTERED_ROW: Final = " left out: altered on disk, it does not match its checksum"
ALTERED: Final[Any] = object()  # in place of a payload whose row does not match its checksum

# Types of values.
NUMBER: Final = "number"
FLAG: Final = "flag"
TIME: Final = "time"  # low 0; infinite is valid if `high` is infinite
TEXT: Final = "text"  # at most `high` bytes of UTF-8, without U+0000
TOPIC: Final = "topic"  # a Topic Name
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
    """An invalid value without a substitute: the row is left out."""


class Altered(Irreparable):
    """A row that is not what was written."""


_ID: Final = Field(NUMBER, 1, ID_MAX)
_COUNT: Final = Field(NUMBER, otherwise=0)
_QOS: Final = Field(NUMBER, 0, 2, 1)
_FLAG: Final = Field(FLAG, otherwise=False)
_NAME: Final = Field(TEXT, 1, STRING_BYTES_MAX)
_STREAM: Final = Field(TEXT, 1, 100)  # the maximum length of a stream name
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
        # The substitute keeps the session: it never expires.
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


def repair_row(row: Any) -> list[str]:
    """Replace values outside their range; return their names. Raises Irreparable."""
    wrong: list[str] = []
    if isinstance(row, MessageRow | WillRow) and row.payload is ALTERED:
        raise Altered("payload")
    for name, field in FIELDS[type(row)].items():
        value = getattr(row, name)
        if _fits(value, field):
            continue
        if field.kind == WILL:
            wrong += _repair_will(row)
            continue
        if field.otherwise is NOT_GIVEN:
            raise Irreparable(name)
        setattr(row, name, field.otherwise)
        wrong.append(name)
    return wrong


def _repair_will(row: SessionRow) -> list[str]:
    try:
        return [f"will's {name}" for name in repair_row(row.will)]
    except (Irreparable, KeyError) as error:
        row.will = None
        return [f"will{ALTERED_ROW}" if isinstance(error, Altered) else "will"]


def valid_rows(
    rows: Iterable[Any], wrong: dict[str, int], altered: list[str] | None = None
) -> Iterator[Any]:
    """Yield the rows, repaired or unchanged, without the irreparable ones; count both.

    `altered` takes the names of messages and wills that were altered.
    """
    for row in rows:
        kind = KINDS[type(row)]
        try:
            for name in repair_row(row):
                is_whole = name.endswith(ALTERED_ROW)
                if is_whole and altered is not None:
                    add_name(altered, will_name(row.client_id))
                count(wrong, name if is_whole else f"{kind} with an impossible {name}")
        except Altered:
            count(wrong, f"{kind}{ALTERED_ROW}")
            if altered is not None:
                add_name(altered, message_name(row.mid, row.topic))
        except Irreparable as error:
            count(wrong, f"{kind} left out, with an impossible {error}")
        else:
            yield row


def message_name(mid: Any, topic: Any) -> str:
    """Name a message for a person; the topic may be what was altered."""
    return f"message {mid} to {_short(topic)}"


def will_name(client_id: Any) -> str:
    """Name the will of a session for a person."""
    return f"will of {_short(client_id)}"


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return repr(text[:NAME_CHARACTERS_MAX])


def add_name(names: list[str], name: str) -> None:
    """Keep a name for a line; one more than fit says that there are others."""
    if len(names) <= NAMES_MAX and name not in names:
        names.append(name)


def listed(names: list[str]) -> str:
    """Join the names that fit into a line."""
    more = " and others" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


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
