"""Many JSON payloads at once, by Arrow's parser: 0.3 us a message in place of 4.

Arrow parses a sequence of objects without message boundaries: a payload with two objects, half of
one, or none would shift all that follow. It accepts NaN, stops at a zero byte, accepts bytes that
are not UTF-8, and crashes the process if the first payload is `null`. So its input and output must
meet these rules:

- A payload begins with `{` and ends with `}`. They are joined by line feeds.
- Between a `}` and a `{` there is never a comma, so two payloads cannot become one: where one
  ends with an object or string open, the `}`, the line feed and the `{` are an error. Hence each
  payload gives one row or more, and when there are as many rows as payloads, each gave one.
- After a `}` there is only `,`, `]`, `}`, `{` or the end. So a whole object at the top level is
  followed by another one, which the count of rows reveals, or by an error.
- There is no zero byte, no NaN, no Infinity; everything is UTF-8; nothing is nested deeper than
  Python accepts.

Payloads that are not objects are wrapped as `{"v":...}`. A payload that breaks out of that with a
comma names an unexpected field, which is an error.

Input that fails as a whole is divided until the rest is small and decoded payload by payload. So
the result for one payload never depends on the others.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_ingest.payloads.row_decoder import time_us
from spark_ingest.payloads.schemas import (
    ARRAY,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    TIME,
    TIMESTAMP,
    Shape,
)

NESTED_MAX: Final = 256  # objects and arrays in each other
PAYLOAD_BYTES_MAX: Final = 1 << 20  # longer ones go alone
JOINED_BYTES_MAX: Final = 16 << 20
PIECES: Final = 16
PIECE_ROWS: Final = 1_024
NEAR_ROWS: Final = 128  # where it is worth it to go on behind a bad one
PLAIN_ROWS: Final = 64  # so few go payload by payload
_BLANKS: Final = " \t\r\n"
_BROKEN: Final = re.compile(rb"\}[ \t\r\n]*[^ \t\r\n,\]}{]")
_NO_NUMBER: Final = re.compile(rb"[:,\[\s-](?:NaN|Inf)")
_ROW: Final = re.compile(r" in row (\d+)$")  # a hint, no more
_WRAPPED: Final = "v"
_YEAR_1_US: Final = -62_135_596_800_000_000
_YEAR_10000_US: Final = 253_402_300_800_000_000
Array = Any  # pyarrow has no types of its own that mypy knows


class NotAll(Exception):
    """Something among these payloads does not pass; the row, if Arrow said which."""

    def __init__(self, row: int = -1) -> None:
        super().__init__(row)
        self.row = row


class JsonColumns:
    """`candidates` says which payloads may be given to `read`."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._is_wrapped = shape.kind != OBJECT
        if self._is_wrapped:
            schema = pa.schema([(_WRAPPED, _as_read(shape))])
        else:
            schema = pa.schema([(name, _as_read(part)) for name, part in shape.fields])
        unexpected = "error" if self._is_wrapped else "ignore"
        self._options = pj.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior=unexpected,
            newlines_in_values=False,
        )

    def candidates(self, payloads: Array) -> tuple[Array, Array | None]:
        """Return (the payloads without blanks around them, which of them may do; None: all)."""
        may_do = self._may_do(payloads)
        if not _all(may_do):
            try:
                payloads = pc.utf8_trim(payloads.cast(pa.string()), _BLANKS).cast(pa.binary())
            except pa.ArrowInvalid:  # not all of it is UTF-8: as it is, then
                pass
            else:
                may_do = self._may_do(payloads)
        lengths = pc.binary_length(payloads)
        longest = pc.max(lengths).as_py() or 0
        if longest >= 2 * NESTED_MAX:
            opened = pc.add(pc.count_substring(payloads, b"{"), pc.count_substring(payloads, b"["))
            may_do = pc.and_(may_do, pc.less_equal(opened, NESTED_MAX))
            may_do = pc.and_(may_do, pc.less_equal(lengths, PAYLOAD_BYTES_MAX))
        return payloads, None if _all(may_do) else may_do

    def _may_do(self, payloads: Array) -> Array:
        if self._is_wrapped:
            return pc.greater(pc.binary_length(payloads), 0)
        return pc.and_(pc.starts_with(payloads, b"{"), pc.ends_with(payloads, b"}"))

    def read(self, payloads: Array) -> tuple[Array, Array | None]:
        """Return (the column, which rows are in doubt; None: none). Raises NotAll."""
        count = len(payloads)
        blob = self._joined(payloads)
        if blob is None or not _is_safe(blob, count):
            raise NotAll
        try:
            table = pj.read_json(
                pa.BufferReader(blob),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(blob) + 1),
                parse_options=self._options,
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            said = _ROW.search(str(error))
            raise NotAll(int(said[1]) if said else -1) from None
        if table.num_rows != count:
            raise NotAll
        columns = [column.combine_chunks() for column in table.columns]
        if self._is_wrapped:
            settled, doubt = _settled(self._shape, columns[0])
            return settled, _either(doubt, _some(columns[0].is_null()))
        return _struct(self._shape, columns, None)

    def _joined(self, payloads: Array) -> bytes | None:
        begin, between, end = (
            (b'{"v":', b'}\n{"v":', b"}") if self._is_wrapped else (b"", b"\n", b"")
        )
        size = payloads.nbytes + len(between) * len(payloads)
        if size > JOINED_BYTES_MAX:
            return None
        rows = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
        joined: bytes = pc.binary_join(rows, between)[0].as_py()
        return begin + joined + end if self._is_wrapped else joined


def _is_safe(blob: bytes, count: int) -> bool:
    """Check the rules about bytes for all payloads together."""
    if b"\0" in blob:
        return False
    if not blob.isascii():
        try:
            blob.decode()
        except UnicodeDecodeError:
            return False
    # As many as payloads: each ends with one, and has no other.
    if blob.count(b"}") != count and _BROKEN.search(blob):
        return False
    # One letter is looked for twenty times faster than three.
    has_words = (b"N" in blob and b"NaN" in blob) or (b"I" in blob and b"Inf" in blob)
    return not (has_words and _NO_NUMBER.search(blob))


def _as_read(shape: Shape) -> Any:
    """Return the type that Arrow's parser is asked for; other types are converted from it."""
    if shape.kind == OBJECT:
        return pa.struct([pa.field(name, _as_read(part)) for name, part in shape.fields])
    if shape.element is not None:
        return pa.list_(pa.field("element", _as_read(shape.element)))
    if shape.kind == TIME:
        return pa.string()
    return pa.float64() if shape.kind == NUMBER else shape.arrow


# From what was parsed to the column. Each gives the array and which rows are in doubt.


def _settled(shape: Shape, found: Array) -> tuple[Array, Array | None]:
    if shape.kind == OBJECT:
        parts = [found.field(at) for at in range(len(shape.fields))]
        return _struct(shape, parts, found.is_valid() if found.null_count else None)
    if shape.kind == ARRAY:
        return _list(shape, found)
    doubt = None
    if shape.kind == NUMBER:
        doubt = _some(pc.invert(pc.is_finite(found)))
        if shape.bits == 32:
            found = found.cast(pa.float32(), safe=False)
            doubt = _either(doubt, _some(pc.invert(pc.is_finite(found))))
    elif shape.kind == TIME:
        found, doubt = _times(found)
    if shape.enum and shape.kind in (STRING, INTEGER, NUMBER):
        values = pa.array(shape.enum, found.type)
        is_none = pc.invert(pc.is_in(found, value_set=values, skip_nulls=True))
        doubt = _either(doubt, _some(pc.and_(is_none, found.is_valid())))
    return found, doubt


def _struct(shape: Shape, parts: list[Array], is_there: Array | None) -> tuple[Array, Array | None]:
    doubt: Array | None = None
    columns = []
    for (_, part), column in zip(shape.fields, parts, strict=True):
        settled, part_doubt = _settled(part, column)
        columns.append(settled)
        if part.is_required and column.null_count:
            part_doubt = _either(part_doubt, column.is_null())
        doubt = _either(doubt, part_doubt)
    if doubt is not None and is_there is not None:
        doubt = _some(pc.and_(doubt, is_there))
    mask = pc.invert(is_there) if is_there is not None else None
    return pa.StructArray.from_arrays(columns, fields=list(shape.arrow), mask=mask), doubt


def _list(shape: Shape, found: Array) -> tuple[Array, Array | None]:
    element = shape.element
    assert element is not None
    inner = found.flatten()
    settled, doubt = _settled(element, inner)
    if element.is_required and inner.null_count:
        doubt = _either(doubt, inner.is_null())
    if doubt is not None:
        rows = pc.unique(pc.list_parent_indices(found).filter(doubt))
        counting = pa.array(range(len(found)), rows.type)
        doubt = pc.is_in(counting, value_set=rows)
    lengths = pc.fill_null(pc.list_value_length(found), 0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    mask = found.is_null() if found.null_count else None
    return pa.ListArray.from_arrays(offsets, settled, type=shape.arrow, mask=mask), doubt


def _times(texts: Array) -> tuple[Array, Array | None]:
    try:
        found = texts.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        values = [time_us(text) if text is not None else None for text in texts.to_pylist()]
        found = pa.array(values, TIMESTAMP)
        return found, _some(pc.and_(found.is_null(), texts.is_valid()))
    micros = found.cast(pa.int64())
    return found, _some(
        pc.or_(pc.less(micros, _YEAR_1_US), pc.greater_equal(micros, _YEAR_10000_US))
    )


def _all(mask: Array) -> bool:
    return pc.all(mask, min_count=0).as_py() is True


def _some(mask: Array) -> Array | None:
    """Return the mask, or None if no value in it is true."""
    if pc.any(mask, min_count=0).as_py() is not True:
        return None
    return pc.fill_null(mask, False)


def _either(one: Array | None, other: Array | None) -> Array | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.or_(one, other)
