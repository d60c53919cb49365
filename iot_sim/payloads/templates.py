"""Templates for the payload of a report: `{seq},{time_iso},{signal.temperature:.1f}`.

Braces contain a name of the report and one of a few formats, so a template can read no attribute
and call nothing, and is checked completely before anything is sent. A literal brace is doubled,
as in Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from iot_sim.payloads.schema import DOUBLE, LONG, STRING, Field

TEMPLATE_CHARS_MAX: Final = 65_536

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\{|\}")
_FORM: Final = re.compile(r"0?\d{0,2}(?:\.\d{1,2})?[dfegxs]?")

# The names that change from report to report; the values of the model follow them.
_MOVING: Final = ("seq", "time", "time_ms", "time_iso")


class TemplateError(ValueError):
    """An invalid template; the text says where, and what would be right."""


class Template:
    """A template compiled for one device."""

    __slots__ = ("_format", "_sources")

    def __init__(self, text: str, fields: Sequence[Field], fixed: Mapping[str, str]) -> None:
        """`fixed`: names with a constant value, such as the client id."""
        if len(text) > TEMPLATE_CHARS_MAX:
            raise TemplateError(
                f"must have at most {TEMPLATE_CHARS_MAX} characters, not {len(text)}"
            )
        places = {f"signal.{field.name}": at for at, field in enumerate(fields, len(_MOVING))}
        places.update({name: at for at, name in enumerate(_MOVING)})
        types = [LONG, DOUBLE, LONG, STRING, *(field.type for field in fields)]
        digits = [0, 3, 0, 0, *(field.digits for field in fields)]
        pieces: list[str] = []  # of a `%` format
        sources: list[tuple[int, str, bool]] = []
        end = 0
        for found in _TOKEN.finditer(text):
            pieces.append(text[end : found.start()].replace("%", "%%"))
            end = found.end()
            token = found[0]
            if token in ("{{", "}}"):
                pieces.append(token[0])
                continue
            if token in ("{", "}"):
                raise TemplateError(
                    f"single {token} at character {found.start() + 1}; write {token * 2}"
                )
            name, colon, form = found[1].partition(":")
            if name in fixed and not colon:
                pieces.append(fixed[name].replace("%", "%%"))
                continue
            if name not in places:
                known = ", ".join(sorted({*fixed, *places}))
                raise TemplateError(f"unknown name {{{name}}}; expected one of {known}")
            at = places[name]
            _check_form(name, form, types[at])
            pieces.append("%s")
            if types[at] == DOUBLE and not form:
                form = f".{digits[at]}f"
            sources.append((at, form, types[at] == LONG))
        pieces.append(text[end:].replace("%", "%%"))
        self._format = "".join(pieces)
        self._sources = tuple(sources)

    def fill(self, seq: int, ts: int, values: Sequence[Any]) -> str:
        return self._format % tuple(
            [_text(_pick(at, seq, ts, values), form, whole) for at, form, whole in self._sources]
        )


def _check_form(name: str, form: str, type: str) -> None:
    if not _FORM.fullmatch(form):
        raise TemplateError(
            f"{{{name}:{form}}}: a format has a width, digits and one of d f e g x s, as in 08.2f"
        )
    letter = form[-1:] if form[-1:].isalpha() else ""
    fits = {
        "d": type == LONG, "x": type == LONG, "s": type not in (LONG, DOUBLE), "": True,
    }.get(letter, type in (LONG, DOUBLE))  # fmt: skip
    if type not in (LONG, DOUBLE) and (letter not in ("", "s") or form.startswith("0")):
        fits = False
    if "." in form and (letter in ("d", "x") or (type == LONG and not letter)):
        fits = False
    if not fits:
        raise TemplateError(f"{{{name}:{form}}}: {form!r} is not a format for the {type} {name}")


def _pick(at: int, seq: int, ts: int, values: Sequence[Any]) -> Any:
    if at >= len(_MOVING):
        return values[at - len(_MOVING)]
    if at == 0:
        return seq
    if at == 1:
        return ts / 1000
    if at == 2:
        return ts
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds")


def _text(value: Any, form: str, whole: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        value = "true" if value else "false"
    return format(int(value) if whole else value, form)
