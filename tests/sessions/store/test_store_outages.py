"""The database is locked, full or gone for a while, and comes back.

Meanwhile the store says what is wrong and calls nothing safe that is not; afterwards
everything is there, in order and once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from sessions.store import database, worker
from sessions.store.store import Store
from tests.fault.postgres import PostgreSQL
from tests.sessions.store.places import BYTES_MAX, PATIENCE_S, Ledger, Place, Watch, check_same


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RETRY_S_MAX", 0.05)
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.05)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.rollback()
        connection.close()


@contextmanager
def full(engine: Engine) -> Iterator[None]:
    """No connection may make the file larger than it is."""

    def limit(driver: Any, _: object) -> None:
        driver.execute("PRAGMA max_page_count = 1")  # at least what there is

    event.listen(engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(engine, "connect", limit)


def finish(watch: Watch, ledger: Ledger, place: Place) -> None:
    """Nothing is missing and nothing is twice."""
    watch.until_state("")
    watch.until_folded()
    assert watch.committed == sorted(set(watch.committed))
    assert watch.store.stop(PATIENCE_S)
    check_same(place.open(), ledger.tables(len(ledger.groups)))


def test_tables_that_are_locked_hold_up_no_commit(files: Place) -> None:
    ledger = Ledger(1)
    watch = Watch(files.open())
    with locked(files.data_dir / "fleetmq.db"):
        for _ in range(5):
            ledger.submit(watch, 1)
            watch.until_committed()
        watch.apply_soon()
        watch.until_state("tables: database is locked")
        ledger.submit(watch, 5)
        watch.until_committed()
        assert watch.folded[-1] == 0
        assert watch.store.lag == 10
        # Reading is not held up either.
        assert watch.page(1, 0, 10, BYTES_MAX) == []
    finish(watch, ledger, files)


def test_a_journal_that_is_locked_holds_up_commits_and_loses_none(files: Place) -> None:
    ledger = Ledger(2)
    watch = Watch(files.open())
    ledger.submit(watch, 3)
    watch.until_committed()
    with locked(files.data_dir / "journal.db"):
        ledger.submit(watch, 3)
        watch.until_state("journal: database is locked")
        ledger.submit(watch, 20)
        assert watch.committed[-1] == 3
    finish(watch, ledger, files)
    assert watch.committed[-1] == 26
    # What waited went together.
    assert len(watch.committed) <= 4 + 4


@pytest.mark.parametrize("part", ["journal", "tables"])
def test_a_full_disk(files: Place, part: str) -> None:
    ledger = Ledger(3)
    store = files.open()
    with full(getattr(store.database, part)):
        watch = Watch(store)
        ledger.submit(watch, 100)
        watch.apply_soon()
        watch.until_state(f"{part}: disk full")
        if part == "tables":
            watch.until_committed()
            assert watch.folded[-1] < 100
        else:
            assert watch.committed[-1] < 100
    finish(watch, ledger, files)


def test_a_stop_that_cannot_commit_says_so(files: Place) -> None:
    ledger = Ledger(4)
    watch = Watch(files.open())
    ledger.submit(watch, 2)
    watch.until_committed()
    with locked(files.data_dir / "journal.db"):
        ledger.submit(watch, 2)
        watch.until_state("journal: database is locked")
        assert not watch.store.stop(0.2)
    check_same(files.open(), ledger.tables(2))


def test_a_stop_without_time_for_the_tables_loses_nothing(files: Place) -> None:
    ledger = Ledger(4)
    watch = Watch(files.open())
    ledger.submit(watch, 2)
    watch.until_folded()
    with locked(files.data_dir / "fleetmq.db"):
        ledger.submit(watch, 5)
        watch.until_committed()
        assert watch.store.stop(0.2), "it is in the journal"
        assert watch.store.lag == 5
    check_same(files.open(), ledger.tables(7))


def test_a_reader_with_an_open_transaction_is_in_nobodys_way(files: Place) -> None:
    ledger = Ledger(5)
    watch = Watch(files.open())
    readers = [sqlite3.connect(files.data_dir / name) for name in ("fleetmq.db", "journal.db")]
    for reader in readers:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    ledger.submit(watch, 50)
    watch.until_folded()
    assert watch.states == [""]
    for reader in readers:
        reader.close()
    finish(watch, ledger, files)


# PostgreSQL.


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts(postgresql: PostgreSQL, database: Place, mode: str) -> None:
    ledger = Ledger(6)
    watch = Watch(database.open())
    ledger.submit(watch, 10)
    watch.until_committed()
    postgresql.stop(mode)
    try:
        ledger.submit(watch, 5)
        watch.until_state("journal: connection lost")
        watch.apply_soon()
        watch.until_state("tables: connection lost")
        watch.store.page(1, 0, 10, BYTES_MAX, lambda _: None)
        watch.until_state("pages: connection lost")
        ledger.submit(watch, 5)
        assert watch.committed[-1] == 10
    finally:
        postgresql.start()
    finish(watch, ledger, database)


def test_connections_that_are_cut_again_and_again(database: Place) -> None:
    ledger = Ledger(7)
    watch = Watch(database.open())
    cutter = watch.store.database.tables
    for _ in range(8):
        ledger.submit(watch, 5)
        watch.apply_soon()
        with cutter.connect() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
    finish(watch, ledger, database)


def test_a_store_that_was_taken_over_is_left_alone(database: Place) -> None:
    """The first broker lost its connections, and with them the lock; another one came."""
    ledger = Ledger(8)
    first = Watch(database.open())
    ledger.submit(first, 3)
    first.until_folded()
    second = _take_over(first.store, database)
    first.submit(b"never", 1.0)
    first.until_state("journal: another broker")
    ledger.submit(second, 3)
    second.until_folded()
    assert first.committed[-1] == 3
    second.store.abandon()
    # Even when the other one has gone, its groups are not ours.
    first.until_state("journal: another broker has taken over the store: restart this broker")
    assert not first.store.stop(0.2)
    check_same(database.open(), ledger.tables(6))


def _take_over(store: Store, database: Place) -> Watch:
    """Cut a store's connections and have a second one open first."""
    opened = threading.Event()
    kept = store.check_owner

    def late(connection: Any) -> None:
        assert opened.wait(60)
        kept(connection)

    store.writer._prepare = late
    with store.database.tables.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    second = Watch(database.open())
    opened.set()
    return second
