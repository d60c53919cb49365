"""Write the net changes of journal groups into the tables, in one transaction.

`TableUpdate` works on both databases. A run of messages or deliveries is one statement in which the
database generates the rows: a row then costs half a microsecond instead of two, without holding the
interpreter.

Work is split into several statements, and `pause` is called between them: the event loop shares
the interpreter with this thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, Table

from sessions.journal.net_changes import Changes, PacketIdChanges, Run, SessionDeliveries
from sessions.journal.records import Stored
from sessions.journal.rows import SessionRow, SubscriptionRow
from sessions.store import schema
from sessions.store.checksums import SIZE as CRC_BYTES
from sessions.store.checksums import checksum, checksums
from sessions.store.database import TERMS_MAX, chunks, execute, insert, repeated
from sessions.store.row_import import recount_references

# From this number of rows on, generating them in the database is cheaper than binding them.
RUN_MIN: Final = 8

_MESSAGES: Final = schema.names(schema.messages)
_DELIVERIES: Final = schema.names(schema.deliveries)
_SESSIONS: Final = schema.names(schema.sessions)
_SUBSCRIPTIONS: Final = schema.names(schema.subscriptions)

_COUNT: Final = {
    "sqlite": "WITH RECURSIVE c(i) AS "
    "(VALUES (0) UNION ALL SELECT i + 1 FROM c WHERE i + 1 < CAST(? AS BIGINT))",
    "postgresql": "WITH c(i) AS (SELECT * FROM generate_series(0, CAST(? AS INTEGER) - 1))",
}
_MESSAGE_RUN: Final = (
    f"INSERT INTO messages ({', '.join(_MESSAGES)}) "
    "{count} SELECT CAST(? AS BIGINT) + i, ?, ?, ?, ?, "
    "substr(?, i * CAST(? AS INTEGER) + 1, CAST(? AS INTEGER)), ?, ?, ?, ?, "
    f"substr(?, i * {CRC_BYTES} + 1, {CRC_BYTES}) FROM c"
)
_DELIVERY_RUN: Final = (
    f"INSERT INTO deliveries ({', '.join(_DELIVERIES)}) "
    "{count} SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) + i, CAST(? AS BIGINT) + i, "
    "?, ?, ?, ?, 0, ? FROM c"
)
# Consecutive messages with the same number of references: (first, end, number).
_ISLANDS: Final = (
    "SELECT min(mid), max(mid) + 1, times FROM ("
    "SELECT mid, times, mid - row_number() OVER (PARTITION BY times ORDER BY mid) AS island FROM ("
    "SELECT mid, count(*) AS times FROM {table} WHERE {where} GROUP BY mid) AS counted"
    ") AS numbered GROUP BY times, island"
)
_ENDS_WITH: Final = ("sessions", "shares", "subscriptions", "releases", "received")


class TableUpdate:
    """Writes a net change. `written` counts its messages."""

    def __init__(self, connection: Connection, changes: Changes, pause: Callable[[], None]) -> None:
        self._connection = connection
        self._changes = changes
        self._pause = pause
        self._dropped: list[tuple[int, int, int]] = []
        self.run_min: float = RUN_MIN
        self.healed: list[str] = []  # contradictions between changes and tables, by kind
        self._count = _COUNT[connection.dialect.name]
        self.written = 0

    def apply(self) -> None:
        self._end_sessions()
        self._finish_deliveries()
        self._unretain()
        references = self._changes.references(self._dropped, self._pause)
        new, old = self._changes.split(references, self._pause)
        self._refer(old)
        self._store(new)
        self._deliver()
        self._number_sent()
        self._packet_ids("releases", self._changes.releases)
        self._packet_ids("received", self._changes.received)
        self._subscribe()
        self._describe_sessions()
        self._drop_streams()
        self._move_cursors()

    def _execute(self, statement: str, values: Sequence[Any]) -> int:
        self._pause()
        return execute(self._connection, statement, values).rowcount

    def _insert(self, table: Table, rows: Iterable[Sequence[Any]], key: Sequence[str] = ()) -> None:
        columns = schema.names(table)
        insert(self._connection, table.name, columns, rows, key, pause=self._pause)

    # Deletions.

    def _drop(self, table: str, where: str, values: Sequence[Any]) -> None:
        """Delete rows, and remember the messages that they refer to."""
        found = execute(self._connection, _ISLANDS.format(table=table, where=where), values)
        self._dropped += [(int(mid), int(end), int(count)) for mid, end, count in found]
        self._execute(f"DELETE FROM {table} WHERE {where}", values)

    def _end_sessions(self) -> None:
        for sids in chunks(sorted(self._changes.ended)):
            where = f"sid IN ({repeated('?', len(sids))})"
            for table in _ENDS_WITH:
                self._execute(f"DELETE FROM {table} WHERE {where}", sids)
            self._drop("deliveries", where, sids)

    def _finish_deliveries(self) -> None:
        ranges = (
            (sid, n, end - 1)
            for sid, deliveries in self._changes.deliveries.items()
            for n, end in deliveries.finished
        )
        while some := list(islice(ranges, TERMS_MAX)):
            where = repeated("(sid = ? AND n BETWEEN ? AND ?)", len(some), " OR ")
            self._drop("deliveries", where, _flat(some))

    def _unretain(self) -> None:
        for mids in chunks(sorted(self._changes.unretained)):
            self._drop("retained", f"mid IN ({repeated('?', len(mids))})", mids)

    def _refer(self, old: list[tuple[int, int, int]]) -> None:
        """Change the reference counts of messages in the tables."""
        by_step: dict[int, list[tuple[int, int]]] = {}
        for start, end, step in old:
            by_step.setdefault(step, []).append((start, end - 1))
        for step, ranges in by_step.items():
            for some in chunks(ranges):
                where = f"({repeated('mid BETWEEN ? AND ?', len(some), ' OR ')})"
                values = _flat(some)
                gone = 0
                if step < 0:
                    gone = self._execute(
                        f"DELETE FROM messages WHERE {where} AND refs <= ?", (*values, -step)
                    )
                if gone < sum(last - first + 1 for first, last in some):
                    self._execute(
                        f"UPDATE messages SET refs = refs + ? WHERE {where}", (step, *values)
                    )

    # Insertions.

    def _store(self, new: list[tuple[Stored, int, int, int]]) -> None:
        singles: list[tuple[Stored, int, int, int]] = []
        statement = _MESSAGE_RUN.format(count=self._count)
        for record, first, end, references in new:
            count = end - first
            self.written += count
            if count < self.run_min or not record.payloads[0]:  # SQLite's substr('') is NULL
                singles.append((record, first, end, references))
                continue
            payloads = record.payloads[first:end]
            size = len(payloads[0])
            self._execute(
                statement,
                (
                    count, record.mid + first, record.topic, record.qos, record.retain,
                    record.section, b"".join(payloads), size, size, record.publisher,
                    record.received_at, record.expiry_interval, references,
                    checksums(record.topic, record.section, payloads),
                ),
            )  # fmt: skip
        self._insert(schema.messages, _message_rows(singles))

    def _deliver(self) -> None:
        statement = _DELIVERY_RUN.format(count=self._count)
        rest: list[tuple[int, SessionDeliveries, Run]] = []
        for sid, deliveries in self._changes.deliveries.items():
            for run in deliveries.runs:
                form = run.form
                if run.end - run.n < self.run_min or form.packet_ids or deliveries.sent:
                    rest.append((sid, deliveries, run))
                    continue
                self._execute(
                    statement,
                    (
                        run.end - run.n, sid, run.n, run.mid, form.qos, form.retain,
                        _joined(form.subscription_ids), form.share, form.size,
                    ),
                )  # fmt: skip
        self._insert(schema.deliveries, _delivery_rows(rest))

    def _number_sent(self) -> None:
        sent = (
            (sid, n, packet_id)
            for sid, deliveries in self._changes.deliveries.items()
            for n, packet_id in deliveries.sent_before()
        )
        terms = ", ".join(["(CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS INTEGER))"])
        while some := list(islice(sent, TERMS_MAX)):
            self._execute(
                f"WITH k(s, at, id) AS (VALUES {repeated(terms, len(some))}) "
                "UPDATE deliveries SET packet_id = k.id FROM k WHERE sid = k.s AND n = k.at",
                _flat(some),
            )

    def _packet_ids(self, table: str, spaces: dict[int, PacketIdChanges]) -> None:
        closed = ((sid, one) for sid, space in spaces.items() for one in space.closed)
        while some := list(islice(closed, TERMS_MAX)):
            where = repeated("(sid = ? AND packet_id = ?)", len(some), " OR ")
            self._execute(f"DELETE FROM {table} WHERE {where}", _flat(some))
        opened = (
            (sid, packet_id, place)
            for sid, space in spaces.items()
            for packet_id, place in space.opened.items()
        )
        self._insert(schema.tables.tables[table], opened, ("sid", "packet_id"))

    def _subscribe(self) -> None:
        subscriptions = self._changes.subscriptions
        gone = (
            (sid, schema.digest(filter))
            for sid, filters in subscriptions.items()
            for filter, row in filters.items()
            if row is None
        )
        while some := list(islice(gone, TERMS_MAX)):
            where = repeated("(sid = ? AND filter_digest = ?)", len(some), " OR ")
            self._execute(f"DELETE FROM subscriptions WHERE {where}", _flat(some))
        rows = (
            subscription_values(row)
            for filters in subscriptions.values()
            for row in filters.values()
            if row is not None
        )
        self._insert(schema.subscriptions, rows, ("sid", "filter_digest"))

    def _describe_sessions(self) -> None:
        rows = (session_values(row) for row in self._changes.sessions.values())
        self._insert(schema.sessions, rows, ("sid",))
        shares = ((row.sid, row.filter) for row in self._changes.shares.values())
        self._insert(schema.shares, shares, ("sid",))
        self._insert(schema.retained, ((mid,) for mid in self._changes.retained))

    # Streams.

    def _drop_streams(self) -> None:
        for names in chunks(sorted(self._changes.streams_gone)):
            marks = repeated("?", len(names))
            self._execute(f"DELETE FROM streams WHERE name IN ({marks})", names)
            self._execute(f"DELETE FROM stream_offsets WHERE stream IN ({marks})", names)
        rows = (
            (row.name, row.epoch, row.filter, row.settings, row.created_at)
            for row in self._changes.streams.values()
        )
        self._insert(schema.streams, rows, ("name",))

    def _move_cursors(self) -> None:
        cursors = self._changes.cursors
        everywhere = sorted(schema.digest(owner) for owner, stream in cursors.gone if not stream)
        for owners in chunks(everywhere):
            where = f"owner_digest IN ({repeated('?', len(owners))})"
            self._execute(f"DELETE FROM stream_offsets WHERE {where}", owners)
        gone = [(schema.digest(owner), stream) for owner, stream in cursors.gone if stream]
        for some in chunks(gone):
            where = repeated("(owner_digest = ? AND stream = ?)", len(some), " OR ")
            self._execute(f"DELETE FROM stream_offsets WHERE {where}", _flat(some))
        rows = (
            (digest, owner, stream, partition, epoch, offset)
            for stream, owners in cursors.moved.items()
            for owner, partitions in owners.items()
            for digest in (schema.digest(owner),)
            for partition, (epoch, offset) in partitions.items()
        )
        self._insert(schema.stream_offsets, rows, ("owner_digest", "stream", "partition"))


class RepairingTableUpdate(TableUpdate):
    """An update that the tables contradict: existing rows are replaced.

    Afterwards, rows with dangling references are dropped, and references are counted again.
    """

    def __init__(self, connection: Connection, changes: Changes, pause: Callable[[], None]) -> None:
        super().__init__(connection, changes, pause)
        self.run_min = math.inf

    def apply(self) -> None:
        super().apply()
        self.healed = ["1 batch of changes that the tables contradict"]
        self.healed += recount_references(self._connection, is_strict=False)

    def _insert(self, table: Table, rows: Iterable[Sequence[Any]], key: Sequence[str] = ()) -> None:
        names = schema.names(table)
        key = key or [column.name for column in table.primary_key.columns]
        places = [names.index(name) for name in key]
        unique = {tuple(row[place] for place in places): row for row in rows}
        super()._insert(table, unique.values(), key)


def _flat(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for row in rows for value in row]


def _message_rows(new: list[tuple[Stored, int, int, int]]) -> Iterator[tuple[Any, ...]]:
    for record, first, end, references in new:
        for at in range(first, end):
            yield (
                record.mid + at, record.topic, record.qos, record.retain, record.section,
                record.payloads[at], record.publisher, record.received_at,
                record.expiry_interval, references,
                checksum(record.topic, record.section, record.payloads[at]),
            )  # fmt: skip


def _delivery_rows(runs: list[tuple[int, SessionDeliveries, Run]]) -> Iterator[tuple[Any, ...]]:
    for sid, deliveries, run in runs:
        form = run.form
        ids = _joined(form.subscription_ids)
        for n in range(run.n, run.end):
            yield (
                sid, n, run.mid + n - run.n, form.qos, form.retain, ids, form.share,
                deliveries.packet_id(run, n), form.size,
            )  # fmt: skip


def _joined(subscription_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, subscription_ids))


def session_values(row: SessionRow) -> tuple[Any, ...]:
    will = row.will
    about: tuple[Any, ...] = (None, None, None, None, None, None)
    if will is not None:
        crc = checksum(will.topic, will.section, will.payload)
        about = (will.topic, will.payload, will.qos, will.retain, will.section, crc)
    return (
        row.sid, row.client_id, row.username, row.version, row.created_at, row.expiry_interval,
        row.is_online, row.expires_at, row.will_at, *about,
    )  # fmt: skip


def subscription_values(row: SubscriptionRow) -> tuple[Any, ...]:
    return (
        row.sid, schema.digest(row.filter), row.filter, row.qos, row.no_local,
        row.retain_as_published, row.retain_handling, row.identifier,
    )  # fmt: skip
