"""Text output of `fleetmq stream`: numbers, times, tables, and records as lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self, TextIO

from mqtt_broker.streams.format.records import Record, as_dict, time_text

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_PERIODS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_PROGRESS_S: Final = 0.25


def count_text(count: int) -> str:
    return f"{count:,}"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def size_text(size: int) -> str:
    """Format a size to three digits: 512 B, 1.50 kB, 10 GB."""
    found = float(size)
    for unit in _UNITS:
        if found < 999.5 or unit == _UNITS[-1]:
            break
        found /= 1000
    if unit == "B" or found >= 99.95:
        return f"{found:.0f} {unit}"
    return f"{found:.3g} {unit}"


def period_text(seconds: int) -> str:
    length, unit = next(period for period in _PERIODS if seconds % period[0] == 0)
    return f"{seconds // length:,}{unit}"


def keeps_text(retain_s: int, max_bytes: int, *, compact: bool) -> str:
    found = []
    if compact:
        found.append("the last of each topic")
    if retain_s:
        found.append(period_text(retain_s))
    if max_bytes:
        found.append(size_text(max_bytes))
    return ", ".join(found) or "everything"


def moment_text(text: str | None) -> str:
    """Format a time to the second, for tables."""
    return f"{text[:19]}Z".replace("T", " ") if text else "-"


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Format rows as columns two blanks apart; the columns in `right` are right-aligned."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def plain(text: str) -> str:
    """Escape control characters, so that a text is one line and harmless to a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def payload_text(payload: bytes) -> str:
    try:
        return plain(payload.decode())
    except UnicodeDecodeError:
        return f"0x{payload.hex()}"


def record_line(record: Record, partition: int) -> str:
    return (
        f"{time_text(record.received_us)}  p{partition}@{record.offset}  {plain(record.topic)}"
        f"  {plain(record.client_id)}  {payload_text(record.payload)}"
    )


def record_json(record: Record, partition: int) -> str:
    return json.dumps(as_dict(record, partition), ensure_ascii=False)


def print_json(found: Any) -> None:
    print(json.dumps(found, indent=1, ensure_ascii=False))


class Progress:
    """Progress of a long action, on one line of a terminal; silent without a terminal."""

    def __init__(self, total: int, what: str, file: TextIO = sys.stderr) -> None:
        self._total = total
        self._what = what
        self._file = file
        self._is_shown = file.isatty()
        self._began = self._told = time.monotonic()
        self.done = 0
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if self._is_shown and now - self._told >= _PROGRESS_S:
            self._told = now
            self._tell(now)

    def _tell(self, now: float) -> None:
        rate = self.done / (now - self._began)
        share = f" {100 * self.done / self._total:3.0f} %" if self._total else ""
        line = f"{self.done:,} {self._what}{share}  {rate:,.0f}/s"
        print(f"\r{line:<{self._width}}", end="", file=self._file, flush=True)
        self._width = len(line)

    def clear(self) -> None:
        """Remove the line, so that other output can follow."""
        if self._width:
            print(f"\r{'':{self._width}}\r", end="", file=self._file, flush=True)
            self._width = 0
