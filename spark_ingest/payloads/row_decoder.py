"""Fit one parsed payload to its shape: the slow path for what the column decoder refuses.

`conformer(shape)` returns a function that converts a payload for its column, or raises `Unfit` with
the field and the reason. It is authoritative: `column_decoder`, which is faster, accepts only
payloads that this module accepts, with the same result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark_ingest.payloads.schemas import (
    ARRAY,
    BINARY,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    TIME,
    Shape,
)

Conformer = Callable[[Any], Any]

_A: Final = {
    OBJECT: "an object",
    ARRAY: "an array",
    STRING: "text",
    INTEGER: "an integer",
    NUMBER: "a number",
    BOOLEAN: "true or false",
    TIME: "a time",
    BINARY: "bytes",
}
_FLOAT32_MAX: Final = (2 - 2**-23) * 2.0**127
_EXACT_MAX: Final = 2**53  # a float beyond may stand for several integers
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d(?:\.(\d{1,30}))?)?)([Zz]|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)


class Unfit(Exception):
    """Why a payload is not what the schema says; the path grows on the way out."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.path = path

    def inside(self, step: str) -> Unfit:
        dot = "." if self.path and not self.path.startswith("[") else ""
        return Unfit(self.why, f"{step}{dot}{self.path}")

    def __str__(self) -> str:
        return f"{self.path}: {self.why}" if self.path else self.why


def conformer(shape: Shape) -> Conformer:
    """Return the function that fits a whole payload; null is not a payload."""
    conform = _maker(shape)

    def conform_payload(value: Any) -> Any:
        if value is None:
            raise Unfit(f"null where {_A[shape.kind]} belongs")
        return conform(value)

    return conform_payload


def time_us(text: str) -> int | None:
    """Parse an RFC 3339 time to microseconds, as UTC if it names no zone; None if invalid.

    Digits behind the microsecond are cut off. In UTC it lies in the years 1 to 9999.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock.partition('.')[0]}{(zone or 'Z').upper()}")
        at_us = (moment - _EPOCH) // _MICROSECOND + int(((fraction or "") + "000000")[:6])
    except (ValueError, OverflowError):
        return None
    return at_us if _FIRST_US <= at_us <= _LAST_US else None


def _maker(shape: Shape) -> Conformer:
    if shape.kind == OBJECT:
        return _object(shape)
    if shape.element is not None:
        return _array(shape.element)
    found = _SCALARS[shape.kind](shape)
    return _one_of(found, frozenset(shape.enum)) if shape.enum else found


def _object(shape: Shape) -> Conformer:
    parts = [(name, _maker(part), part) for name, part in shape.fields]

    def conform(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(value, OBJECT)
        found = {}
        for name, conform_part, part in parts:
            inner = value.get(name)
            if inner is not None:
                try:
                    found[name] = conform_part(inner)
                except Unfit as unfit:
                    raise unfit.inside(name) from None
            elif part.is_required:
                raise Unfit("null" if name in value else "missing", name)
            else:
                found[name] = None
        return found

    return conform


def _array(element: Shape) -> Conformer:
    conform_element = _maker(element)

    def conform(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _wrong(value, ARRAY)
        found: list[Any] = []
        for at, inner in enumerate(value):
            if inner is None:
                if element.is_required:
                    raise Unfit("null", f"[{at}]")
                found.append(None)
                continue
            try:
                found.append(conform_element(inner))
            except Unfit as unfit:
                raise unfit.inside(f"[{at}]") from None
        return found

    return conform


def _one_of(conform_value: Conformer, values: frozenset[Any]) -> Conformer:
    def conform(value: Any) -> Any:
        found = conform_value(value)
        if found not in values:
            raise Unfit("none of the values that it may have")
        return found

    return conform


def _integer(shape: Shape) -> Conformer:
    limit = 1 << (shape.bits - 1)

    def conform(value: Any) -> int:
        if type(value) is float and value.is_integer() and abs(value) <= _EXACT_MAX:
            value = int(value)
        elif type(value) is not int:
            raise _wrong(value, INTEGER)
        if not -limit <= value < limit:
            raise Unfit(f"an integer of more than {shape.bits} bits")
        found: int = value
        return found

    return conform


def _number(shape: Shape) -> Conformer:
    limit = _FLOAT32_MAX if shape.bits == 32 else math.inf

    def conform(value: Any) -> float:
        if type(value) is not float and type(value) is not int:
            raise _wrong(value, NUMBER)
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found) or abs(found) > limit:
            raise Unfit("not a number" if math.isnan(found) else "a number out of range")
        return found

    return conform


def _string(shape: Shape) -> Conformer:
    def conform(value: Any) -> str:
        if type(value) is not str:
            raise _wrong(value, STRING)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Unfit("text with half a surrogate pair") from None
        return value

    return conform


def _boolean(shape: Shape) -> Conformer:
    def conform(value: Any) -> bool:
        if type(value) is not bool:
            raise _wrong(value, BOOLEAN)
        return value

    return conform


def _binary(shape: Shape) -> Conformer:
    def conform(value: Any) -> bytes:
        if type(value) is not bytes:
            raise _wrong(value, BINARY)
        return value

    return conform


def _time(shape: Shape) -> Conformer:
    def conform(value: Any) -> int:
        if isinstance(value, datetime):  # CBOR has times of its own
            moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            at_us = (moment - _EPOCH) // _MICROSECOND
            if not _FIRST_US <= at_us <= _LAST_US:
                raise Unfit("a time outside the years 1 to 9999")
            return at_us
        if type(value) is not str:
            raise _wrong(value, TIME)
        found = time_us(value)
        if found is None:
            raise Unfit("text that is no RFC 3339 time")
        return found

    return conform


_SCALARS: Final[Mapping[str, Callable[[Shape], Conformer]]] = {
    INTEGER: _integer,
    NUMBER: _number,
    STRING: _string,
    BOOLEAN: _boolean,
    TIME: _time,
    BINARY: _binary,
}


def _wrong(value: object, wanted: str) -> Unfit:
    return Unfit(f"{_described(value)} where {_A[wanted]} belongs")


def _described(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    return f"a {type(value).__name__}" if value is not None else "null"
