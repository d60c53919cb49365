"""The writer: groups of records become rows of the journal, and then they are safe.

A commit takes all that waits, so a slow disk makes larger commits, not a longer line. What
failed is kept, in order, and goes with what came meanwhile once the database is back. A commit
whose end nobody saw may have succeeded: before it is repeated, the journal is asked for the
last number it has.

Groups that were folded are removed here too, a few with every commit: the journal has one
writer, and nobody waits for a lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine

from sessions.engines import Database, execute, insert
from sessions.records import Corrupt
from sessions.workers import Worker

COMMIT_BYTES_MAX: Final = 64 << 20
# Removing costs two statements, and a long row frees its pages one by one. So a commit removes
# when so much is folded, and then so many rows and as many as it brings; without a commit,
# after so long, all that are left go in steps.
REMOVED_WITH_COMMIT: Final = 64
REMOVED_IN_STEP: Final = 200
IDLE_S: Final = 1.0
READ_GROUPS: Final = 16

Group = tuple[int, float, bytes]  # number, at, data


class Writer(Worker):
    def __init__(
        self,
        database: Database,
        last_number: int,
        removed_to: int,
        on_committed: Callable[[int, int], None],
        on_state: Callable[[str, str], None],
        prepare: Callable[[Connection], None],
    ) -> None:
        super().__init__("journal", on_state)
        self._database = database
        self._on_committed = on_committed  # up to which number, how many bytes
        self._prepare = prepare
        # An event is set when all before it is safe; None only wakes the writer.
        self._queue: queue.SimpleQueue[Group | threading.Event | None] = queue.SimpleQueue()
        self._flushed: list[threading.Event] = []
        self._waiting: list[Group] = []
        self._waiting_bytes = 0
        self._is_unsure = False
        self._is_stopping = False
        self._folded = removed_to
        self._removed_to = removed_to
        self._submitted = last_number
        self.last_number = last_number  # safe up to here

    # From any thread.

    def submit(self, number: int, data: bytes, at: float) -> None:
        if number != self._submitted + 1:
            raise ValueError(f"group {number} cannot follow {self._submitted}")
        self._submitted = number
        self._queue.put((number, at, data))

    def folded(self, number: int) -> None:
        """Groups up to this number are in the tables and may go."""
        self._folded = number
        self._queue.put(None)

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was submitted is committed."""
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(max(0.0, timeout_s))

    def stop(self) -> None:
        """Commit what was submitted, remove what was folded, and end."""
        self._is_stopping = True
        self._queue.put(None)

    def abandon(self) -> None:
        super().abandon()
        self._queue.put(None)

    # In the thread.

    def run(self) -> None:
        while True:
            self._gather()
            if self._waiting or self._removed_to < self._folded:
                self.attempt(self._commit)
            elif self._is_stopping and self._queue.empty():
                return
            if self._abandoned.is_set():
                return
            while self._flushed and not self._waiting:
                self._flushed.pop().set()

    def prepare(self, engine: Engine, connection: Connection) -> None:
        self._prepare(connection)

    def _gather(self) -> None:
        """Sleep until there is something to do, then take all that waits."""
        while not (self._waiting or self._flushed or self._is_stopping or self._abandoned.is_set()):
            has_rest = self._removed_to < self._folded
            try:
                self._add(self._queue.get(timeout=IDLE_S if has_rest else None))
            except queue.Empty:
                return
        self._gather_more()

    def _gather_more(self) -> None:
        while self._waiting_bytes < COMMIT_BYTES_MAX and not self._queue.empty():
            self._add(self._queue.get_nowait())

    def _add(self, item: Group | threading.Event | None) -> None:
        if isinstance(item, threading.Event):
            self._flushed.append(item)
        elif item is not None:
            self._waiting.append(item)
            self._waiting_bytes += len(item[2])

    def _commit(self) -> None:
        connection = self.connect(self._database.journal)
        self._gather_more()
        with connection.begin():
            if self._is_unsure:
                self._forget_safe(connection)
            self._is_unsure = True
            if self._waiting:
                insert(connection, "journal", ("number", "at", "data"), self._waiting)
            removed_to = self._remove(connection)
        self._is_unsure = False
        self._removed_to = removed_to
        if self._waiting:
            size = self._waiting_bytes
            self.last_number = self._waiting[-1][0]
            self._waiting.clear()
            self._waiting_bytes = 0
            self._on_committed(self.last_number, size)

    def _forget_safe(self, connection: Connection) -> None:
        """Drop what an attempt has committed without our knowing."""
        found = execute(connection, "SELECT max(number) FROM journal").scalar()
        state = execute(connection, "SELECT removed_to FROM journal_state").scalar_one()
        self._removed_to = state
        safe = max(found or 0, state)
        if safe > self.last_number:
            done = [group for group in self._waiting if group[0] <= safe]
            self.last_number = safe
            del self._waiting[: len(done)]
            self._waiting_bytes = sum(len(group[2]) for group in self._waiting)
            self._on_committed(safe, sum(len(group[2]) for group in done))

    def _remove(self, connection: Connection) -> int:
        left = self._folded - self._removed_to
        if left <= 0:
            return self._removed_to
        count = REMOVED_IN_STEP
        if self._waiting:
            if left < REMOVED_WITH_COMMIT:
                return self._removed_to
            count = len(self._waiting) + REMOVED_WITH_COMMIT
        to = self._removed_to + min(left, count)
        execute(connection, "DELETE FROM journal WHERE number <= ?", (to,))
        execute(connection, "UPDATE journal_state SET removed_to = ?", (to,))
        return to


def read_groups(connection: Connection, after: int) -> list[Any]:
    """Some rows (number, at, data) after a number, without a gap."""
    rows = execute(
        connection,
        "SELECT number, at, data FROM journal WHERE number > ? ORDER BY number LIMIT ?",
        (after, READ_GROUPS),
    ).all()
    for row in rows:
        after += 1
        if row[0] != after:
            raise Corrupt(f"group {after} is missing, {row[0]} is there")
    return list(rows)
