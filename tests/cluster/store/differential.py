"""The same random statements on PostgreSQL and on the model of it, one at a time.

Some connections execute statements in turn, in one or in several of a batch. After each turn both
databases come to rest: every batch is answered, or waits for the row of somebody else. Then the
same batches are answered, with the same rows or the same kind of error.

PostgreSQL may lock the rows of one statement in any order, may grant a row to any of those that
wait for it, and may end any transaction of a ring. So statements that lock several rows follow an
index, as the model does here, and a play ends with a ring.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, Text
from sqlalchemy.engine import make_url

from mqtt_broker.cluster.statements import (
    Aborted,
    Commit,
    Delete,
    EndBackends,
    Expect,
    Insert,
    InsertNew,
    LockTimeout,
    Put,
    PutAll,
    Row,
    Rows,
    Select,
    SelectNewer,
    Statement,
    TransactionError,
    Update,
)
from mqtt_broker.cluster.store import schema
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from mqtt_broker.cluster.tables import KEYS as CLUSTER_KEYS
from tests.cluster.store.loop import SECRET
from tests.fault.postgres import PostgreSQL
from tests.sim.cluster.database import Backend, Database, Place
from tests.sim.cluster.events import Events

PATIENCE_S: Final = 120.0
SETTLE_S: Final = 0.02  # in the time of the model, in which a statement takes 0.2 ms
KEYS: Final = {**CLUSTER_KEYS, "pairs": ("number",), "entries": ("name", "n")}
NAMES: Final = ["", "a", "Z", "é", "a/b", "𝄞", "+/#", "%s $1 ? \\"]
BLOBS: Final = [b"", b"\0\xff", b"\\x00", b"\r\n"]
# PostgreSQL follows the index, and looks for rings soon.
_SETTINGS: Final = {"enable_bitmapscan": "off", "deadlock_timeout": "10ms"}

T = TypeVar("T")
Answer = list[Rows] | TransactionError
Script = list[tuple[int, list[Statement]]]


def tables() -> dict[str, Table]:
    metadata = MetaData()
    number, words = BigInteger, Text(collation="C")
    return {
        "pairs": Table(
            "pairs", metadata,
            Column("number", number, primary_key=True, autoincrement=False), Column("v", number),
        ),
        "entries": Table(
            "entries", metadata,
            Column("name", words, primary_key=True),
            Column("n", number, primary_key=True, autoincrement=False),
            Column("v", number), Column("blob", LargeBinary),
        ),
    }  # fmt: skip


class First(random.Random):
    """Chooses the first, so that the model has no chance in it."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]

    def random(self) -> float:
        return 0.99

    def shuffle(self, x: Any) -> None:
        """Leave it in its order."""


class ModelSession:
    """A connection to the model, without a network."""

    def __init__(self, database: Database, number: int) -> None:
        self.backend = Backend(database, f"c{number}", number)
        self.transaction = 0
        self.wanted = 0
        self.rows: list[Rows] = []
        self.answer: Answer | None = None

    def send(self, batch: list[Statement], *, is_first: bool) -> None:
        self.transaction += is_first
        self.wanted = len(batch)
        self.rows = []
        self.answer = None
        for statement in batch:
            self.backend.arrive(self.transaction, statement, self._on_answer)

    def _on_answer(self, answer: Rows | TransactionError) -> None:
        if isinstance(answer, TransactionError):
            self.answer = answer
            return
        self.rows.append(answer)
        if len(self.rows) == self.wanted:
            self.answer = self.rows


class RealSession:
    """A connection to PostgreSQL with its thread."""

    def __init__(self, connection: StoreConnection) -> None:
        self.connection = connection
        self.answer: Answer | BaseException | None = None
        self._work: queue.SimpleQueue[list[Statement] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, batch: list[Statement]) -> None:
        self.answer = None
        self._work.put(batch)

    def _run(self) -> None:
        while (batch := self._work.get()) is not None:
            try:
                self.answer = self.connection.execute(batch)
            except BaseException as error:  # a test reads it
                self.answer = error

    def close(self) -> None:
        self._work.put(None)
        self.connection.interrupt()
        self._thread.join(PATIENCE_S)
        self.connection.close()


class Real:
    """PostgreSQL with the tables of a play, and somebody who watches."""

    numbers = itertools.count(1)

    def __init__(self, server: PostgreSQL) -> None:
        name = f"cluster_{next(self.numbers)}"
        url = server.database(name)
        schema.prepare(url, "one", SECRET)
        for setting, value in _SETTINGS.items():
            server.psql(name, f"ALTER DATABASE {name} SET {setting} = '{value}'")
        server.psql(
            name,
            "CREATE TABLE pairs (number bigint PRIMARY KEY, v bigint);"
            'CREATE TABLE entries (name text COLLATE "C", n bigint, v bigint, blob bytea,'
            " PRIMARY KEY (name, n));"
            "CREATE VIEW blocked AS SELECT pid::bigint AS pid,"
            " cardinality(pg_blocking_pids(pid))::bigint AS is_blocked FROM pg_stat_activity"
            " WHERE datname = current_database()",
        )
        blocked = Table(
            "blocked", MetaData(),
            Column("pid", BigInteger, primary_key=True), Column("is_blocked", BigInteger),
        )  # fmt: skip
        found = {**schema.TABLES, **tables(), "blocked": blocked}
        self.connector = Connector(make_url(url), "one", found, answer_s=PATIENCE_S)
        self._watch = self.connector.connect("watch")

    def blocked(self) -> set[int]:
        """The backends that wait for a lock which somebody holds."""
        rows, _ = self._watch.execute([Select("blocked"), Commit()])
        return {row["pid"] for row in rows if row["is_blocked"]}

    def end(self, sessions: int) -> None:
        """End all connections of a play."""
        ends = [EndBackends(f"c{at}") for at in range(sessions)]
        self._watch.execute([*ends, Commit()])
        deadline = time.monotonic() + PATIENCE_S
        while len(self._watch.execute([Select("blocked"), Commit()])[0]) > 1:
            assert time.monotonic() < deadline, "connections do not end"
            time.sleep(0.0005)

    def empty(self) -> None:
        self._watch.execute([*(Delete(name, {}) for name in KEYS), Commit()])

    def rows(self, table: str) -> Rows:
        return self._watch.execute([Select(table), Commit()])[0]

    def close(self) -> None:
        self._watch.close()


class Play:
    """One play of a seed on both."""

    def __init__(self, real: Real, seed: int, sessions: int = 3) -> None:
        self.rng = random.Random(seed)
        self.real = real
        real.empty()
        self.events = Events(seed)
        self.events.rng = First()
        self.database = Database(self.events, KEYS)
        self.database.calm_down()
        self.models = [ModelSession(self.database, at) for at in range(sessions)]
        self.reals = [RealSession(real.connector.connect(f"c{at}")) for at in range(sessions)]
        self.is_open = [False] * sessions  # a transaction has begun
        self.busy: set[int] = set()  # sessions with a batch that is not answered
        self.has_timeout = [False] * sessions
        self.is_free = False  # what comes next is for PostgreSQL to choose
        self.log: list[str] = []
        self.waits = self.errors = 0

    def close(self) -> None:
        self.real.end(len(self.reals))
        for session in self.reals:
            session.close()

    def run(self, turns: int) -> None:
        for _ in range(turns):
            idle = [at for at in range(len(self.models)) if at not in self.busy]
            if not idle or self.database.deadlocks or self.is_free:
                return
            at = self.rng.choice(idle)
            if self.is_open[at] and self.rng.random() < 0.08:
                self._give_up(at)
            else:
                self._send(at, self._batch(at))
            self._settle()
        if not self.busy and not any(self.is_open):
            for table in KEYS:
                assert self.real.rows(table) == self.database.rows(table), self._said(table)

    def follow(self, script: Script) -> None:
        """Execute batches that are given, each by its session."""
        for at, batch in script:
            self._send(at, batch)
            self._settle()

    def _give_up(self, at: int) -> None:
        self.log.append(f"{at}: gives up")
        self.models[at].backend.rollback()
        self.reals[at].connection.rollback()
        self.is_open[at] = False

    def _send(self, at: int, batch: list[Statement]) -> None:
        self.log.append(f"{at}: {', '.join(map(describe, batch))}")
        if not self.is_open[at]:
            self.has_timeout[at] = False
        self.has_timeout[at] |= any(isinstance(one, LockTimeout) for one in batch)
        self.models[at].send(batch, is_first=not self.is_open[at])
        self.reals[at].send(batch)
        self.is_open[at] = not isinstance(batch[-1], Commit)
        self.busy.add(at)

    def _settle(self) -> None:
        """Let both come to rest, and compare."""
        self.is_free = self.is_free or self._has_rivals()
        self.events.run_until(self.events.now + SETTLE_S)
        self.is_free = self.is_free or self._has_rivals()
        expected = {at for at in self.busy if self.models[at].answer is not None}
        self._wait()
        if self.database.deadlocks:
            ended = [at for at in self.busy if isinstance(self.reals[at].answer, Aborted)]
            assert ended, self._said("the model has a ring")
            return
        self.waits += len(self.busy) - len(expected)
        for at in sorted(self.busy):
            model, real = self.models[at].answer, self.reals[at].answer
            if isinstance(model, TransactionError):
                assert type(real) is type(model), self._said(f"{at}: {model!r}, not {real!r}")
                self.is_open[at] = False
                self.errors += 1
            else:
                assert real == model, self._said(f"{at}: {model}, not {real!r}")
        self.busy -= expected

    def _has_rivals(self) -> bool:
        """Tell whether two wait for a row that somebody inserts or deletes: either may be first."""
        places = [model.backend.waits_for for model in self.models]
        return any(
            place is not None and places.count(place) > 1 and self._is_born_or_ends(place)
            for place in places
        )

    def _is_born_or_ends(self, place: Place) -> bool:
        table, key = place
        rows = [self.database.key(table, row) for row in self.database.rows(table)]
        holder = self.database.locks.get(place)
        return key not in rows or (holder is not None and holder.writes.get(place, {}) is None)

    def _wait(self) -> None:
        """Wait until each batch is answered by PostgreSQL, or waits for somebody."""
        deadline = time.monotonic() + PATIENCE_S
        quiet = 0
        while quiet < 2:
            assert time.monotonic() < deadline, self._said("PostgreSQL does not come to rest")
            waiting = [at for at in self.busy if self.reals[at].answer is None]
            may_rest = not any(self.has_timeout[at] for at in waiting)
            if self.database.deadlocks:
                may_rest = any(isinstance(self.reals[at].answer, Aborted) for at in self.busy)
            blocked = self.real.blocked() if waiting else set()
            is_quiet = all(self.reals[at].connection.pid in blocked for at in waiting)
            quiet = quiet + 1 if may_rest and is_quiet else 0
            if not quiet:
                time.sleep(0.0005)

    def _said(self, text: str) -> str:
        return "\n".join([*self.log, text])

    # Statements.

    def _batch(self, at: int) -> list[Statement]:
        rng = self.rng
        batch = [self._statement(at) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
        if rng.random() < 0.03:
            batch.insert(0, LockTimeout(0.001))
        if not batch or rng.random() < 0.25:
            batch.append(Commit())
        return batch

    def _statement(self, at: int) -> Statement:
        if self.rng.random() < 0.5:
            return self._of_pairs(at)
        return self._of_entries()

    def _of_pairs(self, at: int) -> Statement:
        rng, k, v = self.rng, self.rng.randint(1, 4), self.rng.randint(0, 2)
        is_free = all(holder is self.models[at].backend for holder in self.database.locks.values())
        kind = rng.randrange(13)
        if kind == 0:
            where: Row = rng.choice([{}, {"v": v}, {"number": k}])
            above, limit = rng.choice([None, ("number", k)]), rng.choice([None, None, 0, 2])
            return Select("pairs", where, above=above, limit=limit)
        if kind == 1:
            where = rng.choice([{}, {"number": k}, {"number": k, "v": v}])
            return Select("pairs", where, for_update=True)
        if kind in (2, 3):
            return Insert("pairs", {"number": k, "v": v})
        if kind == 4:
            return Put("pairs", {"number": k, "v": v})
        if kind == 5:
            return Delete("pairs", rng.choice([{"number": k}, {"number": k, "v": v}]))
        if kind == 6:
            return Delete("pairs", rng.choice([{}, {"v": v}]), up_to=("number", k))
        if kind == 9:
            return self._expect(at)
        if kind == 10:
            count = rng.randint(0, 4)
            limit = None if count % 2 else 1 + count // 2
            return SelectNewer("pairs", "v", dict.fromkeys(range(count), v), limit=limit)
        where = rng.choice(
            [{"number": k}, {"number": k, "v": v}, *([{}, {"v": v}] if is_free else [])]
        )
        return Update("pairs", where, {"v": rng.randint(0, 2)}, required=kind == 8)

    def _expect(self, at: int) -> Statement:
        """Expect what is there, or nearly."""
        rng, columns = self.rng, self.rng.choice([("number", "v"), ("v",)])
        found = self.database.read("pairs", self.models[at].backend.writes)
        rows = [tuple(row[name] for name in columns) for _, row in found]
        if rows and rng.random() < 0.4:
            rows.pop(rng.randrange(len(rows)))
        return Expect("pairs", columns, rows)

    def _of_entries(self) -> Statement:
        rng, n, v = self.rng, self.rng.randint(1, 3), self.rng.randint(0, 2)
        name = rng.choice(NAMES[: rng.choice([2, len(NAMES)])])
        row: Row = {"name": name, "n": n, "v": v, "blob": rng.choice(BLOBS)}
        kind = rng.randrange(9)
        if kind == 0:
            where: Row = rng.choice([{}, {"name": name}, {"v": v}, {"blob": rng.choice(BLOBS)}])
            return Select("entries", where, columns=rng.choice([(), ("v", "name")]))
        if kind == 1:
            above = rng.choice([None, ("n", n)])
            return Select("entries", {"name": name}, above=above, for_update=True)
        if kind == 2:
            return Insert("entries", row)
        if kind == 3:
            return Put("entries", row)
        if kind == 4:
            return Delete("entries", {"name": name}, up_to=rng.choice([None, ("n", n)]))
        if kind == 7:
            return InsertNew("entries", [row, {**row, "n": rng.randint(1, 3), "v": 3}])
        if kind == 8:
            return PutAll("entries", [{**row, "n": n} for n in rng.sample([1, 2, 3], 2)])
        change: Row = rng.choice([{"v": v}, {"blob": row["blob"]}, {"v": v, "blob": b"new"}])
        where = rng.choice([{"name": name}, {"name": name, "n": n}, {"name": name, "v": v}])
        return Update("entries", where, change, required=kind == 6)


def describe(statement: Statement) -> str:
    """Show a statement with what it says."""
    names = [name for kind in type(statement).__mro__ for name in getattr(kind, "__slots__", ())]
    said = ", ".join(f"{name}={getattr(statement, name)!r}" for name in names)
    return f"{type(statement).__name__}({said})"


def play(real: Real, seed: int, turns: int = 40, kind: type[Play] = Play) -> Play:
    """Play a seed on both; raise AssertionError where they differ."""
    found = kind(real, seed)
    try:
        found.run(turns)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        found.close()
    return found


def follow(real: Real, script: Script) -> Play:
    """Execute batches on both; raise AssertionError where they differ."""
    found = Play(real, 0)
    try:
        found.follow(script)
    finally:
        found.close()
    return found
