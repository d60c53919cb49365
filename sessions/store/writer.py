"""Commit groups of records to the journal in a background thread.

A commit takes all waiting groups, so a slow disk makes larger commits, not a longer queue. Groups
that failed are kept in order, and committed with later ones once the database works again. A commit
whose outcome is unknown may have succeeded: before it is repeated, the last number in the journal
is read.

A group may have data outside the database, in the files of a `CommitParticipant`. It is written
before the group, and the ends of the files are committed with the group, so data after those ends
belongs to no committed group. While the files cannot be written, nothing is committed.

A group without records is durable with the files alone, if `is_durable_alone` says so: then their
sync is the only one, and the ends are written to the database with the next group that has records,
or after a while. A crash before that loses numbers of empty groups.

A group that is too large for one row has several, all but the last marked as continued. They are
committed together once the last one has arrived.

This thread also removes groups that the tables have, a few with every commit: the journal has one
writer, so there is no lock to wait for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from errno import EDQUOT, ENOSPC
from typing import Any, Final

from sqlalchemy import Connection, Engine

from sessions.journal.participant import CommitParticipant
from sessions.journal.records import Corrupt, is_continued, seal
from sessions.messages.timings import Histogram
from sessions.store.database import Database, execute, explain, insert, repeated
from sessions.store.worker import ParticipantFailed, Worker

COMMIT_BYTES_MAX: Final = 64 << 20
# Removing takes two statements, and a long row frees its pages one by one. So a commit removes rows
# only if the tables have REMOVED_WITH_COMMIT groups, and then that many more than it inserts.
# Without a commit for IDLE_S, all are removed, REMOVED_IN_STEP at a time.
REMOVED_WITH_COMMIT: Final = 64
REMOVED_IN_STEP: Final = 200
IDLE_S: Final = 1.0
# Groups that are durable without the database are recorded in it after this time, or this number.
UNRECORDED_S: Final = 0.5
UNRECORDED_MAX: Final = 1_000
READ_GROUPS: Final = 16

_PARTICIPANT: Final = "telemetry log"
_EMPTY: Final = seal([])

Group = tuple[int, float, bytes]  # number, at, data


class Writer(Worker):
    """The thread that commits."""

    def __init__(
        self,
        database: Database,
        last_number: int,
        removed_to: int,
        on_committed: Callable[[int, int, int], None],
        on_state: Callable[[str, str], None],
        prepare: Callable[[Connection], None],
    ) -> None:
        super().__init__("journal", on_state)
        self._database = database
        # Called with the last durable number, the last in the database, and the new bytes.
        self._on_committed = on_committed
        self._prepare = prepare
        self._participant: CommitParticipant | None = None
        # Groups; events to be set when everything before them is durable; names whose end is to be
        # deleted; None, which wakes the writer.
        self._queue: queue.SimpleQueue[Group | threading.Event | str | None] = queue.SimpleQueue()
        self._flushed: list[threading.Event] = []
        self._forgotten: list[str] = []
        self._received: Group | threading.Event | str | None = None  # not yet sorted in
        self._begun: list[Group] = []  # parts of an incomplete group
        self._waiting: list[Group] = []  # not in the database; durable ones come first
        self._waiting_bytes = 0  # of groups that are not durable
        self._unrecorded = 0  # number of groups that are durable by the participant's files
        self._unrecorded_since = 0.0
        self._is_unsure = False
        self._is_stopping = False
        self._folded = removed_to
        self._removed_to = removed_to
        self._submitted = last_number
        self._told = last_number, last_number  # arguments of the last call of `on_committed`
        self._committed_bytes = 0  # since then
        self.last_number = last_number  # the last durable group
        self.journal_write = Histogram()  # transactions of the database, the commit included
        self.journal_sync = Histogram()  # their commit, which writes and syncs
        self.log_write = Histogram()  # writes of the participant, the sync included
        self._recorded = last_number  # the last group in the database

    # From any thread.

    def enlist(self, participant: CommitParticipant) -> None:
        """Write the participant's data with the groups that are submitted from now on."""
        self._participant = participant

    def submit(self, number: int, data: bytes, at: float) -> None:
        """Submit a group to be committed; numbers are consecutive."""
        if number != self._submitted + 1:
            raise ValueError(f"group {number} cannot follow {self._submitted}")
        self._submitted = number
        self._queue.put((number, at, data))

    def folded(self, number: int) -> None:
        """Note that the tables have the groups up to this number, which may be removed."""
        self._folded = number
        self._queue.put(None)

    def forget_ends(self, name: str) -> None:
        """Delete the participant's end of this name, which may be used again later."""
        self._queue.put(name)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all submitted groups are in the database; return False on timeout."""
        if self.has_ended:
            return False
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(max(0.0, timeout_s))

    def stop(self) -> None:
        """Commit submitted groups, remove those that the tables have, and end the thread."""
        self._is_stopping = True
        self._queue.put(None)

    def abandon(self) -> None:
        super().abandon()
        self._queue.put(None)

    # In the thread.

    def run(self) -> None:
        while True:
            self._gather()
            if self._has_more or self._has_rest:
                self.attempt(self._commit)
            elif self._is_stopping and self._queue.empty():
                return
            if self._abandoned.is_set():
                return
            while self._flushed and not self._waiting:
                self._flushed.pop().set()

    def prepare(self, engine: Engine, connection: Connection) -> None:
        self._prepare(connection)

    @property
    def _has_more(self) -> bool:
        """Tell whether there is anything to commit, to report, or to delete."""
        return (
            len(self._waiting) > self._unrecorded
            or len(self._forgotten) > 0
            or self._told != (self.last_number, self._recorded)
        )

    @property
    def _has_rest(self) -> bool:
        """Tell whether there is anything to commit that is not urgent."""
        return self._unrecorded > 0 or self._removed_to < self._folded

    def _gather(self) -> None:
        """Sleep until there is work, then take everything from the queue."""
        self._sort_in()
        while not (
            self._has_more or self._flushed or self._is_stopping or self._abandoned.is_set()
        ):
            try:
                self._received = self._queue.get(timeout=IDLE_S if self._has_rest else None)
            except queue.Empty:
                return
            self._sort_in()
        self.gather_more()

    def gather_more(self) -> None:
        self._sort_in()
        while self._waiting_bytes < COMMIT_BYTES_MAX and not self._queue.empty():
            self._received = self._queue.get_nowait()
            self._sort_in()

    def _sort_in(self) -> None:
        """Sort in the received item; if that fails, it is repeated."""
        item = self._received
        if isinstance(item, threading.Event):
            self._flushed.append(item)
        elif isinstance(item, str):
            self._forgotten.append(item)
        elif item is not None:
            if is_continued(item[2]):
                self._begun = [*self._begun, item]
            else:
                whole = [*self._begun, item]
                size = sum(len(part[2]) for part in whole)
                self._waiting += whole
                self._waiting_bytes += size
                self._begun = []
        self._received = None

    def _commit(self) -> None:
        self.gather_more()
        number = self._waiting[-1][0] if self._waiting else self.last_number
        if self._is_durable_without_database(number):
            ends = self._write_participant(number, stands_alone=True)
            self._unrecorded_since = self._unrecorded_since or time.monotonic()
            self._on_durable(number, self._recorded, ends)
            return
        connection = self.connect(self._database.journal)
        ends = self._write_participant(number)
        began = time.monotonic()
        with connection.begin() as transaction:
            groups = self._unsafe(connection) if self._is_unsure else self._waiting
            self._is_unsure = True
            for some in pieces(groups):
                insert(connection, "journal", ("number", "at", "data"), some)
            self._record_ends(connection, ends)
            removed_to = self._remove(connection)
            committing = time.monotonic()
            transaction.commit()
        ended = time.monotonic()
        self.journal_sync.add_seconds(ended - committing)
        self.journal_write.add_seconds(ended - began)
        self._is_unsure = False
        self._removed_to = removed_to
        self._forgotten.clear()
        self._waiting.clear()
        self._unrecorded_since = 0.0
        self._on_durable(number, number, ends)

    def _is_durable_without_database(self, number: int) -> bool:
        """Tell whether all new groups are durable with the participant's files alone."""
        new = self._waiting[self._unrecorded :]
        return (
            self._participant is not None
            and len(new) > 0
            and all(group[2] == _EMPTY for group in new)
            and not (self._forgotten or self._flushed or self._is_unsure or self._is_stopping)
            and self._unrecorded < UNRECORDED_MAX
            and not (self._unrecorded and time.monotonic() - self._unrecorded_since > UNRECORDED_S)
            and self._folded - self._removed_to < REMOVED_WITH_COMMIT
            and self._is_participant_durable(number)
        )

    def _is_participant_durable(self, number: int) -> bool:
        assert self._participant is not None
        try:
            return self._participant.is_durable_alone(number)
        except Exception as error:  # any error: `attempt` repeats the work
            raise ParticipantFailed(_PARTICIPANT, _explain(error)) from error

    def _on_durable(self, number: int, recorded: int, ends: Mapping[str, str]) -> None:
        """Note that waiting groups are durable, and up to which number they are in the database."""
        self._unrecorded = len(self._waiting)
        self._committed_bytes += self._waiting_bytes
        self._waiting_bytes = 0
        self.last_number = number
        self._recorded = recorded
        try:
            if ends and self._participant is not None:
                self._participant.committed(ends, stands_alone=recorded < number)
        except Exception as error:
            # The groups are durable anyway; the ends are passed again until it succeeds.
            raise ParticipantFailed(_PARTICIPANT, _explain(error)) from error
        finally:
            self._tell()

    def _tell(self) -> None:
        """Report the last durable number; if that fails, it is repeated."""
        if self._told != (self.last_number, self._recorded):
            self._on_committed(self.last_number, self._recorded, self._committed_bytes)
            self._told = self.last_number, self._recorded
            self._committed_bytes = 0

    def _write_participant(self, number: int, *, stands_alone: bool = False) -> Mapping[str, str]:
        if self._participant is None:
            return {}
        began = time.monotonic()
        try:
            ends = self._participant.write(number, stands_alone=stands_alone)
        except Exception as error:  # any error: `attempt` repeats the work
            raise ParticipantFailed(_PARTICIPANT, _explain(error)) from error
        if ends:
            self.log_write.add_seconds(time.monotonic() - began)
        return ends

    def _unsafe(self, connection: Connection) -> list[Group]:
        """Return the waiting groups without those that an earlier commit has written."""
        found = execute(connection, "SELECT max(number) FROM journal").scalar()
        state = execute(connection, "SELECT removed_to FROM journal_state").scalar_one()
        self._removed_to = state
        safe = max(found or 0, state)
        return [group for group in self._waiting if group[0] > safe]

    def _record_ends(self, connection: Connection, ends: Mapping[str, str]) -> None:
        """Write ends, after deleting others: their names may be in use again."""
        if self._forgotten:
            marks = repeated("?", len(self._forgotten))
            execute(connection, f"DELETE FROM stream_ends WHERE name IN ({marks})", self._forgotten)
        if ends:
            insert(connection, "stream_ends", ("name", "ends"), ends.items(), ("name",))

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


def pieces(groups: list[Group]) -> Iterator[list[Group]]:
    """Split groups into statements of limited size: a database takes no more than 1 GB in one."""
    some: list[Group] = []
    size = 0
    for group in groups:
        if some and size + len(group[2]) > COMMIT_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(group)
        size += len(group[2])
    if some:
        yield some


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        said = "disk full" if error.errno in (ENOSPC, EDQUOT) else error.strerror
        return f"{said} ({error.filename})" if error.filename else said
    return explain(error)


def read_groups(connection: Connection, after: int) -> list[Any]:
    """Read some rows (number, at, data) above a number; raises Corrupt at a gap."""
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
