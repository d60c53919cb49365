"""A model of PostgreSQL, as bad as the real one may be.

Transactions are READ COMMITTED: each statement sees what was committed when it began and what its
own transaction wrote, and waits for the row locks of others. The statements of all connections
interleave. A ring of waiting transactions is a deadlock; a wait may time out. A COMMIT is answered
when the standby has it, unless replication is asynchronous. Others may see its rows before that,
and a fail-over loses every commit that the standby did not have. A connection that ends leaves its
backend behind, which executes what had arrived, and notices some time later that nobody listens.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from mqtt_broker.cluster.statements import (
    Aborted,
    Clock,
    Commit,
    Delete,
    EndBackends,
    Expect,
    Insert,
    InsertNew,
    LockTimeout,
    Put,
    PutAll,
    Refused,
    Row,
    Rows,
    Select,
    SelectNewer,
    Stale,
    Statement,
    TransactionError,
    Update,
)

IDLE_IN_TRANSACTION_S: Final = 5.0  # the server ends a transaction that is idle for longer
STANDBY_DELAYS_S: Final = ((0.001, 0.002, 0.01), (0.001, 0.01, 0.2), (0.01, 0.2, 0.8))
CLOCK_STEPS_S: Final = (-0.5, 0.0, 0.5)  # of the clocks of primary and standby
LAGS_S: Final = (0.1, 1.0, 4.0)  # of a standby that nobody waits for
END_DELAYS_S: Final = (0.0, 0.001, 0.5)  # ending a backend is a signal to it

Key = tuple[Any, ...]
Place = tuple[str, Key]  # a row: its table and its key
Write = tuple[str, Key, Row | None]


class Time(Protocol):
    now: float
    rng: random.Random

    def after(self, seconds: float, action: Callable[[], None]) -> None: ...


class Database:
    def __init__(self, time: Time, keys: dict[str, tuple[str, ...]]) -> None:
        self.time = time
        self.rng = time.rng
        self._keys = keys
        self._visible: dict[str, dict[Key, Row]] = {name: {} for name in keys}
        self._safe: dict[str, dict[Key, Row]] = {name: {} for name in keys}
        self._log: deque[tuple[int, list[Write]]] = deque()  # what the standby does not have
        self._number = 0  # of the last commit
        self._replicated = 0
        self._unanswered: list[Backend] = []  # their commits wait for the standby
        self._waiting: deque[Backend] = deque()  # for a row
        self.locks: dict[Place, Backend] = {}
        self.births: Counter[Place] = Counter()  # how often a row was inserted with this key
        self.backends: set[Backend] = set()
        self.is_synchronous = True  # a COMMIT is answered when the standby has it
        self._standby_delays_s = self.rng.choice(STANDBY_DELAYS_S)
        self.timeline = 1
        self.failed_over_at = 0.0
        self._clock_offset_s = self.rng.choice([-7_200.0, 0.0, 86_400.0])
        self.is_up = True
        self._stalled_until = 0.0
        self.deadlocks = 0
        self.lost_commits = 0

    # What tests read.

    @property
    def standby_delay_s_max(self) -> float:
        """The longest time that a COMMIT waits for the standby."""
        return max(self._standby_delays_s)

    def rows(self, table: str) -> Rows:
        """Every committed row of a table."""
        found = self._visible[table]
        return [found[key] for key in sorted(found)]

    def key(self, table: str, row: Row) -> Key:
        return tuple(row[column] for column in self._keys[table])

    def read(self, table: str, own: dict[Place, Row | None]) -> list[tuple[Key, Row]]:
        """What a statement sees: committed rows, and those of its own transaction."""
        found = dict(self._visible[table])
        for (name, key), row in own.items():
            if name == table:
                if row is None:
                    found.pop(key, None)
                else:
                    found[key] = row
        return sorted(found.items())

    def clock(self) -> float:
        """Return the database's own time; a fail-over may put it back."""
        return self.time.now + self._clock_offset_s

    # Commits.

    def commit(self, backend: Backend, writes: dict[Place, Row | None]) -> None:
        """Append to the log; answer when the standby has it."""
        if not writes:
            backend.on_committed()
            return
        self._number += 1
        self._log.append((self._number, [(*place, row) for place, row in writes.items()]))
        backend.commit_number = self._number
        if not self.is_synchronous:
            self.show(backend)
            backend.on_committed()
        else:
            self._unanswered.append(backend)
            if self.rng.random() < 0.5:
                self.show(backend)
        number = self._number
        timeline, delay_s = self.timeline, self.rng.choice(self._standby_delays_s)
        delay_s += max(0.0, self._stalled_until - self.time.now)
        self.time.after(delay_s, lambda: self._replicate(number, timeline))

    def show(self, backend: Backend) -> None:
        """Make the rows of a commit visible, and free its locks; the standby may not have it."""
        if not backend.is_shown:
            backend.is_shown = True
            self.births.update(backend.born)
            for (table, key), row in backend.writes.items():
                _apply(self._visible, table, key, row)
            self.free(backend)

    def _replicate(self, number: int, timeline: int) -> None:
        if timeline != self.timeline or not self.is_up:
            return
        while self._log and self._log[0][0] <= number:
            for write in self._log.popleft()[1]:
                _apply(self._safe, *write)
        self._replicated = max(self._replicated, number)
        done = [one for one in self._unanswered if one.commit_number <= self._replicated]
        self._unanswered = [one for one in self._unanswered if one not in done]
        for backend in done:
            self.show(backend)
            backend.on_committed()

    # Locks.

    def lock(self, backend: Backend, place: Place) -> bool:
        """Take the lock of a row; False: the backend waits for it, or was ended by a deadlock."""
        holder = self.locks.get(place)
        if holder is None or holder is backend:
            self.locks[place] = backend
            return True
        backend.waits_for = place
        if self._is_ring(backend):
            self.deadlocks += 1
            backend.waits_for = None
            backend.fail(Aborted("deadlock detected"))
            return False
        self._waiting.append(backend)
        return False

    def _is_ring(self, backend: Backend) -> bool:
        waits: Backend | None = backend
        while waits is not None and waits.waits_for is not None:
            waits = self.locks.get(waits.waits_for)
            if waits is backend:
                return True
        return False

    def free(self, backend: Backend) -> None:
        """Free all locks of a backend, and let those go on that wait for them."""
        for place in [place for place, holder in self.locks.items() if holder is backend]:
            del self.locks[place]
        self._wake()

    def unlock(self, place: Place) -> None:
        """Free the lock of a row that is not there any more."""
        del self.locks[place]
        self._wake()

    def _wake(self) -> None:
        for waiting in list(self._waiting):
            if waiting.waits_for is not None and waiting.waits_for not in self.locks:
                self.stop_waiting(waiting)
                waiting.step_soon()

    def stop_waiting(self, backend: Backend) -> None:
        if backend.waits_for is not None:
            backend.waits_for = None
            self._waiting.remove(backend)

    # Faults.

    def replicate_asynchronously(self) -> None:
        """Answer a COMMIT at once; the standby follows far behind."""
        self.is_synchronous = False
        self._standby_delays_s = LAGS_S

    def stall(self, seconds: float) -> None:
        """Let no commit come to the standby for a while; what is read goes on."""
        self._stalled_until = self.time.now + seconds

    def calm_down(self) -> None:
        """Have a standby that follows closely from now on."""
        self._standby_delays_s = STANDBY_DELAYS_S[0]

    def end_backends(self, label: str, by: Backend | None = None) -> None:
        for backend in sorted(self.backends, key=lambda one: one.number):
            if backend.label == label and backend is not by:
                self.time.after(self.rng.choice(END_DELAYS_S), backend.end)

    def stop(self) -> None:
        """The primary is gone; nobody reaches it, and its connections end."""
        self.is_up = False
        for backend in sorted(self.backends, key=lambda one: one.number):
            backend.end()
        self._unanswered.clear()

    def restart(self) -> None:
        """The same server comes back with all that it had committed, replicated or not."""
        self.is_up = True
        while self._log:
            _, writes = self._log.popleft()
            for write in writes:
                _apply(self._visible, *write)
                _apply(self._safe, *write)
        self._replicated = self._number

    def fail_over(self) -> None:
        """The standby is the primary now: what it did not have was never committed."""
        kept = self.rng.randint(0, len(self._log))
        for _ in range(kept):
            for write in self._log.popleft()[1]:
                _apply(self._safe, *write)
        self.lost_commits += len(self._log)
        self._log.clear()
        self._visible = {name: dict(rows) for name, rows in self._safe.items()}
        self._replicated = self._number
        self.timeline += 1
        self.failed_over_at = self.time.now
        self._clock_offset_s += self.rng.choice(CLOCK_STEPS_S)
        self.is_up = True

    def forget_unanswered(self, backend: Backend) -> None:
        if backend in self._unanswered:
            self._unanswered.remove(backend)
            self.show(backend)  # it is committed here all the same


def _apply(tables: dict[str, dict[Key, Row]], table: str, key: Key, row: Row | None) -> None:
    if row is None:
        tables[table].pop(key, None)
    else:
        tables[table][key] = row


Answer = Callable[[Rows | TransactionError], None]


class Backend:
    """The server's end of a connection: it executes what arrives, statement by statement."""

    def __init__(self, database: Database, label: str, number: int) -> None:
        self.database = database
        self.label = label
        self.number = number
        self.is_ended = self.is_deaf = self.is_shown = False
        self.writes: dict[Place, Row | None] = {}
        self.born: set[Place] = set()  # rows that this transaction has inserted
        self.waits_for: Place | None = None
        self.commit_number = 0
        self._in_transaction = self._is_committing = False
        self._lock_timeout_s = 0.0
        self._requests: deque[tuple[int, Statement, Answer]] = deque()
        self._skipped = 0  # the transaction that has failed: what still comes of it is skipped
        self._is_planned = False
        self._candidates: list[Key] | None = None  # of the statement that waits
        self._births: dict[Key, int] = {}  # of its candidates
        self._found: Rows = []
        self._steps = 0
        self.on_ended: Callable[[], None] = lambda: None
        database.backends.add(self)

    def arrive(self, transaction: int, statement: Statement, answer: Answer) -> None:
        if not self.is_ended and transaction != self._skipped:
            self._requests.append((transaction, statement, answer))
            self.step_soon()

    def hang_up(self) -> None:
        """The client is gone; the server notices when it has nothing more to do."""
        self.is_deaf = True
        delay_s = self.database.rng.choice([0.0, 0.5, IDLE_IN_TRANSACTION_S])
        self.database.time.after(delay_s, self._notice)

    def _notice(self) -> None:
        if self.is_ended:
            return
        if self._requests or self._is_committing:
            self.database.time.after(0.5, self._notice)
        else:
            self.end()

    def end(self) -> None:
        """The backend is gone: what it did not commit is undone."""
        if self.is_ended:
            return
        self.is_ended = True
        self._requests.clear()
        self.database.backends.discard(self)
        self.database.stop_waiting(self)
        self.database.forget_unanswered(self)
        self.database.free(self)
        self.on_ended()

    def step_soon(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            rng = self.database.rng
            self.database.time.after(rng.choice([0.0002, 0.0005, 0.003]), self._step)

    def _step(self) -> None:
        self._is_planned = False
        if self.is_ended or self.waits_for is not None or self._is_committing:
            return
        if not self._requests:
            return
        _, statement, _ = self._requests[0]
        self._in_transaction = True
        try:
            rows = self._execute(statement)
        except TransactionError as error:
            self.fail(error)
            return
        if rows is not None:
            self._answer(rows)

    def _answer(self, rows: Rows) -> None:
        _, _, answer = self._requests.popleft()
        self._candidates = None
        self._found = []
        self._steps += 1
        answer(rows)
        if self._requests:
            self.step_soon()
        elif self._in_transaction:
            steps = self._steps
            self.database.time.after(IDLE_IN_TRANSACTION_S, lambda: self._end_if_idle(steps))

    def _end_if_idle(self, steps: int) -> None:
        if self._in_transaction and self._steps == steps and not self._requests:
            self.end()

    def fail(self, error: TransactionError) -> None:
        """The transaction is undone; what follows in the pipeline is not executed."""
        self._skipped, _, answer = self._requests.popleft()
        self._reset()
        self._requests.clear()
        self._steps += 1
        self.database.free(self)
        answer(error)

    def rollback(self) -> None:
        """Undo a transaction that its client gives up."""
        if not self._is_committing and not self.is_ended:
            self._reset()
            self._steps += 1
            self.database.free(self)

    def _reset(self) -> None:
        self.writes = {}
        self.born = set()
        self._candidates = None
        self._found = []
        self._in_transaction = self._is_committing = False
        self._lock_timeout_s = 0.0
        self.is_shown = False

    def on_committed(self) -> None:
        if self.is_ended:
            return
        self.database.free(self)
        self._reset()
        self._answer([])

    # Statements. None: the statement waits.

    def _execute(self, statement: Statement) -> Rows | None:
        if isinstance(statement, Select):
            return self._select(statement)
        if isinstance(statement, SelectNewer):
            rows = self.database.read(statement.table, self.writes)
            return _newer([row for _, row in rows], statement)
        if isinstance(statement, Expect):
            return self._expect(statement)
        if isinstance(statement, Update):
            return self._update(statement)
        if isinstance(statement, Delete):
            return self._delete(statement)
        if isinstance(statement, Insert | Put):
            return self._insert(statement)
        if isinstance(statement, InsertNew):
            return self._insert_new(statement)
        if isinstance(statement, PutAll):
            return self._put_all(statement)
        if isinstance(statement, Clock):
            return [{"now": self.database.clock()}]
        if isinstance(statement, LockTimeout):
            self._lock_timeout_s = statement.seconds
            return []
        if isinstance(statement, EndBackends):
            self.database.end_backends(statement.label, by=self)
            return []
        assert isinstance(statement, Commit)
        self._is_committing = True
        self.database.commit(self, self.writes)
        return None

    def _select(self, statement: Select) -> Rows | None:
        def matches(row: Row) -> bool:
            if statement.above is not None:
                column, value = statement.above
                if row[column] <= value:
                    return False
            return _is_equal(row, statement.where)

        if not statement.for_update:
            rows = self.database.read(statement.table, self.writes)
            found = [row for _, row in rows if matches(row)][: statement.limit]
            return [{name: row[name] for name in statement.columns or row} for row in found]
        assert statement.limit is None
        return self._lock_each(statement.table, matches, lambda key, row: row, in_order=True)

    def _expect(self, statement: Expect) -> Rows:
        rows = self.database.read(statement.table, self.writes)
        matching = [row for _, row in rows if _is_equal(row, statement.where)]
        found = [tuple(row[column] for column in statement.columns) for row in matching]
        if found != statement.rows:
            raise Stale(f"{statement.table}: expected {statement.rows}, found {found}")
        return []

    def _update(self, statement: Update) -> Rows | None:
        def change(key: Key, row: Row) -> Row:
            changed = {**row, **statement.change}
            self.writes[statement.table, key] = changed
            return changed

        rows = self._lock_each(
            statement.table,
            lambda row: _is_equal(row, statement.where),
            change,
            in_order=any(isinstance(value, list) for value in statement.where.values()),
        )
        if rows is not None and not rows and statement.required:
            raise Refused(f"{statement.table}: no row with {statement.where}")
        return rows

    def _delete(self, statement: Delete) -> Rows | None:
        def matches(row: Row) -> bool:
            if statement.up_to is not None:
                column, value = statement.up_to
                if row[column] > value:
                    return False
            return _is_equal(row, statement.where)

        def delete(key: Key, row: Row) -> Row:
            self.writes[statement.table, key] = None
            return row

        deleted = self._lock_each(statement.table, matches, delete)
        return None if deleted is None else []

    def _insert(self, statement: Insert | Put) -> Rows | None:
        key = self.database.key(statement.table, statement.row)
        place = statement.table, key
        holder = self.database.locks.get(place, self)
        is_only_locked = holder is not self and place not in holder.writes
        if isinstance(statement, Insert) and is_only_locked:
            raise Refused(f"{statement.table}: {key} exists")
        if not self._lock(place):
            return None
        if isinstance(statement, Insert):
            if any(key == other for other, _ in self.database.read(statement.table, self.writes)):
                raise Refused(f"{statement.table}: {key} exists")
        if key not in dict(self.database.read(statement.table, self.writes)):
            self.born.add(place)
        self.writes[place] = statement.row
        return []

    def _insert_new(self, statement: InsertNew) -> Rows | None:
        table = statement.table
        rows: dict[Key, Row] = {}
        for row in statement.rows:
            rows.setdefault(self.database.key(table, row), row)
        if self._candidates is None:
            self._candidates = list(rows)
        while self._candidates:
            key = self._candidates[0]
            holder = self.database.locks.get((table, key), self)
            is_changing = holder is not self and (table, key) in holder.writes
            if is_changing and not self._lock((table, key)):
                return None
            self._candidates.pop(0)
            if key not in dict(self.database.read(table, self.writes)):
                self.database.lock(self, (table, key))
                self.born.add((table, key))
                self.writes[table, key] = rows[key]
                self._found.append(rows[key])
            if self._candidates:
                self.step_soon()
                return None
        return self._found

    def _put_all(self, statement: PutAll) -> Rows | None:
        rows = {self.database.key(statement.table, row): row for row in statement.rows}
        assert len(rows) == len(statement.rows), "a key is there twice"
        if self._candidates is None:
            self._candidates = list(rows)
        while self._candidates:
            if self._insert(Put(statement.table, rows[self._candidates[0]])) is None:
                return None
            self._candidates.pop(0)
            if self._candidates:
                self.step_soon()  # others lock rows in between
                return None
        return []

    def _lock_each(
        self,
        table: str,
        matches: Callable[[Row], bool],
        act: Callable[[Key, Row], Row],
        *,
        in_order: bool = False,
    ) -> Rows | None:
        """Lock the rows that matched when the statement began, and act on those that still do."""
        if self._candidates is None:
            rows = self.database.read(table, self.writes)
            self._candidates = [key for key, row in rows if matches(row)]
            if not in_order and len(self._candidates) > 1:
                self.database.rng.shuffle(self._candidates)
            births = self.database.births
            self._births = {key: births[table, key] for key in self._candidates}
        while self._candidates:
            key = self._candidates[0]
            if not self._lock((table, key)):
                return None
            self._candidates.pop(0)
            row = dict(self.database.read(table, self.writes)).get(key)
            is_gone = row is None or self.database.births[table, key] != self._births[key]
            if is_gone and (table, key) not in self.writes:
                self.database.unlock((table, key))  # deleted; one that was inserted then is another
            elif row is not None and matches(row):
                self._found.append(act(key, row))
            if self._candidates:
                self.step_soon()  # others lock rows in between
                return None
        return self._found

    def _lock(self, place: Place) -> bool:
        if self.database.lock(self, place):
            return True
        if self._lock_timeout_s and self.waits_for is not None:
            steps = self._steps
            self.database.time.after(self._lock_timeout_s, lambda: self._time_out(steps, place))
        return False

    def _time_out(self, steps: int, place: Place) -> None:
        if self._steps == steps and self.waits_for == place and not self.is_ended:
            self.database.stop_waiting(self)
            self.fail(Aborted("lock timeout"))


def _newer(rows: Rows, statement: SelectNewer) -> Rows:
    than, column = statement.than, statement.column
    found = [row for row in rows if row["number"] in than and row[column] > than[row["number"]]]
    if statement.limit is not None:
        found.sort(key=lambda row: (row["number"], row[column]))
    return found[: statement.limit]


def _is_equal(row: Row, where: Row) -> bool:
    return all(
        row[column] in value if isinstance(value, list) else row[column] == value
        for column, value in where.items()
    )
