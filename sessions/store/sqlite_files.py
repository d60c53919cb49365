"""The two files of a SQLite store: whether they are whole, whether they belong together.

A file that is not as it was left is never taken for a new one. What is found wrong is said in
one line with what can be done; `sessions.store.salvage` does it.
"""

from __future__ import annotations

import contextlib
import fcntl
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

SQLITE_MIN: Final = (3, 33, 0)  # UPDATE ... FROM
PAGE_BYTES: Final = 4096
MAGIC: Final = b"SQLite format 3\0"
# In the header of each file, so that another program's database is not taken for ours.
APPLICATION_IDS: Final = {schema.TABLES: 0x464D5154, schema.JOURNAL: 0x464D514A}
# Reading a whole file for its structure costs about 1 ms a MiB.
CHECKED_BYTES_MAX: Final = 64 << 20
# Commits of the journal leave checkpoints to the folder, up to so much of a log.
JOURNAL_CHECKPOINT_PAGES: Final = 4096
TABLES_CHECKPOINT_PAGES: Final = 2048


# What SQLite keeps beside a file in use.
LOGS: Final = ("-wal", "-shm")


class Damage(StoreError):
    """A file is missing, cut short or unreadable: with `recover`, what is left can be saved."""


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
        return Files(beside(self.tables, suffix), beside(self.journal, suffix), self.lock)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def files_in(data_dir: str) -> Files:
    directory = Path(data_dir)
    return Files(directory / "fleetmq.db", directory / "journal.db", directory / "lock")


def files_at(path: str) -> Files:
    """For sqlite:///directory/x.db."""
    tables = Path(path)
    return Files(tables, tables.with_suffix(".journal.db"), tables.with_suffix(".lock"))


class Lock:
    """One broker a store. The system gives it back when a process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise StoreError(
                f"another process uses this store (pid {holder or 'unknown'} holds {path})"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def prepare(files: Files) -> None:
    """Create what is new, refuse what is damaged."""
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
    """Both files, made aside and put in place whole: the journal first, the tables last."""
    store_id = str(uuid.uuid4())
    fresh = files.aside(".new")
    for part, path, made in (
        (schema.JOURNAL, files.journal, fresh.journal),
        (schema.TABLES, files.tables, fresh.tables),
    ):
        remove(made)
        # A log left beside a file that is gone would be taken for the new file's own.
        _remove_logs(path)
        made.touch(0o644)
        engine = sqlite_engine(made, checkpoint_pages=0)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            driver.execute(f"PRAGMA application_id = {APPLICATION_IDS[part]}")
            driver.execute("PRAGMA journal_mode = WAL")
            with connection.begin():
                schema.upgrade(connection, {part})
                schema.begin(connection, part, store_id)
        engine.dispose()
    for made, path in ((fresh.journal, files.journal), (fresh.tables, files.tables)):
        sync(made)
        os.replace(made, path)
        sync(path.parent)  # each before the next: the tables say that the journal is there


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for suffix in LOGS:
        beside(path, suffix).unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make it, and what is missing above it, each with its name on disk.

    An earlier start may have been cut short behind making it, so its own name is always made sure
    of, where it stands in a directory that we may read.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(0o700 if one == path else 0o777, exist_ok=True)
        if one != path:
            sync(one.parent)
    with contextlib.suppress(PermissionError):
        sync(path.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_unused(journal: Path) -> bool:
    """Whether no group was ever in it: left by a first start that was cut short."""
    with contextlib.suppress(Exception):
        _check_header(journal, schema.JOURNAL)
        engine = sqlite_engine(journal, checkpoint_pages=0)
        with engine.connect() as connection:
            removed_to = execute(connection, "SELECT removed_to FROM journal_state").scalar_one()
            count = execute(connection, "SELECT count(*) FROM journal").scalar_one()
            return not removed_to and not count
    return False


def _check_header(path: Path, part: str) -> None:
    """Before SQLite opens it: it would take an empty file for a new database."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if not header:
        raise Damage(f"{path} is empty")
    if len(header) < 100 or not header.startswith(MAGIC):
        raise Damage(f"{path} is damaged: its header is not that of a database")
    (application_id,) = struct.unpack_from(">I", header, 68)
    if application_id != APPLICATION_IDS[part]:
        raise Damage(f"{path} is not what FleetMQ keeps under that name")


def check(engine: Engine, path: Path, *, is_whole: bool) -> None:
    """What SQLite itself can say of a file: is it as long as it should be, is it sound.

    Large files are only read as a whole when `is_whole` asks for it.
    """
    try:
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            # The log goes into the file first; only then do its header and its length tell.
            busy, logged, moved = driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            size = path.stat().st_size
            if not busy and logged == moved:
                (pages,) = driver.execute("PRAGMA page_count").fetchone()
                (page_bytes,) = driver.execute("PRAGMA page_size").fetchone()
                if pages * page_bytes > size:
                    raise Damage(
                        f"{path} is cut short: {size} bytes where {pages * page_bytes} belong"
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
