"""Apply committed journal groups to the tables in a background thread.

About once a second, or when many bytes wait, the thread reads the groups of the journal that the
tables do not have. Neither its work nor its failure delays a commit. The number of the last applied
group is written in the same transaction: recovery applies the groups after it, with the same code.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine

from sessions.journal.net_changes import Changes
from sessions.journal.records import unseal
from sessions.journal.value_ranges import ID_MAX
from sessions.store.database import Database, StoreError, execute, is_conflict
from sessions.store.table_updates import RepairingTableUpdate, TableUpdate
from sessions.store.worker import Abandoned, Worker
from sessions.store.writer import read_groups

INTERVAL_S: Final = 1.0
HEARTBEAT_S: Final = 5.0
# The maximum size of a batch.
BATCH_BYTES_MAX: Final = 16 << 20
BATCH_RECORDS_MAX: Final = 10_000
# After WORK_S the thread sleeps for PAUSE_S, so that the event loop gets the interpreter: a sleep
# of 0 would often end before the loop has woken up.
WORK_S: Final = 0.0003
PAUSE_S: Final = 0.00002


@dataclass(slots=True)
class StoreMeta:
    """The row of table `meta`. Only `folded`, the last group in the tables, is essential."""

    folded: int
    last_mid: int
    last_sid: int
    next_place: int
    alive_at: float


def read_meta(connection: Connection) -> StoreMeta:
    row = execute(
        connection, "SELECT folded, last_mid, last_sid, next_place, alive_at FROM meta"
    ).one()
    last_mid, last_sid, next_place = (
        value if type(value) is int and 0 <= value <= ID_MAX else 0 for value in row[1:4]
    )
    alive_at = row[4] if isinstance(row[4], float) and 0 <= row[4] < math.inf else 0.0
    return StoreMeta(row[0], last_mid, last_sid, next_place, alive_at)


class InterpreterPauses:
    """Gives the interpreter to other threads every few hundred microseconds, if they want it.

    Raises Abandoned once the work is given up.
    """

    def __init__(self, is_wanted: bool, abandoned: threading.Event) -> None:
        self._since = time.perf_counter() if is_wanted else math.inf
        self._abandoned = abandoned

    def __call__(self) -> None:
        if self._abandoned.is_set():
            raise Abandoned
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(PAUSE_S)
            self._since = time.perf_counter()


class JournalApplier(Worker):
    """The thread that applies groups of the journal."""

    def __init__(
        self,
        database: Database,
        folded: int,
        on_folded: Callable[[int, int], None],
        on_state: Callable[[str, str], None],
        on_healed: Callable[[list[str]], None] = lambda lines: None,
        recorded: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__("tables", on_state)
        self._on_healed = on_healed
        self._database = database
        self._on_folded = on_folded  # called with the last number, and the cancelled messages
        self._recorded = recorded  # returns the last group in the journal
        self._meta: StoreMeta | None = None  # None: to be read from the tables
        self._reported = folded
        self._wake = threading.Event()
        self._is_live = False  # groups that are applied at the start are not a heartbeat
        self._is_stopping = False

    # From any thread.

    def wake(self) -> None:
        """Apply waiting groups now."""
        self._wake.set()

    def stop(self) -> None:
        """Apply waiting groups, and end the thread."""
        self._is_stopping = True
        self._wake.set()

    def abandon(self) -> None:
        super().abandon()
        self._wake.set()

    # In the thread.

    def run(self) -> None:
        self._is_live = True
        beat_at = time.monotonic()
        while not self._is_stopping:
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            if self._abandoned.is_set():
                return
            now = time.monotonic()
            upto = self._recorded()
            if self._meta is None or self._meta.folded < upto:
                # Groups that arrive meanwhile wait for the next time: by then some of their
                # records may be obsolete.
                while self.attempt(self.apply_some) and self._reported < upto:
                    continue
                self.attempt(self._checkpoint)
                beat_at = now
            elif now - beat_at > HEARTBEAT_S:
                self.attempt(self._beat)
                beat_at = now
        while self.attempt(self.apply_some):
            continue
        self.attempt(self._beat)
        self.attempt(self._checkpoint)

    def prepare(self, engine: Engine, connection: Connection) -> None:
        if engine is not self._database.tables:
            connection.execution_options(sqlite_reads=True)

    def drop(self) -> None:
        self._meta = None
        super().drop()

    def apply_some(self) -> bool:
        """Apply one batch of groups; return False if there is none."""
        tables = self.connect(self._database.tables)
        journal = self.connect(self._database.journal)
        if self._meta is None:
            with tables.begin():
                self._meta = read_meta(tables)
            self._report(self._meta.folded, 0)  # an attempt that seemed to fail may have succeeded
        before = self._meta
        pause = InterpreterPauses(self._is_live and not self._is_stopping, self._abandoned)
        changes = Changes(before.next_place)
        number, at = before.folded, before.alive_at
        size = 0
        is_full = False
        while not is_full and (groups := self._read(journal, number)):
            for group in groups:
                number, at, data = group
                for record in unseal(data):
                    changes.apply(record)
                    pause()
                size += len(data)
                if changes.records >= BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
                    is_full = True
                    break
        if number == before.folded:
            return False
        after = StoreMeta(
            number,
            max(before.last_mid, changes.last_mid),
            max(before.last_sid, changes.last_sid),
            changes.place,
            time.time() if self._is_live else max(before.alive_at, at),
        )
        self._meta = None
        try:
            update = _apply(tables, TableUpdate(tables, changes, pause), before, after)
        except Exception as error:
            if not is_conflict(error):
                raise
            # The journal has rows that exist already, or refers to missing ones.
            update = _apply(tables, RepairingTableUpdate(tables, changes, pause), before, after)
            self._on_healed(update.healed)
        self._meta = after
        self._report(after.folded, changes.messages - update.written)
        return True

    def _read(self, journal: Connection, after: int) -> list[Any]:
        with journal.begin():
            return read_groups(journal, after)

    def _report(self, number: int, cancelled: int) -> None:
        if number > self._reported:
            self._on_folded(number, cancelled)
            self._reported = number  # last: a report that fails is repeated

    def _beat(self) -> None:
        """Record the time of a heartbeat: after a crash, it is when the broker was last alive."""
        tables = self.connect(self._database.tables)
        now = time.time()
        with tables.begin():
            execute(tables, "UPDATE meta SET alive_at = ?", (now,))
        if self._meta is not None:
            self._meta.alive_at = now

    def _checkpoint(self) -> None:
        """Checkpoint the journal's write-ahead log, so that commits rarely have to."""
        if self._database.is_sqlite:
            journal: Any = self.connect(self._database.journal).connection.driver_connection
            journal.execute("PRAGMA wal_checkpoint(PASSIVE)").close()


def _apply(
    tables: Connection, update: TableUpdate, before: StoreMeta, after: StoreMeta
) -> TableUpdate:
    with tables.begin():
        update.apply()
        write_meta(tables, before, after)
    return update


def write_meta(connection: Connection, before: StoreMeta, after: StoreMeta) -> None:
    """Write the row of table `meta`. Raises StoreError if another broker has changed it."""
    done = execute(
        connection,
        "UPDATE meta SET folded = ?, last_mid = ?, last_sid = ?, next_place = ?, alive_at = ? "
        "WHERE folded = ?",
        (
            after.folded, after.last_mid, after.last_sid, after.next_place, after.alive_at,
            before.folded,
        ),
    )  # fmt: skip
    if done.rowcount != 1:
        raise StoreError("another broker has changed the tables")
