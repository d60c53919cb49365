"""The model of PostgreSQL does what PostgreSQL does."""

from __future__ import annotations

from typing import Any

import pytest

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
from tests.sim.cluster.database import IDLE_IN_TRANSACTION_S, Backend, Database
from tests.sim.cluster.events import Events

KEYS: dict[str, tuple[str, ...]] = {"t": ("k",)}


class Session:
    """A connection without a network."""

    numbers = 0

    def __init__(self, database: Database, label: str = "") -> None:
        Session.numbers += 1
        self.backend = Backend(database, label, Session.numbers)
        self.answers: list[Rows | TransactionError] = []
        self._number = 0

    def send(self, *statements: Statement, first: bool = True) -> None:
        self._number += first
        for statement in statements:
            self.backend.arrive(self._number, statement, self.answers.append)


@pytest.fixture
def events() -> Events:
    return Events(1)


@pytest.fixture
def database(events: Events) -> Database:
    database = Database(events, KEYS)
    session = Session(database)
    session.send(Put("t", {"k": 1, "v": 0}), Put("t", {"k": 2, "v": 0}), Commit())
    events.run_until(events.now + 1)
    database.calm_down()
    return database


def run(events: Events, seconds: float = 0.5) -> None:
    events.run_until(events.now + seconds)


def change(key: int, value: int) -> Update:
    return Update("t", {"k": key}, {"v": value})


def values(database: Database) -> list[Any]:
    return [row["v"] for row in database.rows("t")]


def test_statements_see_what_is_committed_and_what_is_their_own(
    events: Events, database: Database
) -> None:
    one, two = Session(database), Session(database)
    one.send(change(1, 5), Select("t", {"k": 1}))
    run(events)
    two.send(Select("t", {"k": 1}))
    run(events)
    assert one.answers[1] == [{"k": 1, "v": 5}] and two.answers == [[{"k": 1, "v": 0}]]
    one.send(Commit(), first=False)
    run(events)
    two.send(Select("t", {"k": 1}), first=False)
    run(events)
    assert two.answers[1] == [{"k": 1, "v": 5}]


def test_a_writer_waits_for_the_row_and_examines_it_again(
    events: Events, database: Database
) -> None:
    one, two = Session(database), Session(database)
    one.send(change(1, 5))
    run(events)
    two.send(Update("t", {"k": 1, "v": 0}, {"v": 9}, required=True), Commit())
    run(events)
    assert two.answers == []
    one.send(Commit(), first=False)
    run(events)
    assert isinstance(two.answers[0], Refused) and values(database) == [5, 0]


def test_a_wait_may_time_out(events: Events, database: Database) -> None:
    one, two = Session(database), Session(database)
    one.send(change(1, 5))
    run(events)
    two.send(LockTimeout(1.0), change(1, 9), Commit())
    run(events, 2)
    assert isinstance(two.answers[1], Aborted)


def test_a_ring_of_waits_is_a_deadlock(events: Events, database: Database) -> None:
    one, two = Session(database), Session(database)
    one.send(change(1, 5))
    two.send(change(2, 6))
    run(events)
    one.send(change(2, 5), Commit(), first=False)
    run(events)
    two.send(change(1, 6), Commit(), first=False)
    run(events)
    assert isinstance(two.answers[-1], Aborted) and database.deadlocks == 1
    assert values(database) == [5, 5]


@pytest.mark.parametrize("row", [{"k": 1, "v": 7}])
def test_an_inserted_row_must_be_new(events: Events, database: Database, row: Row) -> None:
    session = Session(database)
    session.send(Insert("t", row), change(2, 9), Commit())
    run(events)
    assert isinstance(session.answers[0], Refused) and len(session.answers) == 1
    assert values(database) == [0, 0]


def test_a_list_stands_for_any_of_its_values(events: Events, database: Database) -> None:
    session = Session(database)
    session.send(Select("t", {"k": [2, 1, 7]}), Select("t", {"k": []}))
    session.send(
        Update("t", {"k": [2, 7]}, {"v": 9}), Delete("t", {"k": [1]}), Commit(), first=False
    )
    run(events)
    assert session.answers[:2] == [[{"k": 1, "v": 0}, {"k": 2, "v": 0}], []]
    assert database.rows("t") == [{"k": 2, "v": 9}]


def test_a_select_and_an_update_of_a_list_lock_in_order(database: Database, events: Events) -> None:
    def ring(*statements: Statement) -> int:
        before = database.deadlocks
        for _ in range(20):
            for one in (Session(database), Session(database)):
                one.send(*statements, Commit())
            run(events)
        return database.deadlocks - before

    both: Row = {"k": [1, 2]}
    assert ring(Update("t", {"v": [0, 1]}, {"v": 1})) == ring(Update("t", both, {"v": 1})) == 0
    assert ring(Update("t", {}, {"v": 1})) > 0
    assert ring(Delete("t", both), *(Put("t", {"k": key, "v": 1}) for key in (1, 2))) > 0
    assert ring(Select("t", both, for_update=True), Update("t", {}, {"v": 1})) == 0


def test_new_rows_are_inserted_and_others_left_alone(events: Events, database: Database) -> None:
    session = Session(database)
    rows = [{"k": 3, "v": 7}, {"k": 1, "v": 7}]
    session.send(InsertNew("t", rows), InsertNew("t", []), Select("t"))
    run(events)
    assert session.answers[:2] == [rows[:1], []] and len(session.answers[2]) == 3  # type: ignore[arg-type]
    assert ("t", (1,)) not in database.locks
    session.send(Commit(), first=False)
    run(events)
    assert values(database) == [0, 0, 7]


def test_an_insert_of_new_rows_waits_for_one_that_is_being_inserted(
    events: Events, database: Database
) -> None:
    one, two, three = Session(database), Session(database), Session(database)
    for session in (one, two):
        session.send(InsertNew("t", [{"k": 3, "v": 5}]))
        run(events)
    assert one.answers == [[{"k": 3, "v": 5}]] and two.answers == []
    one.backend.rollback()
    run(events)
    assert two.answers == [[{"k": 3, "v": 5}]]
    two.send(Commit(), first=False)
    three.send(InsertNew("t", [{"k": 3, "v": 6}]), Commit())
    run(events)
    assert three.answers == [[], []] and values(database) == [0, 0, 5]


def test_an_insert_of_new_rows_waits_for_changes_and_not_for_locks(
    events: Events, database: Database
) -> None:
    locks, changes, inserts = Session(database), Session(database), Session(database)
    locks.send(Select("t", {"k": 1}, for_update=True))
    changes.send(change(2, 5))
    run(events)
    inserts.send(InsertNew("t", [{"k": 1, "v": 9}]), InsertNew("t", [{"k": 2, "v": 9}]))
    run(events)
    assert inserts.answers == [[]]
    changes.send(Commit(), first=False)
    run(events)
    assert inserts.answers == [[], []]


def test_rows_are_put_one_after_the_other(events: Events, database: Database) -> None:
    one, two = Session(database), Session(database)
    one.send(change(2, 5))
    run(events)
    rows = [{"k": key, "v": 7} for key in (3, 2, 1)]
    two.send(PutAll("t", rows), PutAll("t", []), Commit())
    run(events)
    assert two.answers == [] and ("t", (3,)) in database.locks and ("t", (1,)) not in database.locks
    one.send(Commit(), first=False)
    run(events)
    assert two.answers == [[], [], []] and values(database) == [7, 7, 7]


def test_the_clock_is_the_databases_own(events: Events, database: Database) -> None:
    session = Session(database)
    session.send(Clock(), Commit())
    run(events)
    assert isinstance(session.answers[0], list)
    assert session.answers[0][0]["now"] == pytest.approx(database.clock(), abs=1)


def test_rows_are_deleted_up_to_a_value(events: Events, database: Database) -> None:
    session = Session(database)
    session.send(Delete("t", {}, up_to=("k", 1)), Commit())
    run(events)
    assert [row["k"] for row in database.rows("t")] == [2]


def test_no_more_rows_are_read_than_the_limit(events: Events, database: Database) -> None:
    session = Session(database)
    session.send(Select("t", above=("k", 0), limit=1), Select("t", limit=5), Commit())
    run(events)
    first, second, _ = session.answers
    assert first == [{"k": 1, "v": 0}] and len(second) == 2  # type: ignore[arg-type]


def test_what_is_newer_is_read_of_each_number(events: Events) -> None:
    database = Database(events, {"n": ("number", "k")})
    session = Session(database)
    rows = [{"number": n, "k": k, "group": k} for n in (1, 2, 3) for k in (4, 5)]
    session.send(*(Put("n", row) for row in rows), Commit())
    run(events, 3)
    session.send(SelectNewer("n", "group", {1: 4, 2: -1, 9: 0}), Commit())
    run(events)
    found = session.answers[len(rows) + 1]
    assert isinstance(found, list)
    assert [(row["number"], row["k"]) for row in found] == [(1, 5), (2, 4), (2, 5)]


def test_a_transaction_fails_whose_expectation_does_not_hold(
    events: Events, database: Database
) -> None:
    session, other = Session(database), Session(database)
    expect = Expect("t", ("k", "v"), [(1, 0), (2, 0)])
    session.send(expect, change(1, 5), Commit())
    run(events)
    assert session.answers == [[], [{"k": 1, "v": 5}], []]
    session.send(change(2, 5), expect, Commit())
    run(events)
    assert isinstance(session.answers[-1], Stale) and values(database) == [5, 0]
    other.send(Expect("t", ("k",), [(1,)]))
    run(events)
    assert isinstance(other.answers[0], Stale)  # another row is a difference, too


def test_an_expectation_locks_nothing_and_sees_no_uncommitted_row(
    events: Events, database: Database
) -> None:
    one, two = Session(database), Session(database)
    one.send(change(1, 5))
    run(events)
    two.send(Expect("t", ("v",), [(0,), (0,)]), Commit())
    run(events)
    assert two.answers == [[], []]


def test_a_transaction_that_is_idle_is_ended(events: Events, database: Database) -> None:
    session = Session(database)
    session.send(change(1, 5))
    run(events, IDLE_IN_TRANSACTION_S + 1)
    assert session.backend.is_ended and not database.locks and values(database) == [0, 0]


def test_backends_are_ended_by_their_label(events: Events, database: Database) -> None:
    one, two, three = Session(database, "a"), Session(database, "a"), Session(database, "b")
    one.send(change(1, 5))
    run(events)
    two.send(EndBackends("a"), Commit())
    run(events, 1)
    assert one.backend.is_ended and not two.backend.is_ended and not three.backend.is_ended


def commit_unsafely(events: Events, database: Database) -> Session:
    """Let a commit be visible before the standby has it."""
    for _ in range(100):
        session = Session(database)
        session.send(change(1, 5), Commit())
        for _ in range(200):
            events.run_until(events.now + 0.0001)
            if values(database)[0] == 5 and len(session.answers) < 2:
                return session
        session.send(change(1, 0), Commit())
        run(events)
    raise AssertionError("no commit is visible before it is safe")


def test_a_fail_over_may_lose_what_others_have_seen(events: Events, database: Database) -> None:
    lost = 0
    for _ in range(20):
        session = commit_unsafely(events, database)
        database.stop()
        database.fail_over()
        lost += values(database)[0] == 0
        assert len(session.answers) == 1 and session.backend.is_ended
        reset = Session(database)
        reset.send(change(1, 0), Commit())
        run(events)
    assert lost and database.timeline == 21 and database.lost_commits == lost


def test_a_restart_loses_no_commit(events: Events, database: Database) -> None:
    commit_unsafely(events, database)
    database.stop()
    database.restart()
    assert values(database)[0] == 5 and database.timeline == 1


def test_an_answered_commit_survives_a_fail_over(events: Events, database: Database) -> None:
    session = Session(database)
    session.send(change(1, 5), Commit())
    while len(session.answers) < 2:
        events.run_until(events.now + 0.001)
    database.stop()
    database.fail_over()
    assert values(database) == [5, 0]


def test_without_synchronous_replication_it_may_not(events: Events, database: Database) -> None:
    database.is_synchronous = False
    found = set()
    for value in range(1, 30):
        session = Session(database)
        session.send(change(1, value), Commit())
        while len(session.answers) < 2:
            events.run_until(events.now + 0.0001)
        database.stop()
        database.fail_over()
        found.add(values(database)[0] == value)
    assert found == {True, False}
