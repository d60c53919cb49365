"""Copy the state of a running broker, as of one moment, without delaying its threads.

A `StateSnapshot` is a read transaction: what commits after it does not show in the copy. On SQLite
it spans both files, which are copied page by page by SQLite itself; `sqlite_files` opens the copy
like a store after a crash. On PostgreSQL the rows are written as lines of JSON, which
`export_import.load` reads.

The caller holds off commits of the log while it opens the snapshot, so that `ends` and the log's
files belong together. Everything else may take as long as the disk does.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from sessions.store import schema
from sessions.store.applier import PAUSE_S, WORK_S
from sessions.store.database import Database, StoreError, execute, explain
from sessions.store.export_import import export_rows
from sessions.store.sqlite_files import files_in, sync
from sessions.store.worker import discard

SQLITE: Final = "sqlite"  # kinds of copies
LINES: Final = "lines"
LINES_FILE: Final = "state.jsonl"
STEP_PAGES: Final = 256  # 1 MiB between two calls of `on_bytes`
SNAPSHOT_TRIES: Final = 100

OnBytes = Callable[[int], None]  # called with the number of new bytes; what it raises ends the copy


class StateSnapshot(ABC):
    """The state at one moment. The caller closes it."""

    kind: str
    ends: dict[str, str]  # of the telemetry log, by stream: see `schema.stream_ends`

    @abstractmethod
    def size(self) -> int:
        """Estimate the bytes of the copy."""

    @abstractmethod
    def write(self, directory: Path, on_bytes: OnBytes) -> list[Path]:
        """Write the copy into an existing directory; return its files, which are synced."""

    @abstractmethod
    def close(self) -> None:
        """End the transactions."""


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Raise errors of a database as StoreError, with this name before them."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(f"{name}: {explain(error)}") from None


def open_snapshot(database: Database) -> StateSnapshot:
    """Begin to read the state as it is now."""
    return SqliteSnapshot(database) if database.is_sqlite else PostgresSnapshot(database)


def _read_ends(connection: Connection) -> dict[str, str]:
    return {row[0]: row[1] for row in execute(connection, "SELECT name, ends FROM stream_ends")}


class SqliteSnapshot(StateSnapshot):
    """Both files of a SQLite store."""

    kind = SQLITE

    def __init__(self, database: Database) -> None:
        self._connections: list[Connection] = []
        try:
            self._journal = self._connect(database.journal.connect())
            self._tables = self._connect(database.tables.connect())
            self._begin()
            self.ends = _read_ends(self._journal)
        except BaseException:
            self.close()
            raise

    def _connect(self, connection: Connection) -> Connection:
        self._connections.append(connection)
        return connection.execution_options(sqlite_reads=True)

    def _begin(self) -> None:
        """Begin both transactions, so that the journal has every group that the tables lack.

        The journal's is begun first, because groups are removed from it once the tables have them.
        A group that was committed and applied between the two would be in the tables alone.
        """
        for _ in range(SNAPSHOT_TRIES):
            self._journal.begin()
            newest = execute(
                self._journal,
                "SELECT max(removed_to, coalesce((SELECT max(number) FROM journal), 0)) "
                "FROM journal_state",
            ).scalar_one()
            self._tables.begin()
            if execute(self._tables, "SELECT folded FROM meta").scalar_one() <= newest:
                return
            self._tables.rollback()
            self._journal.rollback()
        raise StoreError("the store changes too fast for a copy: try again")

    def size(self) -> int:
        return sum(
            int(execute(connection, "SELECT page_count * page_size FROM pragma_page_count, "
                        "pragma_page_size").scalar_one())
            for connection in self._connections
        )  # fmt: skip

    def write(self, directory: Path, on_bytes: OnBytes) -> list[Path]:
        files = files_in(str(directory))
        for connection, path in ((self._journal, files.journal), (self._tables, files.tables)):
            _copy_database(connection, path, on_bytes)
            connection.rollback()  # its write-ahead log need not grow any longer
        return list(files.both)

    def close(self) -> None:
        for connection in self._connections:
            discard(connection)
        self._connections.clear()


def _copy_database(source: Connection, path: Path, on_bytes: OnBytes) -> None:
    """Copy a database that `source` reads in a transaction, without its write-ahead log."""
    driver: Any = source.connection.driver_connection
    page_bytes = int(execute(source, "PRAGMA page_size").scalar_one())
    copied = 0

    def on_step(_: int, remaining: int, total: int) -> None:
        nonlocal copied
        done = (total - remaining) * page_bytes
        on_bytes(done - copied)
        copied = done

    path.touch(0o640)
    target = sqlite3.connect(path, isolation_level=None)
    try:
        # A copy that is interrupted is thrown away, and a complete one is synced below.
        target.execute("PRAGMA journal_mode = OFF").close()
        target.execute("PRAGMA synchronous = OFF").close()
        driver.backup(target, pages=STEP_PAGES, progress=on_step)
    finally:
        target.close()
    sync(path)


class PostgresSnapshot(StateSnapshot):
    """A PostgreSQL database, by one transaction that reads repeatably."""

    kind = LINES

    def __init__(self, database: Database) -> None:
        connection = database.tables.connect()
        try:
            self._connection = connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            self._connection.begin()
            self.ends = _read_ends(self._connection)
        except BaseException:
            discard(connection)
            raise

    def size(self) -> int:
        names = ", ".join(f"('{name}')" for name in (*schema.tables.tables, "journal"))
        found = execute(
            self._connection,
            f"SELECT sum(pg_table_size(name)) FROM (VALUES {names}) AS parts (name)",
        ).scalar_one()
        return int(found or 0)

    def write(self, directory: Path, on_bytes: OnBytes) -> list[Path]:
        path = directory / LINES_FILE
        connection = self._connection.execution_options(stream_results=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        pause = _Pauses()
        with os.fdopen(descriptor, "wb") as file:
            for line in export_rows(connection, connection):
                data = line.encode()
                file.write(data)
                on_bytes(len(data))
                pause()
            file.flush()
            os.fsync(file.fileno())
        return [path]

    def close(self) -> None:
        discard(self._connection)


class _Pauses:
    """Gives the interpreter to the event loop every few hundred microseconds."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(PAUSE_S)
            self._since = time.perf_counter()
