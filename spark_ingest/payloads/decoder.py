"""Payloads to typed columns: JSON and CBOR, each payload or a reason why not.

    decoder = Decoder(shape, JSON)
    values, reasons = decoder.decode(payloads)      Arrow arrays of as many rows

A payload that does not parse, or violates the schema, is null in `values` and has its reason in
`reasons`; it never raises and never affects other rows. The reason is one line with the field, and
quotes nothing from the payload.

JSON is decoded as a whole by `column_decoder`; payloads that it does not accept are decoded here
one by one. So is CBOR: as in RFC 8949, with text or bytes as keys; of tags, only times (0, 1),
large integers (2, 3) and the one that marks CBOR. Other tags are refused if cbor2 would evaluate
them (some to numbers of a gigabyte); the rest match no type. Of duplicate keys the last one counts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_ingest.payloads.column_decoder import (
    NEAR_ROWS,
    NESTED_MAX,
    PIECE_ROWS,
    PIECES,
    PLAIN_ROWS,
    JsonColumns,
    NotAll,
)
from spark_ingest.payloads.row_decoder import Unfit, conformer
from spark_ingest.payloads.schemas import BINARY, OBJECT, Shape

NONE: Final = "none"
JSON: Final = "json"
CBOR: Final = "cbor"
AUTO: Final = "auto"
EMPTY: Final = "empty"
_TOO_DEEP: Final = f"more than {NESTED_MAX} objects or arrays in each other"
_DIGITS_MAX: Final = 400  # more than any float has room for, and fewer than Python refuses
_SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
# Tags that cbor2 evaluates by itself, and that no column can hold.
_TAGS_REFUSED: Final = (
    4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000,
)  # fmt: skip
# The first byte of CBOR maps and tags, which begins no JSON object.
_CBOR_FIRST: Final = frozenset(range(0xA0, 0xDC))
Array = Any
Reasons = dict[int, str]


class Decoder:
    def __init__(self, shape: Shape, parse: str) -> None:
        if parse == AUTO and shape.kind != OBJECT:
            raise ValueError("JSON is told from CBOR by the first byte of an object only")
        if parse != CBOR and _has_bytes(shape):
            raise ValueError("JSON has no bytes, and there is to be a column of them")
        self._parse = parse
        self._type = shape.arrow
        self._conform = conformer(shape)
        self._json = JsonColumns(shape) if parse != CBOR else None
        self._load_cbor = cbor_loader() if parse != JSON else None

    def decode(self, payloads: Array) -> tuple[Array, Array]:
        """Decode an array of payloads to (values, reasons)."""
        work = _Work(payloads, self._type)
        rows = list(range(len(payloads))) if self._parse == CBOR else None
        if self._parse == AUTO:
            firsts = pc.binary_slice(payloads, 0, 1).to_pylist()
            rows = [at for at, first in enumerate(firsts) if first and first[0] in _CBOR_FIRST]
        if rows:
            assert self._load_cbor is not None
            work.one_by_one(rows, self._load_cbor, self._conform)
        if self._json is not None:
            self._decode_json(self._json, work, payloads, frozenset(rows or ()))
        return work.done()

    def _decode_json(
        self, columns: JsonColumns, work: _Work, payloads: Array, taken: frozenset[int]
    ) -> None:
        trimmed, may_do = columns.candidates(payloads)
        if may_do is None and not taken:
            places = range(len(payloads))
        else:
            chosen = may_do.to_pylist() if may_do is not None else [True] * len(payloads)
            fits = [at for at, fit in enumerate(chosen) if fit and at not in taken]
            rest = [at for at, fit in enumerate(chosen) if not fit and at not in taken]
            work.one_by_one(rest, load_json, self._conform)
            trimmed = trimmed.take(pa.array(fits, pa.int64()))
            places = fits  # type: ignore[assignment]
        self._read(columns, work, trimmed, places)

    def _read(self, columns: JsonColumns, work: _Work, part: Array, places: Any) -> None:
        """Parse payloads together; in halves where some fail; one by one where they are few."""
        while count := len(part):
            try:
                values, doubtful = columns.read(part)
            except NotAll as bad:
                if count <= PLAIN_ROWS:
                    work.one_by_one(places, load_json, self._conform)
                    return
                if count > PIECE_ROWS or bad.row < 0:
                    step = max(PLAIN_ROWS, -(-count // PIECES))
                    for at in range(0, count, step):
                        self._read(columns, work, part.slice(at, step), places[at : at + step])
                    return
                if not NEAR_ROWS <= bad.row < count:  # many are bad, perhaps
                    work.one_by_one(places, load_json, self._conform)
                    return
                self._read(columns, work, part.slice(0, bad.row), places[: bad.row])
                work.one_by_one(places[bad.row : bad.row + 1], load_json, self._conform)
                part, places = part.slice(bad.row + 1), places[bad.row + 1 :]
            else:
                work.put(places, values, doubtful)
                if doubtful is not None:
                    rows = pc.indices_nonzero(doubtful).to_pylist()
                    work.one_by_one([places[row] for row in rows], load_json, self._conform)
                return


class _Work:
    """The rows of one call, which come in any order and are put in theirs at the end."""

    def __init__(self, payloads: Array, kind: Any) -> None:
        self._payloads = payloads
        self._kind = kind
        self._count = len(payloads)
        self._parts: list[Array] = []
        self._places: list[Any] = []
        self._values: list[Any] = []  # one by one
        self._rows: list[int] = []
        self._reasons: Reasons = {}

    def put(self, places: Any, values: Array, doubtful: Array | None) -> None:
        if doubtful is not None:
            sure = pc.indices_nonzero(pc.invert(doubtful))
            values = values.take(sure)
            places = [places[row] for row in sure.to_pylist()]
        self._parts.append(values)
        self._places.append(places)

    def one_by_one(
        self, rows: Iterable[int], load: Callable[[bytes], Any], conform: Callable[[Any], Any]
    ) -> None:
        rows = list(rows)
        payloads = self._payloads.take(pa.array(rows, pa.int64())).to_pylist()
        for row, payload in zip(rows, payloads, strict=True):
            value = None
            try:
                if not payload:
                    raise Unfit(EMPTY)
                value = conform(load(payload))
            except Unfit as unfit:
                self._reasons[row] = str(unfit)
            self._values.append(value)
        self._rows += rows

    def done(self) -> tuple[Array, Array]:
        if self._rows:
            self._parts.append(pa.array(self._values, self._kind))
            self._places.append(self._rows)
        if not self._parts:
            return pa.nulls(0, self._kind), pa.nulls(0, pa.string())
        values = pa.concat_arrays(self._parts) if len(self._parts) > 1 else self._parts[0]
        if len(self._parts) > 1 or self._rows:
            order = [0] * self._count
            for at, place in enumerate(place for places in self._places for place in places):
                order[place] = at
            values = values.take(pa.array(order, pa.int64()))
        if not self._reasons:
            return values, pa.nulls(self._count, pa.string())
        reasons = [self._reasons.get(row) for row in range(self._count)]
        return values, pa.array(reasons, pa.string())


def _has_bytes(shape: Shape) -> bool:
    if shape.element is not None:
        return _has_bytes(shape.element)
    return shape.kind == BINARY or any(_has_bytes(part) for _, part in shape.fields)


# One payload.


def load_json(payload: bytes) -> Any:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise Unfit("no UTF-8") from None
    try:
        found = _loads(text)
    except json.JSONDecodeError as error:
        raise Unfit(f"no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Unfit(_TOO_DEEP) from None
    if payload.count(b"{") + payload.count(b"[") > NESTED_MAX and _is_too_deep(found):
        raise Unfit(_TOO_DEEP)
    return found


def _loads(text: str) -> Any:
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer of more digits than Python takes
        return _JSON_LONG.decode(text)


def _refuse_constant(name: str) -> Any:
    raise Unfit(f"no JSON: {name}")


def _integer(digits: str) -> float:
    """Parse an integer; infinity stands for one that fits into no column."""
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


# Made once: `json.loads` with an argument makes one each time, which costs twice the parsing.
_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_JSON_LONG: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_integer)


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(NESTED_MAX):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)


def cbor_loader() -> Callable[[bytes], Any]:
    """Return the CBOR parser. Imports cbor2, only when CBOR is to be read."""
    import cbor2

    # Each payload is read as the first of two elements; the second is not to be guessed. So one
    # that is cut short, or has something behind it, is told without a file around its bytes.
    second = secrets.token_bytes(16)
    end = b"\x50" + second
    refused = dict.fromkeys(_TAGS_REFUSED, _refuse_tag)
    loads, error_class = cbor2.loads, cbor2.CBORError

    def load(payload: bytes) -> Any:
        payload = payload.removeprefix(_SELF_DESCRIBED)
        try:
            found = loads(
                b"\x82" + payload + end,
                semantic_decoders=refused,
                max_depth=NESTED_MAX + 1,
                strict_hashable_types=True,
            )
        except error_class as error:
            raise Unfit(f"no CBOR: {_why(error)}") from None
        if found[1] != second:
            raise Unfit("no CBOR: something stands behind it")
        return found[0]

    return load


def _refuse_tag(*_: Any) -> Any:
    raise ValueError("this tag is not taken")


def _why(error: Exception) -> str:
    cause = error.__cause__
    text = f"{error}, {cause}" if isinstance(cause, ValueError) else str(error)
    return text.partition(" (")[0][:120]
