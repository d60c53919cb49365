"""A store that an older program made is brought up to date, with all that is in it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text

from sessions.store import schema
from sessions.store.applier import JournalApplier
from sessions.store.database import Database
from sessions.store.store import Store, StoreError
from tests.fault.postgres import PostgreSQL
from tests.sessions.store.histories import History
from tests.sessions.store.memory_store import Tables
from tests.sessions.store.places import PATIENCE_S, Place, Watch, check_same
from tests.sessions.store.sabotage import sabotaged

FOLDED: Final = 30
GROUPS: Final = 40
FIRST: Final = "0001"


@contextmanager
def at_step(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """As a program that ends with this step; what it reads and writes besides is the same."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "HEAD", step)
        patch.setattr(schema, "upgrade", partial(schema.upgrade, step=step))
        yield


Old = tuple[Place, Tables, History]


@pytest.fixture
def old(place: Place, monkeypatch: pytest.MonkeyPatch) -> Old:
    return made(place, monkeypatch)


def made(place: Place, monkeypatch: pytest.MonkeyPatch) -> Old:
    """A store of the first schema, with rows in its tables and groups in its journal."""
    history = History(77, has_streams=False)
    tables = Tables()
    store = place.open()
    for number, (blob, at) in enumerate(history.groups(GROUPS), 1):
        tables.apply_group(number, blob, at)
        with store.database.journal.connect() as connection, connection.begin():
            connection.execute(schema.journal.insert().values(number=number, at=at, data=blob))
        if number == FOLDED:
            fold(store.database)
    undo_steps(store.database)
    store.abandon()
    return place, tables, history


def undo_steps(database: Database) -> None:
    """Take back what the steps after the first one have done."""
    steps = {
        "tables": (
            "ALTER TABLE messages DROP COLUMN crc",
            "ALTER TABLE sessions DROP COLUMN will_crc",
            "DROP VIEW v_streams",
            "DROP VIEW v_stream_offsets",
            "DROP TABLE streams",
            "DROP TABLE stream_offsets",
        ),
        "journal": ("DROP TABLE stream_ends",),
    }
    for part, statements in steps.items():
        with getattr(database, part).connect() as connection, connection.begin():
            for statement in statements:
                connection.execute(text(statement))
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{FIRST}'"))


def live_on(store: Store, tables: Tables, history: History) -> None:
    """With streams now."""
    history.has_streams = True
    watch = Watch(store)
    for number, (blob, at) in enumerate(history.groups(40), GROUPS + 1):
        watch.submit(blob, at)
        tables.apply_group(number, blob, at)
    assert watch.store.stop(PATIENCE_S)


def fold(database: Database) -> None:
    folder = JournalApplier(database, 0, lambda *_: None, lambda *_: None)
    while folder.apply_some():
        continue
    folder.drop()


def version_of(store: Store) -> set[str]:
    found = set()
    for engine in (store.database.tables, store.database.journal):
        with engine.connect() as connection:
            found.add(
                str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())
            )
    return found


def test_all_of_it_is_there(old: Old) -> None:
    place, tables, history = old
    store = place.open()
    assert version_of(store) == {schema.HEAD}
    snapshot = store.snapshot()
    assert (snapshot.streams, snapshot.cursors, snapshot.stream_ends) == ([], [], {})
    check_same(store, tables)
    live_on(store, tables, history)
    assert tables.streams
    assert tables.cursors
    check_same(place.open(), tables)


def test_the_older_program_refuses_it(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    place = old[0]
    place.open().abandon()
    with at_step(monkeypatch, FIRST), pytest.raises(StoreError, match="a newer FleetMQ"):
        place.open()


def test_an_upgrade_that_is_cut_short_is_finished(old: Old) -> None:
    place, tables, _ = old
    for nth in range(1, 200):
        with sabotaged(nth, after_commit=False) as sabotage:
            try:
                place.open().abandon()
            except StoreError:
                place.close()
        if sabotage.calls < nth:
            break
    else:
        pytest.fail("it never came to an end")
    assert nth > 10
    check_same(place.open(), tables)


# A new store is created without the steps.


def test_a_new_store_has_what_all_steps_create(
    files: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.open()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "create", schema.upgrade)
        stepped = Place(tmp_path / "stepped")
        stepped.open()
    for name in ("fleetmq.db", "journal.db"):
        assert sqlite_schema(files.data_dir / name) == sqlite_schema(stepped.data_dir / name)
    stepped.close()


def sqlite_schema(path: Path) -> dict[str, object]:
    """Return what a file has, but for the text of tables, in which `ALTER TABLE` leaves traces."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
        return {
            "tables": sorted(connection.execute("PRAGMA table_list")),
            "versions": connection.execute("SELECT * FROM alembic_version").fetchall(),
            "indexes": {
                name: connection.execute(f"PRAGMA index_xinfo({name})").fetchall()
                for name, kind, _ in names
                if kind == "index"
            },
            "views": {name: text for name, kind, text in names if kind == "view"},
            "columns": {
                name: connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
                for name, _, _ in names
            },
        }


def test_a_new_postgresql_store_has_what_all_steps_create(
    postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = []
    for name, make in (("created", schema.create), ("stepped", schema.upgrade)):
        monkeypatch.setattr(schema, "create", make)
        place = Place(tmp_path, postgresql.database(name))
        place.open()
        place.close()
        postgresql.psql(name, "DELETE FROM meta; DELETE FROM journal_state")
        dumps.append(postgresql.dump(name))
    assert dumps[0] == dumps[1]
    assert "SET STORAGE EXTERNAL" in dumps[0]


# An old store that is damaged, too.


def behead(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(4096))


def spoil(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)


@pytest.mark.parametrize(
    ("part", "damage"), [("fleetmq.db", behead), ("fleetmq.db", spoil), ("journal.db", behead)]
)
@pytest.mark.parametrize("is_upgraded", [False, True])
def test_what_is_left_of_an_old_store_is_saved(
    files: Place,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    damage: Callable[[Path], None],
    is_upgraded: bool,
) -> None:
    """A table that it never had is not lost."""
    place, tables, history = made(files, monkeypatch)
    if is_upgraded:
        live_on(place.open(), tables, history)
    damage(files.data_dir / part)
    log: list[str] = []
    store = place.open(recover=True, log=log.append)
    assert ("streams" in "; ".join(log)) == is_upgraded  # those that were saved
    check_same(store, tables)
