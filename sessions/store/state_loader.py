"""Load the state that the broker starts with, and pages of queued deliveries.

Rows are read in pieces as they are used, so that the state is never in memory twice. Queued
deliveries are loaded at the start as one summary row for each session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Engine

from sessions.journal.rows import (
    BacklogRow,
    CursorRow,
    DeliveryRow,
    MessageRow,
    SessionRow,
    ShareRow,
    StreamRow,
    SubscriptionRow,
    WillRow,
)
from sessions.journal.snapshot import Snapshot
from sessions.journal.value_ranges import ALTERED, ID_MAX, count, valid_rows
from sessions.store import schema
from sessions.store.applier import read_meta
from sessions.store.checksums import is_altered
from sessions.store.database import Database, StoreError, execute, explain

FETCH_ROWS: Final = 2000
PAGE_ROWS: Final = 200

_SESSIONS: Final = ", ".join(schema.names(schema.sessions))
_SUBSCRIPTIONS: Final = (
    "sid, filter, qos, no_local, retain_as_published, retain_handling, identifier"
)
_STREAMS: Final = "SELECT name, epoch, filter, settings, created_at FROM streams"
_CURSORS: Final = "SELECT owner, stream, epoch, partition, next_offset FROM stream_offsets"
_MESSAGE: Final = (
    "m.mid, m.topic, m.qos, m.retain, m.section, m.payload, m.publisher, m.received_at, "
    "m.expiry_interval, m.crc"
)
_DELIVERY: Final = (
    "d.sid, d.n, d.mid, d.qos, d.retain, d.subscription_ids, d.share, d.packet_id, d.size"
)
# Queued deliveries of shared subscriptions are read once, at the start.
_OWN: Final = "(d.share = '' OR EXISTS (SELECT 1 FROM shares h WHERE h.sid = d.sid))"
_BOTH: Final = f"SELECT {_DELIVERY}, {_MESSAGE} FROM deliveries d JOIN messages m ON m.mid = d.mid"


def snapshot(database: Database) -> Snapshot:
    healed: dict[str, int] = {}
    engine = database.tables
    with engine.connect() as connection:
        connection.execution_options(sqlite_reads=True)
        meta = read_meta(connection)
        # Numbers in the tables count, too: none may be assigned twice.
        newest_mid = execute(connection, "SELECT max(mid) FROM messages").scalar()
        newest_sid = execute(connection, "SELECT max(sid) FROM sessions").scalar()
        newest_share = execute(connection, "SELECT max(sid) FROM shares").scalar()

    def rows(statement: str, make: Callable[[Sequence[Any]], Any]) -> Iterator[Any]:
        return _rows(engine, statement, make, healed)

    return Snapshot(
        sessions=rows(f"SELECT {_SESSIONS} FROM sessions ORDER BY sid", session_row),
        subscriptions=rows(
            f"SELECT {_SUBSCRIPTIONS} FROM subscriptions ORDER BY sid", subscription_row
        ),
        shares=rows("SELECT sid, filter FROM shares ORDER BY sid", share_row),
        windows=rows(f"{_BOTH} WHERE d.packet_id <> 0 ORDER BY d.sid, d.n", both_rows),
        releases=_by_session(
            rows("SELECT sid, packet_id FROM releases ORDER BY sid, place", itemgetter(0, 1))
        ),
        received=_by_session(
            rows("SELECT sid, packet_id FROM received ORDER BY sid, place", itemgetter(0, 1))
        ),
        backlogs=rows(
            "SELECT sid, count(*), CAST(sum(CASE WHEN size BETWEEN 0 AND 4294967295 THEN size "
            "ELSE 0 END) AS BIGINT), min(n), max(n) FROM deliveries d "
            f"WHERE packet_id = 0 AND {_OWN} AND n BETWEEN 1 AND {ID_MAX} "
            "GROUP BY sid ORDER BY sid",
            backlog,
        ),
        shared=rows(f"{_BOTH} WHERE d.packet_id = 0 AND NOT {_OWN} ORDER BY d.sid, d.n", both_rows),
        retained=rows(
            f"SELECT {_MESSAGE} FROM retained r JOIN messages m ON m.mid = r.mid ORDER BY r.mid",
            message_row,
        ),
        streams=sorted(valid_rows(rows(_STREAMS, stream_row), healed), key=attrgetter("name")),
        cursors=sorted(
            valid_rows(rows(_CURSORS, cursor_row), healed),
            key=lambda row: (row.stream, row.owner, row.partition),
        ),
        stream_ends=dict(
            _rows(database.journal, "SELECT name, ends FROM stream_ends", itemgetter(0, 1), healed)
        ),
        last_number=meta.folded,
        last_mid=_largest(meta.last_mid, newest_mid),
        last_sid=_largest(meta.last_sid, newest_sid, newest_share),
        alive_at=meta.alive_at,
        healed=healed,
    )


def _largest(*numbers: Any) -> int:
    return max((n for n in numbers if type(n) is int and 0 <= n <= ID_MAX), default=0)


def _rows(
    engine: Engine,
    statement: str,
    make: Callable[[Sequence[Any]], Any],
    healed: dict[str, int],
) -> Iterator[Any]:
    """Yield rows; those with values of wrong types are left out and counted."""
    try:
        with engine.connect() as connection:
            streaming = connection.execution_options(stream_results=True, sqlite_reads=True)
            with streaming.begin():
                found = execute(streaming, statement).yield_per(FETCH_ROWS)
                for part in found.partitions():
                    for row in part:
                        try:
                            made = make(row)
                        except (TypeError, ValueError):
                            count(healed, "row with values of wrong types")
                        else:
                            yield made
    except GeneratorExit:
        raise
    except Exception as error:
        raise StoreError(f"cannot read the store: {explain(error)}") from error


def _by_session(pairs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    for sid, found in groupby(pairs, itemgetter(0)):
        yield sid, [packet_id for _, packet_id in found]


def read_page(
    connection: Connection, sid: int, after_n: int, messages_max: int, bytes_max: int
) -> list[tuple[DeliveryRow, MessageRow]]:
    """Read deliveries after `after_n` in order, at least one if there is one."""
    found: list[tuple[DeliveryRow, MessageRow]] = []
    size = 0
    while len(found) < messages_max and size < bytes_max:
        rows_max = min(PAGE_ROWS, messages_max - len(found))
        rows = execute(
            connection,
            f"{_BOTH} WHERE d.sid = ? AND d.n > ? AND d.packet_id = 0 AND {_OWN} "
            "ORDER BY d.n LIMIT ?",
            (sid, after_n, rows_max),
        ).all()
        for row in rows:
            after_n = row[1]
            try:
                pair = both_rows(row)
                size += pair[0].size
            except (TypeError, ValueError):  # leave it out; the session notices the gap
                continue
            if found and size > bytes_max:
                return found
            found.append(pair)
        if len(rows) < rows_max:
            break
    return found


# Convert rows: SQLite has no booleans, and PostgreSQL's driver has a bytes type of its own.


def session_row(row: Sequence[Any]) -> SessionRow:
    will = None
    if row[9] is not None:
        payload, section = _blob(row[10]), _blob(row[13])
        if is_altered(row[14], row[9], section, payload):
            payload = ALTERED
        will = WillRow(row[9], payload, row[11], bool(row[12]), section)
    return SessionRow(
        row[0], row[1], row[2], row[3], row[4], row[5], bool(row[6]), row[7], row[8], will
    )


def _blob(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def subscription_row(row: Sequence[Any]) -> SubscriptionRow:
    return SubscriptionRow(row[0], row[1], row[2], bool(row[3]), bool(row[4]), row[5], row[6])


def share_row(row: Sequence[Any]) -> ShareRow:
    return ShareRow(row[0], row[1])


def stream_row(row: Sequence[Any]) -> StreamRow:
    return StreamRow(row[0], row[1], row[2], row[3], row[4])


def cursor_row(row: Sequence[Any]) -> CursorRow:
    return CursorRow(row[0], row[1], row[2], row[3], row[4])


def message_row(row: Sequence[Any]) -> MessageRow:
    section, payload = _blob(row[4]), _blob(row[5])
    if is_altered(row[9], row[1], section, payload):
        payload = ALTERED
    return MessageRow(
        row[0], row[1], row[2], bool(row[3]), section, payload, row[6], row[7], row[8]
    )  # fmt: skip


def delivery_row(row: Sequence[Any]) -> DeliveryRow:
    ids = tuple(map(int, row[5].split(","))) if row[5] else ()
    return DeliveryRow(
        row[0], row[1], row[2], row[3], bool(row[4]), ids, row[6], row[7], row[8]
    )  # fmt: skip


def both_rows(row: Sequence[Any]) -> tuple[DeliveryRow, MessageRow]:
    return delivery_row(row), message_row(row[9:])


def backlog(row: Sequence[Any]) -> BacklogRow:
    return BacklogRow(row[0], row[1], row[2], row[3], row[4])
