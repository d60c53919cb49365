"""Rows of results that a sink cannot take: each becomes a dead letter, and the rest goes on.

A dead letter can be written anywhere: it has the keys, the row and the reason as short ASCII
texts, whatever is in them. Which rows they are depends on the sink alone, so a batch that comes
again after a crash has the same ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_ingest.contract.job import Output

TEXT_CHARS_MAX: Final = 1_024
# Python's times: the years 1 to 9999.
TIME_US_MIN: Final = -62_135_596_800_000_000
TIME_US_MAX: Final = 253_402_300_800_000_000


class DeadLetter(NamedTuple):
    output: str
    keys: str  # JSON
    reason: str
    row: str  # JSON


def dead_letter(output: Output, row: Mapping[str, Any], reason: str) -> DeadLetter:
    keys = {name: row[name] for name in output.keys if name in row}
    return DeadLetter(output.name, _short(keys), _ascii(reason), _short(row))


def _short(row: Mapping[str, Any]) -> str:
    """Encode a row as JSON, with its texts cut short if it would be too long."""
    room = TEXT_CHARS_MAX
    while True:
        text = json.dumps({name: _plain(value, room) for name, value in row.items()})
        if len(text) <= TEXT_CHARS_MAX or not room:
            return text[:TEXT_CHARS_MAX]
        room //= 2


def _plain(value: Any, room: int) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= room else f"{text[:room]}..."


def _ascii(text: str) -> str:
    """Return one line of printable ASCII: no database refuses it, NUL least of all."""
    line = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)[:TEXT_CHARS_MAX]


def times_outside(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return the times that Python cannot hold; None where all are within range."""
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    outside = pc.fill_null(
        pc.or_(pc.less(micros, TIME_US_MIN), pc.greater_equal(micros, TIME_US_MAX)), False
    )
    return outside if pc.any(outside, min_count=0).as_py() is True else None


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return Python values; a time outside Python's range becomes text."""
    if not pa.types.is_timestamp(column.type) or (outside := times_outside(column)) is None:
        found: list[Any] = column.to_pylist()
        return found
    inside = pc.if_else(outside, pa.scalar(None, column.type), column).to_pylist()
    texts = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ").to_pylist()
    return [
        text if is_out else value
        for value, text, is_out in zip(inside, texts, outside.to_pylist(), strict=True)
    ]


def rows_of(rows: pa.Table) -> list[dict[str, Any]]:
    columns = [values_of(column) for column in rows.columns]
    names = rows.column_names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
