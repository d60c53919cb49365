"""Write rows into the tables of an empty store, from an export or from a damaged file.

Values that follow from other rows are computed, not copied: how many rows refer to a message, and
the digests of filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, inspect

from sessions.store import schema
from sessions.store.database import StoreError, execute, insert

WAITING_ROWS: Final = 1024
# In this order: messages come before rows that refer to them.
LOADED: Final = (
    schema.sessions,
    schema.shares,
    schema.subscriptions,
    schema.messages,
    schema.deliveries,
    schema.releases,
    schema.received,
    schema.retained,
    schema.streams,
    schema.stream_offsets,
)
_DIGESTED: Final = (
    (schema.subscriptions, "filter", "filter_digest"),
    (schema.stream_offsets, "owner", "owner_digest"),
)
DERIVED: Final = ("filter_digest", "owner_digest", "refs")

_COUNTED: Final = """
UPDATE messages SET refs = counted.refs FROM (
    SELECT mid, count(*) AS refs
    FROM (SELECT mid FROM deliveries UNION ALL SELECT mid FROM retained) AS users GROUP BY mid
) AS counted WHERE counted.mid = messages.mid
"""
_MISCOUNTED: Final = """
SELECT 1 FROM messages LEFT JOIN (
    SELECT mid, count(*) AS refs
    FROM (SELECT mid FROM deliveries UNION ALL SELECT mid FROM retained) AS users GROUP BY mid
) AS counted ON counted.mid = messages.mid WHERE messages.refs <> coalesce(counted.refs, 0) LIMIT 1
"""
_NO_MESSAGE: Final = "NOT EXISTS (SELECT 1 FROM messages m WHERE m.mid = {0}.mid)"
_NO_SESSION: Final = "NOT EXISTS (SELECT 1 FROM sessions s WHERE s.sid = {0}.sid)"
_NO_OWNER: Final = f"{_NO_SESSION} AND NOT EXISTS (SELECT 1 FROM shares h WHERE h.sid = {{0}}.sid)"
# Conditions of references to missing rows, with the names of both.
_LOOSE: Final = (
    ("deliveries", _NO_MESSAGE, "messages"),
    ("retained", _NO_MESSAGE, "messages"),
    ("deliveries", _NO_OWNER, "sessions"),
    ("subscriptions", _NO_SESSION, "sessions"),
    ("releases", _NO_OWNER, "sessions"),
    ("received", _NO_OWNER, "sessions"),
)


def columns(table: Table) -> tuple[str, ...]:
    """Return the columns of a table that are copied."""
    return tuple(name for name in schema.names(table) if name not in DERIVED)


class RowImport:
    """Takes rows of `columns(table)`, in any order of tables, and writes them in large pieces.

    On SQLite it can skip rows that violate a rule of their table.
    """

    def __init__(self, connection: Connection, *, is_strict: bool = True) -> None:
        self._connection = connection
        self._verb = "INSERT" if is_strict else "INSERT OR IGNORE"
        self._waiting: dict[str, list[Sequence[Any]]] = {table.name: [] for table in LOADED}
        self.counts = dict.fromkeys(self._waiting, 0)

    def add(self, table: Table, row: Sequence[Any]) -> None:
        waiting = self._waiting[table.name]
        waiting.append(_derived(table, row))
        if len(waiting) == WAITING_ROWS:
            self._write(table)

    def flush(self) -> None:
        for table in LOADED:
            self._write(table)

    def _write(self, table: Table) -> None:
        waiting = self._waiting[table.name]
        self.counts[table.name] += insert(
            self._connection, table.name, schema.names(table), waiting, verb=self._verb
        )
        waiting.clear()


def _derived(table: Table, row: Sequence[Any]) -> Sequence[Any]:
    if table is schema.subscriptions:
        return (row[0], schema.digest(row[1]), *row[1:])
    if table is schema.stream_offsets:
        return (schema.digest(row[0]), *row)
    if table is schema.streams and not all(isinstance(value, str) for value in row[:4]):
        raise TypeError("a stream is described in words")
    if table is schema.messages:
        return (*row, 0)
    return row


def has_right_references(connection: Connection) -> bool:
    """Tell whether all rows that are referred to exist, and are counted right."""
    for table, condition, _ in _LOOSE:
        where = condition.format(table)
        if execute(connection, f"SELECT 1 FROM {table} WHERE {where} LIMIT 1").first():
            return False
    return execute(connection, _MISCOUNTED).first() is None


def repair_digests(connection: Connection) -> list[str]:
    """Correct digests that are not those of their texts, since rows are found by them.

    Returns a line for each kind of correction.
    """
    said = []
    for table, text, column in _DIGESTED:
        if not inspect(connection).has_table(table.name):  # an older schema lacks some
            continue
        keys = [name.name for name in table.primary_key.columns]
        names = (*keys, text)
        rows = execute(connection, f"SELECT {', '.join(names)} FROM {table.name}").all()
        place = keys.index(column)
        wrong = [row for row in rows if isinstance(row[-1], str) and row[place] != _digest(row[-1])]
        where = " AND ".join(f"{key} = ?" for key in keys)
        for row in wrong:
            right = (*row[:place], _digest(row[-1]), *row[place + 1 : -1])
            execute(connection, f"DELETE FROM {table.name} WHERE {where}", right)
            execute(
                connection,
                f"UPDATE {table.name} SET {column} = ? WHERE {where}",
                (right[place], *row[:-1]),
            )
        if wrong:
            said.append(f"{len(wrong)} {table.name} under a wrong digest")
    return said


def _digest(text: str) -> bytes | None:
    try:
        return schema.digest(text)
    except UnicodeEncodeError:
        return None


def recount_references(connection: Connection, *, is_strict: bool) -> list[str]:
    """Count the references to each message. A reference to nothing is an error, or is dropped.

    Returns a line for each kind of row that was dropped.
    """
    gone = []
    for table, condition, missing in _LOOSE:
        where = condition.format(table)
        if is_strict:
            count = execute(connection, f"SELECT count(*) FROM {table} WHERE {where}").scalar_one()
        else:
            count = execute(connection, f"DELETE FROM {table} WHERE {where}").rowcount
        if count:
            gone.append(f"{count} {table} without their {missing}")
    if is_strict and gone:
        raise StoreError(", ".join(gone))
    execute(connection, "UPDATE messages SET refs = 0 WHERE refs <> 0")
    execute(connection, _COUNTED)
    unused = execute(connection, "DELETE FROM messages WHERE refs = 0").rowcount
    if unused:
        gone.append(f"{unused} messages that nothing referred to")
    return gone
