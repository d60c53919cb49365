"""The clients of one number: which transaction is next, and what is answered when."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.cluster.claims import RETRY_S, TAKE_BACK_S, Claims
from mqtt_broker.cluster.owner_transactions import Claimed, OwnerWrites
from mqtt_broker.cluster.statements import (
    Clock,
    InsertNew,
    PutAll,
    Row,
    Rows,
    Select,
    Statement,
    Update,
)
from mqtt_broker.cluster.tables import ASKS, OWNERS
from tests.cluster.steps import play


class Notes:
    """Sessions and a bus that note what is asked of them."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.unfolded: set[str] = set()

    def select(self, clients: list[str]) -> list[Select]:
        return [Select("sessions", {"client": clients})]

    def on_claimed(self, clients: list[str], found: list[Rows]) -> None:
        self.said += [("claimed", client) for client in clients]

    def on_owned(self, client: str) -> None:
        self.said.append(("owned", client))

    def on_asked(self, client: str) -> None:
        self.said.append(("asked", client))

    def is_folded(self, client: str) -> bool:
        return client not in self.unfolded

    def on_released(self, client: str) -> None:
        self.said.append(("released", client))

    def on_time(self, time: float, now: float) -> None: ...

    def ask(self, owner: int, client: str, tenure: int) -> None:
        self.said.append(("ask", owner, client, tenure))

    def tell_offered(self, number: int, client: str) -> None:
        self.said.append(("offered", number, client))


def row(client: str, number: int, tenure: int, *, is_offered: bool = False) -> Row:
    return {"client": client, "number": number, "tenure": tenure, "is_offered": is_offered}


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def claims(notes: Notes) -> Claims:
    claims = Claims(7, notes, notes)
    turn(claims, [])  # the first read of what others ask
    return claims


def turn(claims: Claims, rows: Rows, now: float = 0.1) -> list[Statement]:
    """Carry out what is due, where the table of owners has these rows; return the statements."""
    statements: list[Statement] = []
    while (transaction := claims.next(7, "e1", 5, now)) is not None:
        batch = next(transaction)
        statements += batch
        try:
            transaction.send([_answer(one, rows) for one in batch])
        except StopIteration as end:
            claims.on_done(end.value, now)
    return statements


def _answer(statement: Statement, rows: Rows) -> Rows:
    if isinstance(statement, Clock):
        return [{"now": 0.0}]
    return rows if isinstance(statement, Select) and statement.table == OWNERS else []


def _asks(statements: list[Statement]) -> Rows:
    return [row for one in statements if isinstance(one, PutAll) for row in one.rows]


def test_a_connect_waits_until_its_client_is_claimed(claims: Claims, notes: Notes) -> None:
    claims.connect("c")
    assert notes.said == []
    turn(claims, [row("c", 7, 5)])
    assert claims.owned == {"c": 5} and notes.said == [("claimed", "c"), ("owned", "c")]


def test_a_client_that_is_owned_waits_for_a_transaction_all_the_same(
    claims: Claims, notes: Notes
) -> None:
    claims.on_loaded([row("c", 7, 3)], 0.0)
    claims.connect("c")
    assert notes.said == []
    turn(claims, [])
    assert notes.said == [("owned", "c")]


def test_a_transaction_does_not_answer_a_connect_that_came_after_it_began(
    claims: Claims, notes: Notes
) -> None:
    claims.on_loaded([row("c", 7, 3)], 0.0)
    claims.connect("c")
    claims.next(7, "e1", 5, 0.1)
    claims.connect("c")
    claims.on_done(Claimed([], [], 0.0), 0.1)
    assert notes.said == []
    turn(claims, [])
    assert notes.said == [("owned", "c")]


def test_another_owner_is_asked_then_asked_again_and_in_the_table(
    claims: Claims, notes: Notes
) -> None:
    claims.connect("c")
    first = turn(claims, [row("c", 2, 9)])
    assert notes.said == [("ask", 2, "c", 9)] and not _asks(first)
    assert claims.next(7, "e1", 5, 0.1) is None
    second = turn(claims, [row("c", 2, 9)], 0.11 + RETRY_S)
    assert _asks(second) == [{"client": "c", "number": 2, "tenure": 9}]


def test_a_client_is_released_when_its_journal_is_folded(claims: Claims, notes: Notes) -> None:
    claims.on_loaded([row("c", 7, 3)], 0.0)
    notes.unfolded = {"c"}
    claims.on_ask("c", 2, 1)  # of an earlier claim
    assert notes.said == []
    claims.on_ask("c", 3, 1)
    claims.on_ask("c", 3, 1)
    assert notes.said == [("asked", "c")] and claims.wants_fold and claims.is_leaving("c")
    assert claims.next(7, "e1", 5, 0.1) is None
    notes.unfolded = set()
    batch = turn(claims, [])
    assert any(isinstance(one, Update) and one.change == {"is_offered": True} for one in batch)
    assert notes.said[1:] == [("offered", 1, "c"), ("released", "c")] and not claims.owned


def test_an_offer_is_taken_back_if_it_is_still_ones_own(claims: Claims, notes: Notes) -> None:
    claims.on_loaded([row("c", 7, 3, is_offered=True)], 0.0)
    assert claims.owned == {} and claims.next(7, "e1", 5, 0.1) is None
    batch = turn(claims, [row("c", 7, 5)], TAKE_BACK_S)
    inserted = next(one for one in batch if isinstance(one, InsertNew))
    assert inserted.rows == [] and claims.owned == {"c": 5}


def test_a_claim_whose_outcome_is_unknown_is_looked_at_again(claims: Claims, notes: Notes) -> None:
    claims.connect("c")
    claims.next(7, "e1", 5, 0.1)  # and its answer is lost
    claims.give_up("c")
    turn(claims, [row("c", 7, 5)])
    assert claims.owned == {"c": 5} and notes.said[-1] == ("owned", "c")


def test_what_is_claimed_is_locked_in_order_and_what_is_asked_written_last() -> None:
    asks = [{"client": "a", "number": 2, "tenure": 1}]
    writes = OwnerWrites(7, "e1", 5)
    sessions = Select("sessions", {"client": ["a", "b"]})
    found: list[Rows] = [[] for _ in range(10)]
    found[5], found[7] = [row("b", 7, 5)], [{"now": 3.0}]
    batches, claimed = play(writes.claim(["b"], ["a"], [sessions], asks), [found])
    locks = batches[0][2]
    assert isinstance(locks, Select) and locks.for_update and locks.where["client"] == ["a", "b"]
    put = batches[0][-2]
    assert isinstance(put, PutAll) and (put.table, put.rows) == (ASKS, asks)
    assert claimed.owners["b"].tenure == 5 and claimed.time == 3.0
    assert isinstance(batches[0][1], InsertNew) and batches[0][1].table == OWNERS
