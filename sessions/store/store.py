"""The store: the state of the broker, durable in a database.

The event loop submits groups of records (`submit`), and is told up to which number they are safe.
It waits for none of the three threads behind that: the writer commits groups to the journal, the
applier brings them into the tables, the pager reads back deliveries that wait.

The caller numbers groups, one after the other, from `Snapshot.last_number` + 1 on.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from sessions.journal.participant import CommitParticipant
from sessions.journal.snapshot import Snapshot
from sessions.journal.value_ranges import count
from sessions.store import postgres_lock, salvage, schema, state_loader
from sessions.store import sqlite_files as sqlite_files
from sessions.store.applier import JournalApplier, read_meta
from sessions.store.database import (
    Database,
    StoreError,
    execute,
    explain,
    parse_url,
    postgres_engine,
)
from sessions.store.pager import Page, Pager, Request
from sessions.store.postgres_lock import take_lock
from sessions.store.row_import import has_right_references, recount_references, repair_digests
from sessions.store.sqlite_files import CHECKED_BYTES_MAX, Damage, Files, Lock
from sessions.store.worker import discard
from sessions.store.writer import Writer

__all__ = ["Store", "StoreError"]

ADVICE: Final = "restore it from a backup, or start once with --recover to save what is left"
APPLY_EARLY_BYTES: Final = 8 << 20  # so much more in the journal wakes the applier


class Store:
    """The store of a broker."""

    def __init__(self, database: Database, owner: str, lock: Lock | None) -> None:
        self.database = database
        self._owner = owner
        self._lock = lock
        self._states: dict[str, str] = {}
        self._state_lock = threading.Lock()
        self._writer: Writer
        self._applier: JournalApplier
        self._pager: Pager
        self._on_committed: Callable[[int], None] = _ignore
        self._on_folded: Callable[[int], None] = _ignore
        self._on_state: Callable[[str], None] = _ignore
        self._is_started = False
        self._is_stopping = False
        self._is_closed = False
        self._is_done = False
        self._is_saved = False  # it was just rescued from damaged files
        self.commits = 0
        self._safe = 0  # up to this group
        self._recorded = 0  # up to this group the journal has them
        self.folded = 0
        self.cancelled = 0
        self._folded_to = 0
        self._unapplied_bytes = 0  # committed since the applier was woken last
        self.healed: dict[str, int] = {}  # contradictions put right, by kind

    @classmethod
    def open(
        cls,
        *,
        data_dir: str,
        database_url: str = "",
        recover: bool = False,
        must_exist: bool = False,
        log: Callable[[str], None] = lambda _: None,
    ) -> Store:
        """Lock and check it, upgrade its schema, and apply the groups that wait in the journal."""
        if database_url:
            url = parse_url(database_url)
            if url.get_backend_name() == "postgresql":
                return cls._open_postgres(url, must_exist=must_exist)
            files = sqlite_files.files_at(url.database or "")
        else:
            files = sqlite_files.files_in(data_dir)
        if must_exist and not files.tables.exists() and not files.journal.exists():
            raise StoreError(f"there is no store at {files.tables}")
        return cls._open_files(files, recover=recover, log=log)

    @classmethod
    def _open_files(cls, files: Files, *, recover: bool, log: Callable[[str], None]) -> Store:
        try:
            sqlite_files.make_directory(files.tables.parent)
            lock = Lock(files.lock)
        except OSError as error:
            raise StoreError(f"{files.tables.parent}: {error.strerror}") from None
        try:
            is_saved = salvage.finish(files, log)
            try:
                store = cls._open_checked(files, lock, is_whole=recover)
            except Damage as damage:
                if not recover:
                    raise StoreError(f"{damage}; {ADVICE}") from None
                log(str(damage))
                salvage.salvage(files, log)
                is_saved = True
                store = cls._open_checked(files, lock, is_whole=False)
            store._is_saved = is_saved
            return store
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise StoreError(f"{files.tables.parent}: {error.strerror}") from None
            if isinstance(error, SQLAlchemyError | sqlite3.Error):
                raise StoreError(f"{files.tables}: {explain(error)}") from None
            raise

    @classmethod
    def _open_checked(cls, files: Files, lock: Lock, *, is_whole: bool) -> Store:
        sqlite_files.prepare(files)
        database = files.database()
        sqlite_files.check(database.tables, files.tables, is_whole=is_whole)
        sqlite_files.check(database.journal, files.journal, is_whole=is_whole)
        store = cls(database, str(uuid.uuid4()), lock)
        with database.journal.connect() as connection:
            store._begin(connection)
        return store

    @classmethod
    def _open_postgres(cls, url: URL, *, must_exist: bool) -> Store:
        owner = str(uuid.uuid4())
        engine = postgres_engine(url, f"fleetmq {owner}")
        name = url.render_as_string(hide_password=True)
        store = cls(Database(engine, engine, is_sqlite=False, name=name), owner, None)
        try:
            connection = engine.connect()
        except Exception as error:
            raise StoreError(f"{name}: {explain(error)}") from None
        try:
            take_lock(connection, f"fleetmq {owner}", postgres_lock.LOCK_WAIT_S)
            if must_exist and schema.version_of(connection) is None:
                raise StoreError(f"there is no store in {name}")
            connection.rollback()
            store._begin(connection)
        except BaseException as error:
            discard(connection)
            if isinstance(error, Damage):
                raise StoreError(f"{error}; restore the database from a backup") from None
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise
            raise StoreError(f"{name}: {explain(error)}") from None
        store._writer.adopt(engine, connection)
        return store

    def _begin(self, connection: Connection) -> None:
        """Make a sound store ready to start, while holding the journal's lock."""
        try:
            self._upgrade()
            last_number, removed_to = self._compare()
            applier = self._new_applier()
            try:
                while applier.apply_some():
                    continue
            finally:
                applier.drop()
            self._settle()
            with self.database.tables.connect() as tables:
                self._folded_to = read_meta(tables).folded
            with connection.begin():
                execute(connection, "UPDATE journal_state SET owner = ?", (self._owner,))
        except StoreError:
            raise
        except Exception as error:
            said = explain(error)
            if isinstance(error, IntegrityError):
                said = f"database is damaged: the journal does not fit the tables ({said})"
            kind = Damage if "damaged" in said else StoreError
            raise kind(f"{self.database.name}: {said}") from error
        self._writer = Writer(
            self.database,
            last_number,
            removed_to,
            self._committed,
            self._set_state,
            self._check_owner,
        )
        self._applier = self._new_applier()
        self._pager = Pager(self.database, self._set_state)
        self.folded = self.cancelled = 0

    def _new_applier(self) -> JournalApplier:
        return JournalApplier(
            self.database,
            self._folded_to,
            self._count_folded,
            self._set_state,
            self._count_healed,
            lambda: self._recorded,
        )

    def _settle(self) -> None:
        """Repair rows of the tables that contradict each other, in a small store.

        A larger one is started as it was restored.
        """
        with self.database.tables.connect() as tables:
            if self.database.is_sqlite:
                size = execute(
                    tables, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
                ).scalar_one()
            else:
                size = execute(
                    tables,
                    "SELECT sum(pg_total_relation_size(name)) FROM (VALUES ('messages'), "
                    "('deliveries'), ('subscriptions')) AS large (name)",
                ).scalar_one()
            tables.rollback()
            if size > CHECKED_BYTES_MAX:
                return
            with tables.begin():
                self._count_healed(repair_digests(tables))
                if not has_right_references(tables):
                    gone = recount_references(tables, is_strict=False)
                    self._count_healed(gone or ["1 count of references that was wrong"])

    def _count_healed(self, lines: list[str]) -> None:
        for line in lines:
            number, _, what = line.partition(" ")
            count(self.healed, what, int(number))

    def _parts(self) -> list[tuple[set[str], str]]:
        if self.database.is_sqlite:
            return [({schema.TABLES}, schema.TABLES), ({schema.JOURNAL}, schema.JOURNAL)]
        return [({schema.TABLES, schema.JOURNAL}, schema.TABLES)]

    def _upgrade(self) -> None:
        for parts, first in self._parts():
            engine = getattr(self.database, first)
            with engine.connect() as connection, connection.begin():
                version = schema.version_of(connection)
                is_new = version is None
                if version is not None and version > schema.HEAD:
                    raise StoreError(
                        f"{self.database.name} was written by a newer FleetMQ (schema {version}, "
                        f"this one knows {schema.HEAD}): use that version, or a backup"
                    )
                if version != schema.HEAD:
                    schema.upgrade(connection, parts)
                if is_new and self.database.is_sqlite:  # new files are put in place whole
                    raise Damage(f"{engine.url} has no tables")
                if is_new:
                    store_id = str(uuid.uuid4())
                    for part in parts:
                        schema.begin(connection, part, store_id)

    def _compare(self) -> tuple[int, int]:
        """Check that journal and tables belong to one store and one time."""
        with self.database.tables.connect() as tables:
            store_id = execute(tables, "SELECT store_id FROM meta").scalar_one()
            folded = read_meta(tables).folded
        with self.database.journal.connect() as journal:
            state = execute(journal, "SELECT store_id, removed_to FROM journal_state").one()
            first, last = execute(
                journal, "SELECT min(number), max(number) FROM journal WHERE number > ?", (folded,)
            ).one()
            newest = execute(journal, "SELECT max(number) FROM journal").scalar() or 0
        journal_id, removed_to = state
        if journal_id != store_id:
            raise Damage(f"the journal is not that of {self.database.name}, but of another store")
        if removed_to > folded or (first is not None and first != folded + 1):
            raise Damage(
                f"{self.database.name} is older than its journal: "
                f"groups {folded + 1} to {max(removed_to, (first or 1) - 1)} are in neither"
            )
        if max(newest, removed_to) < folded:
            raise Damage(
                f"the journal is older than {self.database.name}: it ends with group "
                f"{max(newest, removed_to)}, but {folded} is folded"
            )
        return max(folded, last or 0), removed_to

    def _check_owner(self, connection: Connection) -> None:
        """Check, on a new connection of the writer, that no other broker has taken the store."""
        if not self.database.is_sqlite:
            take_lock(connection, f"fleetmq {self._owner}")
        with connection.begin():
            owner = execute(connection, "SELECT owner FROM journal_state").scalar_one()
        if owner != self._owner:
            raise StoreError("another broker has taken the store over: restart this one")

    # For the broker.

    def snapshot(self) -> Snapshot:
        """Return the state that the broker starts from; called before `start`."""
        try:
            found = state_loader.snapshot(self.database)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"the store cannot be read: {explain(error)}") from error
        for what, number in self.healed.items():
            count(found.healed, what, number)
        self.healed.clear()
        found.has_lost_ends = self._is_saved and not found.stream_ends
        return found

    def start(
        self,
        on_committed: Callable[[int], None],
        on_folded: Callable[[int], None],
        on_state: Callable[[str], None],
    ) -> None:
        """Start the threads. They call all three functions; the state "" means that all is well."""
        self._on_committed = on_committed
        self._on_folded = on_folded
        self._on_state = on_state
        self._is_started = True
        self._writer.folded(self._folded_to)
        for worker in (self._writer, self._applier, self._pager):
            worker.start()

    def dead_threads(self) -> list[str]:
        """Return the names of threads that have ended before their time. From any thread."""
        if self._is_stopping or self._is_closed:
            return []
        workers = (self._writer, self._applier, self._pager)
        return [worker.name for worker in workers if worker.has_ended]

    def submit(self, number: int, blob: bytes, at: float) -> None:
        """Commit a group soon."""
        self._writer.submit(number, blob, at)

    def enlist(self, participant: CommitParticipant) -> None:
        """Write the participant's part with the groups that are submitted from now on."""
        self._writer.enlist(participant)

    def forget_ends(self, name: str) -> None:
        """Forget the participant's end of this name with the next commit, or soon."""
        self._writer.forget_ends(name)

    def page(
        self,
        sid: int,
        after_n: int,
        messages_max: int,
        bytes_max: int,
        on_page: Callable[[Page], None],
    ) -> None:
        """Read what waits for `sid` behind `after_n`, as far as it is in the tables.

        At least one delivery if there is one.
        """
        self._pager.ask(Request(sid, after_n, messages_max, bytes_max, on_page))

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was submitted is in the database; False: not in time."""
        return self._writer.flush(timeout_s)

    def apply_soon(self) -> None:
        """Apply groups to the tables now, not within a second."""
        self._applier.wake()

    def stop(self, timeout_s: float) -> bool:
        """Commit what was submitted, apply it, close. False: it could not be done in time."""
        if self._is_closed:
            return self._is_done
        self._is_stopping = True
        until = time.monotonic() + timeout_s
        is_done = not self._is_started or self.flush(timeout_s)
        for worker in (self._pager, self._applier, self._writer):
            worker.stop()
            is_done = worker.join(until - time.monotonic()) and is_done
        self._is_done = is_done
        self.abandon()
        return is_done

    def abandon(self) -> None:
        """Close without finishing anything, as a crash would."""
        if self._is_closed:
            return
        self._is_closed = True
        workers = (self._pager, self._writer, self._applier)
        for worker in workers:
            worker.abandon()
        for worker in workers:
            if worker.join(LOCKED_S):
                worker.drop()  # connections given to a thread that never began
        self.database.dispose()
        if self._lock is not None:
            self._lock.release()

    # For the threads.

    @property
    def lag(self) -> int:
        """The number of groups in the journal that the tables do not have."""
        return max(0, self._writer.last_number - self._folded_to)

    def _committed(self, number: int, recorded: int, size: int) -> None:
        self.commits += 1
        if recorded > self._recorded:  # else the group is in the participant's files alone
            self._recorded = recorded
            self._unapplied_bytes += size
        if self._unapplied_bytes > APPLY_EARLY_BYTES:
            self._unapplied_bytes = 0
            self._applier.wake()
        if number > self._safe:
            self._on_committed(number)
            self._safe = number  # last: what could not be reported is reported again

    def _count_folded(self, number: int, cancelled: int) -> None:
        self.folded += number - self._folded_to
        self.cancelled += cancelled
        self._folded_to = number
        if hasattr(self, "_writer"):
            self._writer.folded(number)
        self._on_folded(number)

    def _set_state(self, worker: str, state: str) -> None:
        with self._state_lock:
            self._states[worker] = state
            line = "; ".join(f"{name}: {text}" for name, text in self._states.items() if text)
            self._on_state(line)


def _ignore(_: object) -> None:
    pass


# That `abandon` waits for a statement which another process's lock delays.
LOCKED_S: Final = 2.0
