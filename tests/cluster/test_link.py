"""A link runs one transaction at a time, says how it ended, and connects again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mqtt_broker.cluster.link import NEVER, RECONNECT_S, DatabaseLink
from mqtt_broker.cluster.statements import (
    Aborted,
    Commit,
    ConnectionLost,
    Refused,
    Select,
    Transaction,
)
from tests.cluster.connections import FakeDatabase


class Linked:
    """A link, and what was called by it."""

    def __init__(self) -> None:
        self.database = FakeDatabase()
        self.opened: list[float] = []
        self.done: list[Any] = []
        self.failed: list[Any] = []
        self.link = DatabaseLink("e1", self.database.connect, self.opened.append, random.Random(1))

    def open(self) -> None:
        self.link.tick(0.0)
        self.link.on_open(1.0)

    def run(self, transaction: Transaction[Any]) -> None:
        self.link.run(
            transaction,
            lambda result, now: self.done.append(result),
            lambda error, now: self.failed.append(error),
        )


def two_batches() -> Transaction[str]:
    found = yield [Select("t", for_update=True)]
    yield [Select("t"), Commit()]
    return str(found)


@pytest.fixture
def linked() -> Linked:
    return Linked()


def test_a_transaction_is_run_batch_by_batch(linked: Linked) -> None:
    linked.open()
    assert linked.opened == [1.0]
    linked.run(two_batches())
    assert linked.link.is_running
    connection = linked.database.last
    connection.answer([{"a": 1}])
    assert len(connection.batches) == 2 and not linked.done
    connection.answer()
    assert linked.done == ["[[{'a': 1}]]"] and linked.link.is_idle
    assert not connection.rollbacks


@pytest.mark.parametrize("answered", [0, 1])
def test_only_an_unanswered_commit_is_unknown(linked: Linked, answered: int) -> None:
    linked.open()
    linked.run(two_batches())
    for _ in range(answered):
        linked.database.last.answer()
    linked.link.on_lost("cut", 2.0)
    assert [error.is_unknown for error in linked.failed] == [bool(answered)]
    assert not linked.link.is_idle and linked.link.problem == "cut"


def test_a_transaction_that_gives_up_is_rolled_back(linked: Linked) -> None:
    def gives_up() -> Transaction[None]:
        yield [Select("t", for_update=True)]
        raise Refused("not ours")

    linked.open()
    linked.run(gives_up())
    linked.database.last.answer()
    assert isinstance(linked.failed[0], Refused)
    assert linked.database.last.rollbacks == 1 and linked.link.is_idle


def test_a_transaction_is_told_why_it_failed(linked: Linked) -> None:
    told: list[Aborted] = []

    def asks() -> Transaction[None]:
        try:
            yield [Commit()]
        except Aborted as error:
            told.append(error)
            raise

    linked.open()
    linked.run(asks())
    error = Aborted("deadlock")
    linked.link.on_answer(error, 2.0)
    assert told == linked.failed == [error] and linked.link.is_idle


def test_a_link_that_was_answered_with_its_end_runs_nothing(linked: Linked) -> None:
    linked.open()
    linked.run(two_batches())
    linked.link.on_answer(ConnectionLost(is_unknown=True), 2.0)
    assert linked.failed[0].is_unknown and not linked.link.is_idle


def test_it_connects_again_more_and_more_slowly(linked: Linked) -> None:
    link, now, waits = linked.link, 0.0, []
    for _ in range(len(RECONNECT_S) + 2):
        link.tick(now)
        assert link.wakes_at == NEVER
        link.on_lost("down", now)
        waits.append(link.wakes_at - now)
        link.tick(link.wakes_at - 0.01)
        now = link.wakes_at
    assert len(linked.database.connections) == len(waits)
    for wait_s, usual_s in zip(waits, [*RECONNECT_S, RECONNECT_S[-1]], strict=False):
        assert 0.5 * usual_s <= wait_s <= 1.5 * usual_s + 1e-9
    link.tick(now)
    link.on_open(now)
    assert link.problem == ""
    link.on_lost("cut", now)
    assert link.wakes_at - now <= 1.5 * RECONNECT_S[0]


def test_a_link_that_was_closed_does_nothing_more(linked: Linked) -> None:
    linked.open()
    linked.run(two_batches())
    linked.link.close()
    assert linked.database.last.is_closed and linked.link.wakes_at == NEVER
    assert not linked.link.is_idle and not linked.failed
