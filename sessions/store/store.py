"""The store: the durable state of the broker, in a database.

The event loop submits groups of records (`submit`) and is called back with the last durable
number. It never waits for the three threads: the writer commits groups to the journal, the applier
writes them into the tables, the pager reads queued deliveries.

The caller numbers groups consecutively, from `Snapshot.last_number` + 1 on.
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
from sessions.journal.value_ranges import add_name, count
from sessions.store import postgres_lock, salvage, schema, state_loader
from sessions.store import sqlite_files as sqlite_files
from sessions.store.applier import JournalApplier, read_meta
from sessions.store.database import (
    Database,
    StoreError,
    Unreachable,
    execute,
    explain,
    explain_connect,
    parse_url,
    postgres_engine,
)
from sessions.store.pager import Page, Pager, Request
from sessions.store.postgres_lock import take_lock
from sessions.store.row_import import (
    drop_altered,
    has_right_references,
    recount_references,
    repair_digests,
)
from sessions.store.sqlite_files import CHECKED_BYTES_MAX, Damage, Files, Lock
from sessions.store.worker import discard
from sessions.store.writer import Writer

__all__ = ["Store", "StoreError", "Unreachable"]

ADVICE: Final = "restore it from a backup, or start once with --recover to save what is left"
APPLY_EARLY_BYTES: Final = 8 << 20  # new bytes in the journal that wake the applier


class Store:
    """The store of a broker."""

    def __init__(self, database: Database, owner: str, lock: Lock | None) -> None:
        self.database = database
        self._owner = owner
        self._lock = lock
        self._states: dict[str, str] = {}
        self._state_lock = threading.Lock()
        self.writer: Writer
        self.applier: JournalApplier
        self.pager: Pager
        self._on_committed: Callable[[int], None] = _ignore
        self._on_folded: Callable[[int], None] = _ignore
        self._on_state: Callable[[str], None] = _ignore
        self._is_started = False
        self._is_stopping = False
        self._is_closed = False
        self._is_done = False
        self._is_saved = False  # just rescued from damaged files
        self.commits = 0
        self._safe = 0  # the last durable group
        self._recorded = 0  # the last group in the journal
        self.folded = 0
        self.cancelled = 0
        self._folded_to = 0
        self._unapplied_bytes = 0  # committed since the applier was last woken
        self.healed: dict[str, int] = {}  # repaired contradictions, by kind
        self.altered: list[str] = []  # names of messages and wills left out

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
        """Lock and check a store, upgrade its schema, and apply the groups in its journal."""
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
            raise StoreError(
                f"{files.tables.parent}: {error.strerror}; the data directory must be one that "
                "this user can create and write"
            ) from None
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
        name = url.set(query={}).render_as_string(hide_password=True)
        store = cls(Database(engine, engine, is_sqlite=False, name=name), owner, None)
        try:
            connection = engine.connect()
        except Exception as error:
            raise Unreachable(
                f"the database {name} cannot be reached: {explain_connect(error)}"
            ) from None
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
        store.writer.adopt(engine, connection)
        return store

    def _begin(self, connection: Connection) -> None:
        """Prepare an intact store for the start, while holding the journal's lock."""
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
                said = f"database is damaged: the journal contradicts the tables ({said})"
            kind = Damage if "damaged" in said else StoreError
            raise kind(f"{self.database.name}: {said}") from error
        self.writer = Writer(
            self.database,
            last_number,
            removed_to,
            self._committed,
            self._set_state,
            self.check_owner,
        )
        self.applier = self._new_applier()
        self.pager = Pager(self.database, self._set_state)
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
        """Repair rows of the tables that contradict each other, if the store is small.

        A larger one is used as it is.
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
                self._count_healed(drop_altered(tables, self.altered))
                if not has_right_references(tables):
                    gone = recount_references(tables, is_strict=False)
                    self._count_healed(gone or ["1 wrong reference count"])

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
                        f"this version supports {schema.HEAD}): use the newer version, or a backup"
                    )
                if is_new:
                    schema.create(connection, parts)
                elif version != schema.HEAD:
                    schema.upgrade(connection, parts)
                if is_new and self.database.is_sqlite:  # `create` makes complete files
                    raise Damage(f"{engine.url} has no tables")
                if is_new:
                    store_id = str(uuid.uuid4())
                    for part in parts:
                        schema.begin(connection, part, store_id)

    def _compare(self) -> tuple[int, int]:
        """Check that journal and tables are of the same store, and neither is an older copy."""
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
            raise Damage(f"the journal of {self.database.name} belongs to another store")
        if removed_to > folded or (first is not None and first != folded + 1):
            raise Damage(
                f"{self.database.name} is older than its journal: "
                f"groups {folded + 1} to {max(removed_to, (first or 1) - 1)} are in neither"
            )
        if max(newest, removed_to) < folded:
            raise Damage(
                f"the journal is older than {self.database.name}: it ends with group "
                f"{max(newest, removed_to)}, but group {folded} is applied"
            )
        return max(folded, last or 0), removed_to

    def check_owner(self, connection: Connection) -> None:
        """Check, on a new connection of the writer, that no other broker has taken the store."""
        if not self.database.is_sqlite:
            take_lock(connection, f"fleetmq {self._owner}")
        with connection.begin():
            owner = execute(connection, "SELECT owner FROM journal_state").scalar_one()
        if owner != self._owner:
            raise StoreError("another broker has taken over the store: restart this broker")

    # For the broker.

    def snapshot(self) -> Snapshot:
        """Return the state that the broker starts with; called before `start`."""
        try:
            found = state_loader.snapshot(self.database)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"cannot read the store: {explain(error)}") from error
        for what, number in self.healed.items():
            count(found.healed, what, number)
        for name in self.altered:
            add_name(found.altered, name)
        self.healed.clear()
        self.altered.clear()
        found.has_lost_ends = self._is_saved and not found.stream_ends
        return found

    def start(
        self,
        on_committed: Callable[[int], None],
        on_folded: Callable[[int], None],
        on_state: Callable[[str], None],
    ) -> None:
        """Start the threads, which call these functions; the state "" means: no error."""
        self._on_committed = on_committed
        self._on_folded = on_folded
        self._on_state = on_state
        self._is_started = True
        self.writer.folded(self._folded_to)
        for worker in (self.writer, self.applier, self.pager):
            worker.start()

    def dead_threads(self) -> list[str]:
        """Return the names of threads that have ended unexpectedly. Called from any thread."""
        if self._is_stopping or self._is_closed:
            return []
        workers = (self.writer, self.applier, self.pager)
        return [worker.name for worker in workers if worker.has_ended]

    def submit(self, number: int, blob: bytes, at: float) -> None:
        """Submit a group to be committed."""
        self.writer.submit(number, blob, at)

    def enlist(self, participant: CommitParticipant) -> None:
        """Write the participant's data with the groups that are submitted from now on."""
        self.writer.enlist(participant)

    def forget_ends(self, name: str) -> None:
        """Delete the participant's end of this name, with the next commit or soon."""
        self.writer.forget_ends(name)

    def page(
        self,
        sid: int,
        after_n: int,
        messages_max: int,
        bytes_max: int,
        on_page: Callable[[Page], None],
    ) -> None:
        """Read deliveries queued for `sid` after `after_n` from the tables.

        The page has at least one delivery if there is one.
        """
        self.pager.ask(Request(sid, after_n, messages_max, bytes_max, on_page))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all submitted groups are in the database; return False on timeout."""
        return self.writer.flush(timeout_s)

    def apply_soon(self) -> None:
        """Apply groups to the tables at once."""
        self.applier.wake()

    def stop(self, timeout_s: float) -> bool:
        """Commit all submitted groups, and close; return False if there was no time for it.

        Groups that there is no time to apply are applied at the next start (`lag`).
        """
        if self._is_closed:
            return self._is_done
        self._is_stopping = True
        until = time.monotonic() + timeout_s
        is_done = not self._is_started or self.flush(timeout_s)
        for worker in (self.pager, self.applier):
            worker.stop()
            if not worker.join(until - time.monotonic()):
                worker.abandon()
        self.writer.stop()
        self._is_done = self.writer.join(max(until - time.monotonic(), CLOSE_S)) and is_done
        self.abandon()
        return self._is_done

    def abandon(self) -> None:
        """Close without finishing anything, like a crash."""
        if self._is_closed:
            return
        self._is_closed = True
        workers = (self.pager, self.writer, self.applier)
        for worker in workers:
            worker.abandon()
        for worker in workers:
            if worker.join(LOCKED_S):
                worker.drop()  # connections of a thread that was never started
        self.database.dispose()
        if self._lock is not None:
            self._lock.release()

    # For the threads.

    @property
    def lag(self) -> int:
        """The number of groups in the journal that are not yet in the tables."""
        return max(0, self.writer.last_number - self._folded_to)

    def _committed(self, number: int, recorded: int, size: int) -> None:
        self.commits += 1
        if recorded > self._recorded:  # else the group is only in the participant's files
            self._recorded = recorded
            self._unapplied_bytes += size
        if self._unapplied_bytes > APPLY_EARLY_BYTES:
            self._unapplied_bytes = 0
            self.applier.wake()
        if number > self._safe:
            self._on_committed(number)
            self._safe = number  # last: a report that fails is repeated

    def _count_folded(self, number: int, cancelled: int) -> None:
        self.folded += number - self._folded_to
        self.cancelled += cancelled
        self._folded_to = number
        if hasattr(self, "writer"):
            self.writer.folded(number)
        self._on_folded(number)

    def _set_state(self, worker: str, state: str) -> None:
        with self._state_lock:
            self._states[worker] = state
            line = "; ".join(f"{name}: {text}" for name, text in self._states.items() if text)
            self._on_state(line)


def _ignore(_: object) -> None:
    pass


# How long `abandon` waits for a statement that is delayed by a lock of another process.
LOCKED_S: Final = 2.0
CLOSE_S: Final = 1.0  # for the last commit, if the tables took all the time there was
