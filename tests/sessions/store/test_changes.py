"""Net changes: batches of any size come to the same, and what came and went leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple

import pytest
from sqlalchemy import Connection, create_engine

from sessions.journal.net_changes import Changes, Run, SessionDeliveries
from sessions.journal.records import Delivered, Released, Retained, Stored, unseal
from sessions.store import schema
from sessions.store.table_updates import TableUpdate
from tests.sessions.store.histories import History
from tests.sessions.store.memory_store import Tables


def run(n: int, count: int, mid: int = 100) -> Run:
    form = Delivered(1, n, mid, count, 10, 1, False, (), "", ())
    return Run(form, n, n + count)


def spans(deliveries: SessionDeliveries) -> list[tuple[int, int, int]]:
    return [(one.n, one.end, one.mid) for one in deliveries.runs]


@pytest.mark.parametrize(
    ("n", "end", "left", "missing"),
    [
        (10, 20, [(30, 40, 300)], []),
        (10, 15, [(15, 20, 105), (30, 40, 300)], []),
        (15, 20, [(10, 15, 100), (30, 40, 300)], []),
        (12, 15, [(10, 12, 100), (15, 20, 105), (30, 40, 300)], []),
        (5, 12, [(12, 20, 102), (30, 40, 300)], [(5, 10)]),
        (18, 32, [(10, 18, 100), (32, 40, 302)], [(20, 30)]),
        (1, 50, [], [(1, 10), (20, 30), (40, 50)]),
        (20, 30, [(10, 20, 100), (30, 40, 300)], [(20, 30)]),
        (40, 41, [(10, 20, 100), (30, 40, 300)], [(40, 41)]),
        (1, 2, [(10, 20, 100), (30, 40, 300)], [(1, 2)]),
    ],
)
def test_finishing_cuts_runs(
    n: int, end: int, left: list[tuple[int, int, int]], missing: list[tuple[int, int]]
) -> None:
    deliveries = SessionDeliveries()
    deliveries.add(run(10, 10))
    deliveries.add(run(30, 10, mid=300))
    deliveries.finish(n, end)
    assert spans(deliveries) == left
    assert deliveries.finished == missing


def test_neighbours_that_are_missing_are_one_range() -> None:
    deliveries = SessionDeliveries()
    for n in range(5, 9):
        deliveries.finish(n, n + 1)
    deliveries.finish(20, 22)
    assert deliveries.finished == [(5, 9), (20, 22)]


def test_runs_that_come_late_find_their_place() -> None:
    deliveries = SessionDeliveries()
    for n in (20, 5, 10):
        deliveries.add(run(n, 2, mid=n))
    assert [one.n for one in deliveries.runs] == [5, 10, 20]
    deliveries.finish(10, 12)
    assert [one.n for one in deliveries.runs] == [5, 20]


def test_references_are_counted_by_run() -> None:
    changes = Changes()
    changes.apply(Stored(10, "a", 1, False, b"", "p", 0.0, -1, [b"x"] * 10))
    changes.apply(Stored(20, "b", 1, False, b"", "p", 0.0, -1, [b"y"] * 5))
    changes.apply(Delivered(1, 1, 10, 10, 9, 1, False, (), "", ()))
    changes.apply(Delivered(2, 1, 12, 10, 9, 1, False, (), "", ()))
    changes.apply(Delivered(3, 7, 4, 2, 9, 1, False, (), "", ()))  # stored before
    changes.apply(Retained(24, 3))
    changes.apply(Released(1, [(1, 10, 77)]))
    references = changes.references([(3, 4, 1), (4, 5, 2)])
    assert references == [
        (3, 5, -1),
        (5, 6, 1),
        (11, 12, 1),
        (12, 20, 2),
        (20, 22, 1),
        (24, 25, 1),
    ]
    new, old = changes.split(references)
    assert old == [(3, 5, -1), (5, 6, 1)]
    assert [(record.mid, first, end, count) for record, first, end, count in new] == [
        (10, 1, 2, 1),
        (10, 2, 10, 2),
        (20, 0, 2, 1),
        (20, 4, 5, 1),
    ]


def test_an_end_leaves_nothing_of_a_session() -> None:
    history = History(3)
    changes = Changes()
    for blob, _ in history.groups(40):
        for record in unseal(blob):
            changes.apply(record)
    for sid in (*history.sessions, *history.shares):
        changes._end(sid)
    for table in (
        changes.sessions, changes.shares, changes.subscriptions, changes.deliveries,
        changes.releases, changes.received,
    ):  # fmt: skip
        assert not set(table) & changes.ended


# Against tables in memory: many histories, cut into batches anywhere.


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        schema.tables.create_all(connection)
        connection.commit()
        yield connection


@pytest.mark.parametrize("seed", range(40))
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
