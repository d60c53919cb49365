"""Export the whole state as lines of JSON and import it, to move it between databases.

The first line has the format, the last the number of rows of each table, so that a truncated file
is detected. Between them is a line for each row, by table. Bytes are base64, times are seconds, and
the expiry of a session that never expires is "never".

    {"fleetmq": "state", "format": 3, "last_mid": 9, ...}
    {"table": "sessions", "sid": 1, "client_id": "meter-7", ...}
    {"end": {"sessions": 1, ...}}

Values that can be computed are left out: digests and reference counts of messages. The messages of
streams are left out, too: they are in files of their own, whose ends are included. A row whose
checksum is left out gets one: who changes a payload by hand leaves it out.

Groups of the journal that the tables do not have are rows of "journal". Only a running broker has
such groups; `load` applies them. Format 1 is the same without streams, format 2 without checksums,
format 3 without such groups.
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

from sessions.journal.net_changes import Changes
from sessions.journal.records import Corrupt, unseal
from sessions.store import schema
from sessions.store.applier import read_meta
from sessions.store.checksums import checksum
from sessions.store.database import StoreError, execute, explain, insert
from sessions.store.row_import import LOADED, RowImport, columns, recount_references
from sessions.store.store import Store
from sessions.store.table_updates import TableUpdate

FORMAT: Final = 4
FORMATS: Final = (1, 2, 3, 4)
FETCH_ROWS: Final = 1000
FETCH_GROUPS: Final = 1
APPLIED_BYTES: Final = 16 << 20  # of groups that are applied at once
PROGRESS_ROWS: Final = 50_000
NEVER: Final = "never"
_CHECKSUMS: Final = ("crc", "will_crc")
_META: Final = ("last_mid", "last_sid", "next_place", "alive_at")
# The tables come first, then the groups that they lack, then the ends of the telemetry log.
_JOURNAL: Final = schema.journal
_ENDS: Final = schema.stream_ends
_TABLES: Final = {table.name: table for table in (*LOADED, _JOURNAL, _ENDS)}
_INTEGER_MAX: Final = (1 << 63) - 1

Progress = Callable[[int], None]  # called with the number of rows so far
Check = Callable[[Any], Any]


# Export.


def export(store: Store, progress: Progress = lambda _: None) -> Iterator[str]:
    """Yield the lines, each with its newline, of a store that no broker uses."""
    with (
        store.database.tables.connect() as tables,
        store.database.journal.connect() as journal,
    ):
        tables.execution_options(stream_results=True, sqlite_reads=True)
        journal.execution_options(sqlite_reads=True)
        with tables.begin(), journal.begin():
            yield from export_rows(tables, journal, progress)


def export_rows(
    tables: Connection, journal: Connection, progress: Progress = lambda _: None
) -> Iterator[str]:
    """Yield the lines of what two connections read in a transaction; they may be the same."""
    meta = read_meta(tables)
    head = {"fleetmq": "state", "format": FORMAT}
    yield _line(head | {name: getattr(meta, name) for name in _META})
    counts = dict.fromkeys(_TABLES, 0)
    done = 0
    for table in _TABLES.values():
        connection = journal if table in (_JOURNAL, _ENDS) else tables
        where = f"WHERE number > {meta.folded}" if table is _JOURNAL else ""
        for row in _rows(connection, table, where):
            yield row
            counts[table.name] += 1
            done += 1
            if not done % PROGRESS_ROWS:
                progress(done)
    yield _line({"end": counts})


def _rows(connection: Connection, table: Table, where: str) -> Iterator[str]:
    names = columns(table)
    writers = [_writer(table.c[name]) for name in names]
    key = ", ".join(_ordered(connection, column) for column in table.primary_key.columns)
    found = execute(
        connection, f"SELECT {', '.join(names)} FROM {table.name} {where} ORDER BY {key}"
    )
    size = FETCH_GROUPS if table is _JOURNAL else FETCH_ROWS  # a group has up to 64 MB
    for part in found.yield_per(size).partitions():
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
        groups = _GroupImport(connection, loading)
        ends: list[tuple[Any, ...]] = []
        readers = {name: _Reader(table) for name, table in _TABLES.items()}
        for number, text in enumerate(lines, 1):
            try:
                if end is not None:
                    raise ValueError("unexpected line after the end")
                line = _object(text)
                if head is None:
                    head = _head(line)
                    groups.begin(head)
                elif "end" in line:
                    end = _counts(line["end"])
                else:
                    reader = readers.get(str(line.pop("table", "")))
                    if reader is None:
                        raise ValueError(f"unknown table; expected one of {', '.join(readers)}")
                    if reader.table is _ENDS:
                        ends.append(reader.row(line))
                    elif reader.table is _JOURNAL:
                        groups.add(*reader.row(line))
                    elif groups.count:
                        raise ValueError(f"unexpected row of {reader.table.name} after the journal")
                    else:
                        loading.add(reader.table, reader.row(line))
            except (ValueError, KeyError, Corrupt) as error:
                raise LineError(f"line {number}: {error}") from None
            if not number % PROGRESS_ROWS:
                progress(number)
        if head is None or end is None:
            raise LineError(f"line {number}: the file is truncated after this line")
        groups.finish()
        counts = loading.counts | {_JOURNAL.name: groups.count, _ENDS.name: len(ends)}
        if end | {name: end.get(name, 0) for name in counts} != counts:
            raise LineError(f"line {number}: the file has {counts} rows, expected {end}")
        recount_references(connection, is_strict=True)
        sets = ", ".join(f"{name} = ?" for name in _META)
        execute(connection, f"UPDATE meta SET {sets}", groups.meta())
        if store.database.is_sqlite:
            # The journal is another file, and is committed first: a crash between the two leaves
            # empty tables, so that the import can be repeated.
            connection = stack.enter_context(store.database.journal.connect())
            stack.enter_context(connection.begin())
        execute(connection, "DELETE FROM stream_ends")
        insert(connection, _ENDS.name, columns(_ENDS), ends)
    return counts


class _GroupImport:
    """Applies groups of the journal to the tables that were imported before them."""

    def __init__(self, connection: Connection, rows: RowImport) -> None:
        self._connection = connection
        self._rows = rows
        self._head: dict[str, Any] = {}
        self._changes = Changes()
        self._bytes = 0
        self._last = -1
        self.count = 0

    def begin(self, head: dict[str, Any]) -> None:
        """Start from the numbers of an export's first line."""
        self._head = dict(head)
        self._changes = Changes(head["next_place"])

    def add(self, number: int, at: float, data: bytes) -> None:
        """Add the next group; raises ValueError at a gap, and Corrupt."""
        if not self.count:
            self._rows.flush()
            recount_references(self._connection, is_strict=True)
        elif number != self._last + 1:
            raise ValueError(f"journal: group {number} follows {self._last}")
        for record in unseal(data):
            self._changes.apply(record)
        self._last = number
        self._head["alive_at"] = max(self._head["alive_at"], at)
        self.count += 1
        self._bytes += len(data)
        if self._bytes >= APPLIED_BYTES:
            self._apply()

    def finish(self) -> None:
        """Write what is left."""
        self._rows.flush()
        if self._bytes:
            self._apply()

    def _apply(self) -> None:
        changes, head = self._changes, self._head
        TableUpdate(self._connection, changes, lambda: None).apply()
        head["last_mid"] = max(head["last_mid"], changes.last_mid)
        head["last_sid"] = max(head["last_sid"], changes.last_sid)
        head["next_place"] = changes.place
        self._changes = Changes(changes.place)
        self._bytes = 0

    def meta(self) -> list[Any]:
        """Return the values of table `meta`, in the order of `_META`."""
        return [self._head[name] for name in _META]


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
