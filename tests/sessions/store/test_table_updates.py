"""Net changes in the tables: batches of any size come to the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple

import pytest
from sqlalchemy import Connection, create_engine

from sessions.journal.net_changes import Changes
from sessions.journal.records import unseal
from sessions.store import schema
from sessions.store.table_updates import TableUpdate
from tests.sessions.store.histories import History
from tests.sessions.store.memory_store import Tables


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        schema.tables.create_all(connection)
        connection.commit()
        yield connection


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40))]
)
def test_batches_of_any_size_come_to_the_same(connection: Connection, seed: int) -> None:
    rng = random.Random(seed)
    tables = Tables()
    changes = Changes()
    stored = written = cancelled = 0
    for number, (blob, at) in enumerate(History(10_000 + seed).groups(60), 1):
        tables.apply_group(number, blob, at)
        for record in unseal(blob):
            changes.apply(record)
        if rng.random() < 0.2 or number == 60:
            fold = TableUpdate(connection, changes, lambda: None)
            fold.apply()
            stored += changes.messages
            written += fold.written
            cancelled += changes.messages - fold.written
            check(connection, tables)
            changes = Changes(changes.place)
    assert stored == written + cancelled == tables.last_mid


def check(connection: Connection, tables: Tables) -> None:
    def rows(statement: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]

    assert rows("SELECT mid, refs FROM messages ORDER BY mid") == [
        (mid, tables.references[mid]) for mid in sorted(tables.messages)
    ]
    assert rows("SELECT sid, n, mid, packet_id FROM deliveries ORDER BY sid, n") == [
        (sid, n, row.mid, row.packet_id)
        for sid in sorted(tables.deliveries)
        for n, row in sorted(tables.deliveries[sid].items())
    ]
    for name, spaces in (("releases", tables.releases), ("received", tables.received)):
        assert rows(f"SELECT sid, packet_id FROM {name} ORDER BY sid, place") == [
            (sid, one) for sid in sorted(spaces) for one in spaces[sid]
        ]
    assert {row[0] for row in rows("SELECT sid FROM sessions")} == set(tables.sessions)
    assert {row[0] for row in rows("SELECT sid FROM shares")} == set(tables.shares)
    assert {row[0] for row in rows("SELECT mid FROM retained")} == tables.retained
    assert rows("SELECT name, epoch, filter, settings, created_at FROM streams ORDER BY name") == [
        astuple(row) for _, row in sorted(tables.streams.items())
    ]
    assert rows(
        "SELECT owner, stream, epoch, partition, next_offset FROM stream_offsets "
        "ORDER BY stream, owner, partition"
    ) == [astuple(row) for _, row in sorted(tables.cursors.items())]
    assert rows("SELECT sid, filter, qos, identifier FROM subscriptions ORDER BY sid, filter") == [
        (sid, row.filter, row.qos, row.identifier)
        for sid in sorted(tables.subscriptions)
        for _, row in sorted(tables.subscriptions[sid].items())
    ]
