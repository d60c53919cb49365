"""A store that was written by us and says what cannot be: the broker starts, serves, and says so.

Each row of each table is left out, doubled, and altered in each of its columns; each record of a
journal is left out and doubled. Which tables and columns there are is read from the schema.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Boolean, Column, Double, LargeBinary, Table, Text

from sessions.journal import records
from sessions.store import schema
from sessions.store.store import Store
from tests.sessions.store.conftest import MEMORY
from tests.sessions.store.lives import Life, live_through_everything, serve

ROWS_EACH: Final = 3  # of a table
PARTS: Final = 64  # of which the fast tests examine one
KEPT_TO_ITSELF: Final = {"meta": {"id", "store_id", "folded"}}  # whose store it is, and of when
NUMBERS: Final = (0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 3.5, "text", b"\0")
TIMES: Final = (0.0, -0.0, -1.0, 1e300, float("inf"), float("-inf"), "text", b"\0")
TEXTS: Final = (
    "",
    "a\0b",
    "#",
    "a/#/b",
    "+x",
    "$share/",
    "$share/g",
    "$stream/",
    "ä" * 70_000,
    b"\xff",
    "1,x",
)
BLOBS: Final = (b"", b"\xff" * 10, b"\x05\x02\0\0", bytes(70_000), 5, "text")
FLAGS: Final = (0, 1, 7, "text")


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("valid") / "data"
    life = Life(Store.open(data_dir=str(directory)))
    live_through_everything(life)
    life.end()
    return directory


@pytest.fixture
def copy(valid: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        root = Path(directory) / "data"
        shutil.copytree(valid, root)
        yield root


def values_for(column: Column[Any]) -> tuple[Any, ...]:
    kind = column.type
    if isinstance(kind, Boolean):
        return FLAGS
    if isinstance(kind, LargeBinary):
        return BLOBS
    if isinstance(kind, Double):
        return TIMES
    return TEXTS if isinstance(kind, Text) else NUMBERS


def statements(connection: sqlite3.Connection) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every change, each as a statement."""
    for table in schema.tables.tables.values():
        for where, key, row in rows_of(connection, table):
            if table.name != "meta":
                yield f"DELETE FROM {table.name} WHERE {where}", key
                yield from doubled(table, row)
            for column in table.columns:
                if column.name in KEPT_TO_ITSELF.get(table.name, ()):
                    continue
                for value in values_for(column):
                    yield (
                        f"UPDATE OR REPLACE {table.name} SET {column.name} = ? WHERE {where}",
                        (value, *key),
                    )


def rows_of(
    connection: sqlite3.Connection, table: Table
) -> list[tuple[str, tuple[Any, ...], tuple[Any, ...]]]:
    names = schema.names(table)
    keys = [column.name for column in table.primary_key.columns]
    found = connection.execute(f"SELECT {', '.join(names)} FROM {table.name}").fetchall()
    where = " AND ".join(f"{key} = ?" for key in keys)
    step = max(1, len(found) // ROWS_EACH)
    return [(where, tuple(row[names.index(key)] for key in keys), row) for row in found[::step]]


def doubled(table: Table, row: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The row again, under another key: in each part of it."""
    names = schema.names(table)
    for column in table.primary_key.columns:
        place = names.index(column.name)
        old = row[place]
        new = (
            old + 1000
            if isinstance(old, int)
            else old + type(old)(b"2" if isinstance(old, bytes) else "2")
        )
        again = (*row[:place], new, *row[place + 1 :])
        yield f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(row))})", again


def start_and_serve(directory: Path) -> list[str]:
    """Twice: what was put right stays so."""
    said: list[str] = []
    for _ in range(2):
        store = Store.open(data_dir=str(directory))
        try:
            life = Life(store, now=3_000.0)
            said += [line for line in life.lines if "repaired" in line]
            serve(life)
            said += [line for line in life.lines if line.startswith("state ") and line != "state "]
            life.end()
        finally:
            store.abandon()
    return said


def test_all_is_well_with_the_one_that_is_valid(copy: Path) -> None:
    assert start_and_serve(copy) == []
    with sqlite3.connect(copy / "fleetmq.db") as connection:
        for table in schema.tables.tables.values():
            assert rows_of(connection, table), f"{table.name} is empty: nothing of it is examined"


def changes(valid: Path) -> list[tuple[str, tuple[Any, ...]]]:
    with sqlite3.connect(valid / "fleetmq.db") as connection:
        return list(statements(connection))


def examine(valid: Path, copy: Path, part: int) -> None:
    for number, (statement, values) in enumerate(changes(valid)):
        if number % PARTS != part:
            continue
        for name in ("fleetmq.db", "journal.db"):
            shutil.copyfile(valid / name, copy / name)
            for suffix in ("-wal", "-shm"):
                (copy / (name + suffix)).unlink(missing_ok=True)
        connection = sqlite3.connect(copy / "fleetmq.db")
        try:
            with connection:
                connection.execute(statement, values)
        except sqlite3.IntegrityError:  # SQLite itself does not let it be so
            continue
        finally:
            connection.close()
        try:
            said = start_and_serve(copy)
        except BaseException as error:
            error.add_note(f"change {number}: {statement} {str(values)[:200]}")
            raise
        assert not [line for line in said if line.startswith("state ")], (statement, said)


def test_every_change(valid: Path, copy: Path) -> None:
    examine(valid, copy, 0)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS))
def test_every_change_of_all(valid: Path, copy: Path, part: int) -> None:
    examine(valid, copy, part)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE sessions SET client_id = 'here'", "session of a client that has a newer one"),
        ("DELETE FROM messages", "deliveries without their messages"),
        ("DELETE FROM sessions WHERE client_id = 'away'", "subscriptions without their sessions"),
        ("UPDATE subscriptions SET filter = 'a/#/b'", "subscription with an invalid Topic Filter"),
        ("UPDATE deliveries SET packet_id = 5 WHERE packet_id > 0", "invalid packet id"),
        ("UPDATE sessions SET will_section = X'0502', will_crc = NULL", "invalid properties"),
        ("UPDATE messages SET refs = 1", "reference count"),
        (
            "UPDATE messages SET topic = 'a/0', crc = NULL",
            "retained message of a topic that has a newer one",
        ),
        ("UPDATE messages SET payload = payload || X'00'", "message left out: altered on disk"),
        ("UPDATE messages SET section = X'03010101'", "message left out: altered on disk"),
        ("UPDATE messages SET topic = topic || 'x'", "message left out: altered on disk"),
        ("UPDATE messages SET topic = CAST(X'ff' AS TEXT)", "message left out: altered on disk"),
        ("UPDATE messages SET crc = X'00000000'", "message left out: altered on disk"),
        ("UPDATE sessions SET will_payload = X'AA'", "will left out: altered on disk"),
        ("UPDATE sessions SET will_topic = 'elsewhere'", "will left out: altered on disk"),
    ],
)  # fmt: skip
def test_what_was_put_right_is_said(copy: Path, statement: str, what: str) -> None:
    connection = sqlite3.connect(copy / "fleetmq.db")
    with connection:
        connection.execute(statement)
    connection.close()
    said = start_and_serve(copy)
    assert any(what in line for line in said), said
    assert len(said) == 1, "once, and in one line"


# Records of a journal.


@pytest.fixture(scope="module")
def unfolded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same life, of which nothing is in the tables."""
    directory = tmp_path_factory.mktemp("unfolded") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions.store.applier.INTERVAL_S", 1e6)
        life = Life(Store.open(data_dir=str(directory)))
        live_through_everything(life)
        life.end(is_folded=False)
    return directory


def blobs_of(path: Path) -> list[tuple[int, bytes]]:
    connection = sqlite3.connect(path / "journal.db")
    found = connection.execute("SELECT number, data FROM journal ORDER BY number").fetchall()
    connection.close()
    return found


def split(blob: bytes) -> list[bytes]:
    """The records of a blob as they stand in it."""
    reader = records.RecordReader(blob, records.SEAL.size, is_signed=False)
    parts = []
    while reader.at < len(blob):
        start = reader.at
        reader.read()
        parts.append(blob[start : reader.at])
    return parts


@pytest.mark.parametrize("is_doubled", [False, True], ids=["left out", "doubled"])
@pytest.mark.parametrize("batch", [1, 10_000], ids=["one by one", "at once"])
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_every_record(
    unfolded: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, is_doubled: bool, batch: int,
    part: int,
) -> None:  # fmt: skip
    """Folded one group at a time, and all of them at once."""
    monkeypatch.setattr("sessions.store.applier.BATCH_RECORDS_MAX", batch)
    monkeypatch.setattr("sessions.store.writer.READ_GROUPS", min(batch, 16))
    groups = {number: split(blob) for number, blob in blobs_of(unfolded)}
    places = [(number, at) for number, found in groups.items() for at in range(len(found))]
    assert len(places) > 40
    for number, place in places[part::PARTS]:
        changed = [*groups[number]]
        if is_doubled:
            changed.insert(place, changed[place])
        else:
            del changed[place]
        shutil.rmtree(copy)
        shutil.copytree(unfolded, copy)
        connection = sqlite3.connect(copy / "journal.db")
        with connection:
            connection.execute(
                "UPDATE journal SET data = ? WHERE number = ?", (records.seal(changed), number)
            )
        connection.close()
        said = start_and_serve(copy)
        assert not [line for line in said if line.startswith("state ")], said


def test_a_group_is_doubled(unfolded: Path, copy: Path) -> None:
    """What is doubled while the broker runs is put right as well."""
    shutil.rmtree(copy)
    shutil.copytree(unfolded, copy)
    blobs = [blob for _, blob in blobs_of(copy)]
    store = Store.open(data_dir=str(copy))
    life = Life(store)
    for blob in blobs:
        life.journal.numbers.group += 1
        store.submit(life.journal.number, blob, life.now)
    life.end()
    assert life.store.healed
    assert not [line for line in start_and_serve(copy) if line.startswith("state ")]
