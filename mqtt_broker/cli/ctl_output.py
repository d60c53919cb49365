"""Print answers of the broker for people: tables as wide as the terminal, and details of one thing.

Names come from clients: control characters and what changes the direction of text are escaped. On a
terminal long texts are cut with an ellipsis, and there are colours unless NO_COLOR is set; into a
pipe everything is written whole and plain.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mqtt_broker.cli.stream_text import count_text, plain, size_text

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
NEVER_S: Final = 0xFFFF_FFFF
_GAP: Final = "  "
_CUT_MIN: Final = 8  # columns of a text that is cut
_WIDTH: Final = 100  # of a terminal that does not say
_PERIODS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


class Column(NamedTuple):
    """A column of a table: its title, the key of the value, and the kind of the value."""

    title: str
    key: str
    kind: str = "text"


class Cell(NamedTuple):
    """A value as text, with the colour that it has on a terminal."""

    text: str
    colour: str = ""


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list) and all(not isinstance(one, dict | list) for one in value):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        pairs = (f"{plain(key)} {cell(one, kind_of(key)).text}" for key, one in value.items())
        return ", ".join(pairs) or "-"
    return plain(json.dumps(value, ensure_ascii=False))


def _count(value: Any) -> str:
    return count_text(round(value)) if _is_number(value) else _text(value)


def _bytes(value: Any) -> str:
    return size_text(round(value)) if _is_number(value) else _text(value)


def _rate(value: Any) -> str:
    if not _is_number(value):
        return _text(value)
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def span(value: Any) -> str:
    """Format seconds: 0.3s, 12s, 3m20s, 2h05m, 4d07h; an expiry of MQTT may be never."""
    if not _is_number(value):
        return _text(value)
    if value >= NEVER_S:
        return "never"
    if value < 10:
        return f"{value:.1f}s".replace(".0s", "s")
    seconds = round(value)
    for at, (length, unit) in enumerate(_PERIODS):
        if seconds >= length:
            below, name = (_PERIODS[at + 1]) if at + 1 < len(_PERIODS) else (1, "s")
            return f"{seconds // length}{unit}{seconds % length // below:02d}{name}"
    return f"{seconds}s"


def moment(value: Any) -> str:
    """Format Unix time, in UTC."""
    if not _is_number(value) or not 0 < value < 253_402_300_800:
        return "-" if not value else _text(value)
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(value))


def _ms(value: Any) -> str:
    return f"{value:,.1f}" if _is_number(value) else _text(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: Final[dict[str, Callable[[Any], str]]] = {
    "text": _text, "count": _count, "bad": _count, "bytes": _bytes, "rate": _rate,
    "seconds": span, "ms": _ms, "time": moment, "state": _text,
}  # fmt: skip
_RIGHT: Final = frozenset({"count", "bad", "bytes", "rate", "seconds", "ms"})
_STATE_KEYS: Final = dict.fromkeys(("state", "status", "health", "online"), "state")
_STATES: Final = {
    "yes": GREEN, "no": DIM, "ok": GREEN, "done": GREEN, "running": YELLOW, "degraded": YELLOW,
    "failed": RED, "failing": RED, "error": RED,
}  # fmt: skip


def cell(value: Any, kind: str) -> Cell:
    """Return a value as text of its kind."""
    text = _KINDS[kind](value)
    if kind == "bad" and _is_number(value) and value:
        return Cell(text, RED)
    return Cell(text, _STATES.get(text, "") if kind == "state" else "")


def kind_of(key: str) -> str:
    """Return the kind of a value by the end of its name, as the API names them."""
    for end, kind in (("_bytes", "bytes"), ("_at", "time"), ("_s", "seconds"), ("_ms", "ms")):
        if key.endswith(end):
            return kind
    if key in ("bytes", "bytes_in", "bytes_out", "bytes_done", "bytes_total"):
        return "bytes"
    return {"at": "time", "until": "time", "sees_back_to": "time", **_STATE_KEYS}.get(key, "text")


def columns_of(items: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return columns for all keys of some objects, in the order in which they come up."""
    keys = dict.fromkeys(key for item in items for key in item)
    return [Column(key.upper(), key, kind_of(key)) for key in keys]


# Terminals.


def has_colour() -> bool:
    """Tell whether stdout is a terminal that may have colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and _term() != "dumb"


def _term() -> str:
    return os.environ.get("TERM", "")


def terminal_width() -> int | None:
    """Return the columns of the terminal; None: stdout is not one, and nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def coloured(text: str, colour: str, *, is_on: bool) -> str:
    """Return a text in a colour, if there are colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and is_on else text


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def cut(text: str, width: int) -> str:
    """Cut a text to so many columns, with an ellipsis."""
    if text_width(text) <= width:
        return text
    kept = ""
    for char in text:
        if text_width(kept + char) > width - 1:
            break
        kept += char
    return kept + "…"


# Tables.


def table(
    items: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    *,
    width: int | None = None,
    has_colours: bool = False,
) -> list[str]:
    """Return the lines of a table with a header; numbers are right-aligned.

    With a `width`, texts are cut until the lines fit, the longest first.
    """
    rows = [[cell(_value(item, column.key), column.kind) for column in columns] for item in items]
    widths = [
        max([text_width(column.title), *(text_width(row[at].text) for row in rows)])
        for at, column in enumerate(columns)
    ]
    if width is not None:
        _shrink(widths, [column.kind not in _RIGHT for column in columns], width)
    head = [Cell(column.title, BOLD) for column in columns]
    lines = []
    for row in (head, *rows):
        parts = []
        for found, column, size in zip(row, columns, widths, strict=True):
            text = cut(found.text, size)
            blanks = " " * (size - text_width(text))
            shown = coloured(text, found.colour, is_on=has_colours)
            parts.append(blanks + shown if column.kind in _RIGHT else shown + blanks)
        lines.append(_GAP.join(parts).rstrip())
    return lines


def _value(item: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, which may be that of an object inside: `settings.filter`."""
    value = item.get(key)
    if value is None and "." in key:
        outer, _, inner = key.partition(".")
        found = item.get(outer)
        return found.get(inner) if isinstance(found, dict) else None
    return value


def _shrink(widths: list[int], may_cut: list[bool], width: int) -> None:
    """Make the widest texts smaller until a line fits, or they have `_CUT_MIN` columns."""
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0:
        candidates = [at for at, may in enumerate(may_cut) if may and widths[at] > _CUT_MIN]
        if not candidates:
            return
        widest = max(candidates, key=lambda at: widths[at])
        widths[widest] -= 1
        over -= 1


def print_table(items: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """Print a table on stdout, as wide as it is."""
    lines = table(items, columns, width=terminal_width(), has_colours=has_colour())
    print("\n".join(lines))


def print_details(found: Mapping[str, Any]) -> None:
    """Print one object: a line for each value, and tables of lists of objects below."""
    lists = {
        key: value
        for key, value in found.items()
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    }
    flat = _flat({key: value for key, value in found.items() if key not in lists})
    width = max(map(len, flat), default=0)
    colours = has_colour()
    for key, (value, kind) in flat.items():
        shown = cell(value, kind)
        title = coloured(f"{key:{width}}", BOLD, is_on=colours)
        print(f"{title}{_GAP}{coloured(shown.text, shown.colour, is_on=colours)}")
    for key, items in lists.items():
        print(f"\n{coloured(key, BOLD, is_on=colours)}")
        print_table(items, columns_of(items))


def _flat(found: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, str]]:
    flat: dict[str, tuple[Any, str]] = {}
    for key, value in found.items():
        name = f"{prefix}{plain(key)}"
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value, kind_of(key)
    return flat


def print_json(found: Any) -> None:
    """Print one JSON document; half surrogate pairs in names are escaped."""
    try:
        text = json.dumps(found, indent=1, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(found, indent=1)
    print(text)


def print_json_line(found: Any) -> None:
    """Print one line of a stream of JSON lines, at once."""
    print(json.dumps(found), flush=True)
