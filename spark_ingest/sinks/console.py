"""Results as lines on standard output, for looking at a job. A batch that is repeated after a
crash is printed again, with the same number: a terminal remembers nothing."""

from __future__ import annotations

import sys
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc

from spark_ingest.contract.sink import Batch

ROWS_MAX = 20
CELL_CHARS_MAX = 40


class ConsoleSink:
    def __init__(self, out: TextIO, rows_max: int = ROWS_MAX) -> None:
        self._out = out
        self._rows_max = rows_max

    def write(self, batch: Batch) -> None:
        for name, table in batch.tables.items():
            if table.num_rows:
                self._say(f"-- batch {batch.number}: {name}, {table.num_rows:,} rows")
                for line in lines(table, self._rows_max):
                    self._say(line)
        self._out.flush()

    def _say(self, line: str) -> None:
        """Print a line; characters that the terminal cannot show are escaped."""
        encoding = self._out.encoding or "utf-8"
        self._out.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")

    def close(self) -> None:
        pass


def open_sink(url: str, prefix: str) -> ConsoleSink:
    return ConsoleSink(sys.stdout)


def lines(table: pa.Table, rows_max: int) -> list[str]:
    """Format the first rows in columns as wide as their values."""
    shown = table.slice(0, rows_max)
    columns = [[name, *map(_text, _readable(shown.column(name)))] for name in shown.column_names]
    widths = [max(map(len, column)) for column in columns]
    found = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    if table.num_rows > rows_max:
        found.append(f"... {table.num_rows - rows_max:,} more")
    return found


def _readable(column: pa.ChunkedArray) -> list[object]:
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
    found: list[object] = column.to_pylist()
    return found


def _text(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 3] + "..."
