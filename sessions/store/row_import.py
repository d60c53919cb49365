"""Write rows into the tables of an empty store, from an export or from a damaged file.

Values that depend on other columns or rows are computed, not copied: reference counts of messages,
and digests of filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, inspect

from sessions.journal.value_ranges import ALTERED_ROW, add_name, message_name, will_name
from sessions.store import schema
from sessions.store.checksums import is_altered
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
    """Writes rows of `columns(table)` in large pieces; rows of tables may come in any order.

    On SQLite it can skip rows that violate a constraint.
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
        raise TypeError("name, epoch, filter and settings of a stream must be texts")
    if table is schema.messages:
        return (*row[:-1], 0, row[-1])
    return row


def drop_altered(connection: Connection, names: list[str]) -> list[str]:
    """Drop messages and wills that are not what was written; return a line for each kind.

    Their names are added to `names`.
    """
    said = []
    # As bytes: a text that is no UTF-8 any more could not be read at all.
    as_bytes = "CAST({} AS BLOB)" if connection.dialect.name == "sqlite" else "{}"
    found = execute(
        connection,
        f"SELECT mid, {as_bytes.format('topic')}, section, payload, crc FROM messages "
        "WHERE crc IS NOT NULL",
    )
    mids = {mid: topic for mid, topic, section, payload, crc in found.yield_per(WAITING_ROWS)
            if is_altered(crc, topic, section, payload)}  # fmt: skip
    for mid, topic in mids.items():
        add_name(names, message_name(mid, topic))
        execute(connection, "DELETE FROM messages WHERE mid = ?", (mid,))
    if mids:
        said.append(f"{len(mids)} message{ALTERED_ROW}")
    found = execute(
        connection,
        f"SELECT sid, {as_bytes.format('client_id')}, {as_bytes.format('will_topic')}, "
        "will_section, will_payload, will_crc "
        "FROM sessions WHERE will_crc IS NOT NULL AND will_topic IS NOT NULL",
    )
    sids = {sid: name for sid, name, topic, section, payload, crc in found.yield_per(WAITING_ROWS)
            if is_altered(crc, topic, section, payload)}  # fmt: skip
    for sid, client_id in sids.items():
        add_name(names, will_name(client_id))
        execute(
            connection,
            "UPDATE sessions SET will_topic = NULL, will_payload = NULL, will_qos = NULL, "
            "will_retain = NULL, will_section = NULL, will_crc = NULL, will_at = 0 WHERE sid = ?",
            (sid,),
        )
    if sids:
        said.append(f"{len(sids)} will{ALTERED_ROW}")
    return said


def has_right_references(connection: Connection) -> bool:
    """Tell whether all references are to existing rows, and all reference counts are correct."""
    for table, condition, _ in _LOOSE:
        where = condition.format(table)
        if execute(connection, f"SELECT 1 FROM {table} WHERE {where} LIMIT 1").first():
            return False
    return execute(connection, _MISCOUNTED).first() is None


def repair_digests(connection: Connection) -> list[str]:
    """Correct digests that do not match their texts: rows are found by them.

    Return a line for each kind of correction.
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
            said.append(f"{len(wrong)} {table.name} with a wrong digest")
    return said


def _digest(text: str) -> bytes | None:
    try:
        return schema.digest(text)
    except UnicodeEncodeError:
        return None


def recount_references(connection: Connection, *, is_strict: bool) -> list[str]:
    """Count the references to each message; raise an error for dangling ones, or drop their rows.

    Return a line for each kind of dropped row.
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
        gone.append(f"{unused} messages without references")
    return gone
