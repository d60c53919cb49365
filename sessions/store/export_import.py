"""Export the whole state as lines of JSON and import it, to move it between databases.

The first line has the format, the last the number of rows of each table, so that a truncated file
is detected. Between them is a line for each row, by table. Bytes are base64, times are seconds, and
the expiry of a session that never expires is "never".

    {"fleetmq": "state", "format": 3, "last_mid": 9, ...}
    {"table": "sessions", "sid": 1, "client_id": "meter-7", ...}
    {"end": {"sessions": 1, ...}}

Values that can be computed are left out: digests and reference counts of messages. The messages of
streams are left out, too: they are in files of their own, whose ends are included. Format 1 is the
same without streams, format 2 without checksums. A row whose checksum is left out gets one: who
changes a payload by hand leaves it out.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from sqlalchemy import Boolean, Column, Connection, Double, LargeBinary, Table, Text
from sqlalchemy.exc import IntegrityError

from sessions.store import schema
from sessions.store.applier import read_meta
from sessions.store.checksums import checksum
from sessions.store.database import StoreError, execute, explain, insert
from sessions.store.row_import import LOADED, RowImport, columns, recount_references
from sessions.store.store import Store

FORMAT: Final = 3
FORMATS: Final = (1, 2, 3)
FETCH_ROWS: Final = 1000
PROGRESS_ROWS: Final = 50_000
NEVER: Final = "never"
_CHECKSUMS: Final = ("crc", "will_crc")
_META: Final = ("last_mid", "last_sid", "next_place", "alive_at")
# The tables come first, then the ends of the telemetry log in the journal.
_ENDS: Final = schema.stream_ends
_TABLES: Final = {table.name: table for table in (*LOADED, _ENDS)}
_INTEGER_MAX: Final = (1 << 63) - 1

Progress = Callable[[int], None]  # called with the number of rows so far
Check = Callable[[Any], Any]


# Export.


def export(store: Store, progress: Progress = lambda _: None) -> Iterator[str]:
    """Yield the lines, each with its newline."""
    with store.database.tables.connect() as connection:
        connection.execution_options(stream_results=True, sqlite_reads=True)
        with connection.begin():
            meta = read_meta(connection)
            head = {"fleetmq": "state", "format": FORMAT}
            yield _line(head | {name: getattr(meta, name) for name in _META})
            counts = dict.fromkeys(_TABLES, 0)
            done = 0
            for table in LOADED:
                for row in _rows(connection, table):
                    yield row
                    counts[table.name] += 1
                    done += 1
                    if not done % PROGRESS_ROWS:
                        progress(done)
    with store.database.journal.connect() as connection:
        connection.execution_options(sqlite_reads=True)
        with connection.begin():
            for row in _rows(connection, _ENDS):
                yield row
                counts[_ENDS.name] += 1
    yield _line({"end": counts})


def _rows(connection: Connection, table: Table) -> Iterator[str]:
    names = columns(table)
    writers = [_writer(table.c[name]) for name in names]
    key = ", ".join(_ordered(connection, column) for column in table.primary_key.columns)
    found = execute(connection, f"SELECT {', '.join(names)} FROM {table.name} ORDER BY {key}")
    for part in found.yield_per(FETCH_ROWS).partitions():
        for row in part:
            values = (write(value) for write, value in zip(writers, row, strict=True))
            yield _line({"table": table.name} | dict(zip(names, values, strict=True)))


def _ordered(connection: Connection, column: Column[Any]) -> str:
    """Order texts by bytes, so that the same state has the same order on all databases."""
    is_sorted = connection.dialect.name == "sqlite" or not isinstance(column.type, Text)
    return column.name if is_sorted else f'{column.name} COLLATE "C"'


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _writer(column: Column[Any]) -> Check:
    kind = column.type
    if isinstance(kind, LargeBinary):
        return _or_none(lambda value: base64.b64encode(value).decode())
    if isinstance(kind, Boolean):
        return _or_none(bool)
    if isinstance(kind, Double):
        return lambda value: NEVER if math.isinf(value) else value
    return lambda value: value


def _or_none(write: Check) -> Check:
    return lambda value: None if value is None else write(value)


# Import.


class LineError(StoreError):
    """An invalid line in an exported file."""


def load(
    store: Store, lines: Iterable[bytes], progress: Progress = lambda _: None
) -> dict[str, int]:
    """Import lines into an empty store, all or nothing; return the rows of each table."""
    try:
        return _load(store, lines, progress)
    except IntegrityError as error:
        raise StoreError(f"rows of the file conflict with each other: {explain(error)}") from None


def _load(store: Store, lines: Iterable[bytes], progress: Progress) -> dict[str, int]:
    with ExitStack() as stack:
        connection = stack.enter_context(store.database.tables.connect())
        stack.enter_context(connection.begin())
        if _is_used(connection):
            raise StoreError(f"{store.database.name} is not empty: import into a new store")
        number = 0
        head: dict[str, Any] | None = None
        end: dict[str, Any] | None = None
        loading = RowImport(connection)
        ends: list[tuple[Any, ...]] = []
        readers = {name: _Reader(table) for name, table in _TABLES.items()}
        for number, text in enumerate(lines, 1):
            try:
                if end is not None:
                    raise ValueError("unexpected line after the end")
                line = _object(text)
                if head is None:
                    head = _head(line)
                elif "end" in line:
                    end = _counts(line["end"])
                else:
                    reader = readers.get(str(line.pop("table", "")))
                    if reader is None:
                        raise ValueError(f"unknown table; expected one of {', '.join(readers)}")
                    if reader.table is _ENDS:
                        ends.append(reader.row(line))
                    else:
                        loading.add(reader.table, reader.row(line))
            except (ValueError, KeyError) as error:
                raise LineError(f"line {number}: {error}") from None
            if not number % PROGRESS_ROWS:
                progress(number)
        loading.flush()
        if head is None or end is None:
            raise LineError(f"line {number}: the file is truncated after this line")
        counts = loading.counts | {_ENDS.name: len(ends)}
        if end | {name: end.get(name, 0) for name in counts} != counts:
            raise LineError(f"line {number}: the file has {counts} rows, expected {end}")
        recount_references(connection, is_strict=True)
        sets = ", ".join(f"{name} = ?" for name in _META)
        execute(connection, f"UPDATE meta SET {sets}", [head[name] for name in _META])
        if store.database.is_sqlite:
            # The journal is another file, and is committed first: a crash between the two leaves
            # empty tables, so that the import can be repeated.
            connection = stack.enter_context(store.database.journal.connect())
            stack.enter_context(connection.begin())
        execute(connection, "DELETE FROM stream_ends")
        insert(connection, _ENDS.name, columns(_ENDS), ends)
    return counts


def _is_used(connection: Connection) -> bool:
    return any(
        execute(connection, f"SELECT 1 FROM {table.name} LIMIT 1").first() is not None
        for table in LOADED
    )


def _object(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text.decode())
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(line, dict):
        raise ValueError("not an object")
    return line


def _head(line: dict[str, Any]) -> dict[str, Any]:
    if line.get("fleetmq") != "state":
        raise ValueError("not an exported state of a FleetMQ broker")
    if line.get("format") not in FORMATS:
        raise ValueError(f"format {line.get('format')}; this version reads up to {FORMAT}")
    return {name: _number(line[name], name) for name in _META}


def _counts(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"not the numbers of rows: {value!r}")
    return value


def _number(value: Any, name: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: not a number: {value!r}")
    return value


class _Reader:
    """Checks and converts the rows of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._names = columns(table)
        self._known = set(self._names)
        self._checks = [(name, _reader(table.c[name])) for name in self._names]

    def row(self, line: dict[str, Any]) -> tuple[Any, ...]:
        for name in self._known - line.keys():
            if name in _CHECKSUMS:
                line[name] = None
        if line.keys() != self._known:
            differing = sorted(line.keys() ^ self._known)
            raise ValueError(f"{self.table.name}: missing or unknown keys: {', '.join(differing)}")
        values = []
        for name, check in self._checks:
            try:
                values.append(check(line[name]))
            except ValueError as error:
                raise ValueError(f"{self.table.name}: {name}: {error}") from None
        return tuple(self._with_checksum(values))

    def _with_checksum(self, values: list[Any]) -> list[Any]:
        """Add the checksum that a row of before, or of a person, lacks."""
        name = next((name for name in _CHECKSUMS if name in self._known), None)
        if name is None or values[self._names.index(name)] is not None:
            return values
        prefix = name.removesuffix("crc")
        topic, section, payload = (
            values[self._names.index(prefix + part)] for part in ("topic", "section", "payload")
        )
        if topic is not None and section is not None and payload is not None:
            values[self._names.index(name)] = checksum(topic, section, payload)
        return values


def _reader(column: Column[Any]) -> Check:
    kind = column.type
    check: Check
    if isinstance(kind, LargeBinary):
        check = _bytes
    elif isinstance(kind, Boolean):
        check = _flag
    elif isinstance(kind, Double):
        check = _time
    elif isinstance(kind, Text):
        check = _text
    else:
        check = _integer
    return _or_none(check) if column.nullable else check


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"not true or false: {value!r}")
    return value


def _time(value: Any) -> float:
    if value == NEVER:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"not a time: {value!r}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a string: {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate in a string") from None
    if "\0" in value:
        raise ValueError("U+0000 in a string")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"not a number: {value!r}")
    if not -1 <= value <= _INTEGER_MAX:
        raise ValueError(f"out of range: {value}")
    return value
