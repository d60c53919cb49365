"""Create and check the two files of a SQLite store: each is complete, and they belong together.

A damaged file is never taken for a new one. An error is one line that says what to do;
`sessions.store.salvage` repairs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from sessions.store import schema
from sessions.store.database import Database, StoreError, execute, explain, sqlite_engine

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SQLITE_MIN: Final = (3, 33, 0)  # UPDATE ... FROM
PAGE_BYTES: Final = 4096
MAGIC: Final = b"SQLite format 3\0"
# In the header of each file, to tell it from another program's database.
APPLICATION_IDS: Final = {schema.TABLES: 0x464D5154, schema.JOURNAL: 0x464D514A}
# Larger files are not checked completely: that takes about 1 ms per MiB.
CHECKED_BYTES_MAX: Final = 64 << 20
# Commits to the journal leave checkpoints to the applier until the log has this size.
JOURNAL_CHECKPOINT_PAGES: Final = 4096
TABLES_CHECKPOINT_PAGES: Final = 2048


# Files that SQLite keeps beside one in use.
LOGS: Final = ("-wal", "-shm")


class Damage(StoreError):
    """A file is missing, truncated or unreadable: `--recover` saves the rest."""


@dataclass(frozen=True, slots=True)
class Files:
    tables: Path
    journal: Path
    lock: Path

    @property
    def both(self) -> tuple[Path, Path]:
        return self.tables, self.journal

    @property
    def name(self) -> str:
        return self.tables.name

    def database(self) -> Database:
        return Database(
            tables=sqlite_engine(self.tables, checkpoint_pages=TABLES_CHECKPOINT_PAGES),
            journal=sqlite_engine(self.journal, checkpoint_pages=JOURNAL_CHECKPOINT_PAGES),
            is_sqlite=True,
            name=str(self.tables),
        )

    def aside(self, suffix: str) -> Files:
        return Files(sibling(self.tables, suffix), sibling(self.journal, suffix), self.lock)


def sibling(path: Path, suffix: str) -> Path:
    """Return the path with another suffix."""
    return path.with_name(path.name + suffix)


def files_in(data_dir: str) -> Files:
    directory = Path(data_dir)
    return Files(directory / "fleetmq.db", directory / "journal.db", directory / "lock")


def files_at(path: str) -> Files:
    """Return the files of sqlite:///directory/x.db."""
    tables = Path(path)
    return Files(tables, tables.with_suffix(".journal.db"), tables.with_suffix(".lock"))


class Lock:
    """Lets one broker use a store. The system releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise StoreError(f"{path}: this system has no fcntl, which locks the files of a store")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise StoreError(
                f"another process uses this store (pid {holder or 'unknown'} holds {path}); "
                "end it, or use another data directory"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def prepare(files: Files) -> None:
    """Create a new store, and refuse a damaged one."""
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old: the store needs "
            f"{'.'.join(map(str, SQLITE_MIN))} or newer"
        )
    has_tables, has_journal = files.tables.exists(), files.journal.exists()
    if not has_tables and (not has_journal or _is_unused(files.journal)):
        create(files)
        return
    if not has_tables:
        raise Damage(f"{files.tables} is missing, but {files.journal.name} is there")
    if not has_journal:
        raise Damage(f"{files.journal} is missing, but {files.tables.name} is there")
    _check_header(files.tables, schema.TABLES)
    _check_header(files.journal, schema.JOURNAL)


def create(files: Files) -> None:
    """Create both files under temporary names and rename them: the journal first."""
    store_id = str(uuid.uuid4())
    fresh = files.aside(".new")
    for part, path, made in (
        (schema.JOURNAL, files.journal, fresh.journal),
        (schema.TABLES, files.tables, fresh.tables),
    ):
        remove(made)
        # SQLite would take a log of an earlier file for that of the new one.
        _remove_logs(path)
        made.touch(0o640)  # not for others; SQLite makes its logs with the same mode
        engine = sqlite_engine(made, checkpoint_pages=0)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            driver.execute(f"PRAGMA application_id = {APPLICATION_IDS[part]}")
            driver.execute("PRAGMA journal_mode = WAL")
            with connection.begin():
                schema.create(connection, {part})
                schema.begin(connection, part, store_id)
        engine.dispose()
    for made, path in ((fresh.journal, files.journal), (fresh.tables, files.tables)):
        sync(made)
        os.replace(made, path)
        sync(path.parent)  # in this order, so that where there are tables there is a journal


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for suffix in LOGS:
        sibling(path, suffix).unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, and sync their names to disk.

    An earlier start may have been interrupted after it made the lowest existing directory, so its
    name is synced too, if the parent may be read.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    lowest = missing[-1].parent if missing else path
    with contextlib.suppress(PermissionError):
        sync(lowest.parent)
    for one in reversed(missing):
        one.mkdir(0o700 if one == path else 0o777, exist_ok=True)
        with contextlib.suppress(PermissionError):
            sync(one.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_unused(journal: Path) -> bool:
    """Tell whether the file has never had a group: it is of a first start that was interrupted."""
    with contextlib.suppress(Exception):
        _check_header(journal, schema.JOURNAL)
        engine = sqlite_engine(journal, checkpoint_pages=0)
        with engine.connect() as connection:
            removed_to = execute(connection, "SELECT removed_to FROM journal_state").scalar_one()
            count = execute(connection, "SELECT count(*) FROM journal").scalar_one()
            return not removed_to and not count
    return False


def _check_header(path: Path, part: str) -> None:
    """Check the header before SQLite opens the file: it takes an empty one for a new database."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if not header:
        raise Damage(f"{path} is empty")
    if len(header) < 100 or not header.startswith(MAGIC):
        raise Damage(f"{path} is damaged: it has no SQLite header")
    (application_id,) = struct.unpack_from(">I", header, 68)
    if application_id != APPLICATION_IDS[part]:
        raise Damage(f"{path} is a SQLite file, but not FleetMQ's {part}")


def check(engine: Engine, path: Path, *, is_whole: bool) -> None:
    """Check by SQLite's own functions that a file is complete and intact.

    Large files are checked completely only with `is_whole`.
    """
    try:
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            # Checkpoint the log first: only then the header and length of the file are current.
            busy, logged, moved = driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            size = path.stat().st_size
            if not busy and logged == moved:
                (pages,) = driver.execute("PRAGMA page_count").fetchone()
                (page_bytes,) = driver.execute("PRAGMA page_size").fetchone()
                if pages * page_bytes > size:
                    raise Damage(
                        f"{path} is truncated: it has {size} of {pages * page_bytes} bytes"
                    )
            if is_whole or size <= CHECKED_BYTES_MAX:
                found = driver.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise Damage(f"{path} is damaged: {' '.join(found.split())}")
    except StoreError:
        raise
    except Exception as error:
        said = explain(error)
        kind = Damage if "damaged" in said else StoreError
        raise kind(f"{path}: {said}") from None
