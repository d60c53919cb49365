"""The host of a number: the order of its transactions, and what their outcomes mean."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from mqtt_broker.cluster.hosting import BEAT_S, FOLD_GROUPS, Errands, Hosting
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import read_nodes
from mqtt_broker.cluster.statements import (
    Aborted,
    Commit,
    ConnectionLost,
    Refused,
    Transaction,
)
from tests.cluster.contents import FakeContent


def row(turn: int = 1, group: int = 0, folded: int = 0) -> NodeRow:
    values = {"number": 7, "epoch": "e1", "turn": turn, "group": group, "folded": folded}
    return NodeRow(values)


def name(transaction: Transaction[object] | None) -> str:
    if transaction is None:
        return ""
    assert isinstance(transaction, GeneratorType)
    return transaction.__name__


def do(hosting: Hosting, result: Any = None, now: float = 0.0) -> str:
    """Carry out the next transaction."""
    found = name(hosting.next(now))
    if found:
        hosting.on_done(result, now)
    return found


def hosted(notes: FakeContent, errands: Errands | None = None) -> Hosting:
    hosting = Hosting(7, "e1", notes, errands)
    assert do(hosting, row()) == "confirm"
    assert do(hosting) == "load"
    assert notes.is_loaded
    return hosting


def test_groups_are_committed_and_folded_in_order() -> None:
    notes = FakeContent()
    hosting = hosted(notes)
    notes.blobs = [b"x"] * FOLD_GROUPS
    for group in range(1, FOLD_GROUPS + 1):
        assert do(hosting) == "commit_group"
        assert notes.committed[-1] == group
    assert do(hosting) == "fold"
    assert notes.folded == [FOLD_GROUPS] and hosting.folded == FOLD_GROUPS
    assert hosting.turn == 1 + FOLD_GROUPS + 1


def test_a_host_with_nothing_to_do_shows_that_it_is_alive() -> None:
    hosting = hosted(FakeContent())
    assert do(hosting, now=BEAT_S) == "beat"
    assert do(hosting, now=BEAT_S + 0.1) == ""
    assert do(hosting, now=2 * BEAT_S) == "beat"


def test_an_unknown_outcome_is_confirmed_before_anything_else() -> None:
    notes = FakeContent()
    hosting = hosted(notes)
    notes.blobs = [b"x"]
    hosting.next(0.0)
    hosting.on_failed(ConnectionLost(is_unknown=True))
    assert do(hosting, row(turn=4)) == "confirm"
    assert notes.committed == []
    assert do(hosting) == "commit_group"  # the same group again
    hosting.next(0.0)
    notes.blobs = [b"y"]
    hosting.next(0.0)
    hosting.on_failed(ConnectionLost(is_unknown=True))
    assert do(hosting, row(turn=9, group=2)) == "confirm"
    assert notes.committed == [1, 2]


def test_a_fold_whose_outcome_was_unknown_is_done_again_or_found() -> None:
    notes = FakeContent()
    hosting = hosted(notes)
    notes.blobs = [b"x"] * FOLD_GROUPS
    for _ in range(FOLD_GROUPS):
        do(hosting)
    for folded in (0, FOLD_GROUPS):
        assert name(hosting.next(0.0)) == "fold"
        hosting.on_failed(ConnectionLost(is_unknown=True))
        assert notes.folded == []
        assert do(hosting, row(group=FOLD_GROUPS, folded=folded)) == "confirm"
    assert notes.folded == [FOLD_GROUPS] and do(hosting) == ""


def test_what_was_surely_not_committed_is_done_again() -> None:
    notes = FakeContent()
    hosting = hosted(notes)
    notes.blobs = [b"x"]
    for error in (Aborted(), ConnectionLost(is_unknown=False)):
        assert name(hosting.next(0.0)) == "commit_group"
        hosting.on_failed(error)
        assert hosting.is_sure
    assert do(hosting) == "commit_group" and notes.committed == [1]


def test_a_host_that_is_refused_does_nothing_more() -> None:
    hosting = hosted(FakeContent())
    hosting.next(BEAT_S)
    hosting.on_failed(Refused())
    assert hosting.is_fenced and hosting.next(9 * BEAT_S) is None


def test_a_number_is_handed_over_when_all_is_folded() -> None:
    notes = FakeContent()
    hosting = hosted(notes)
    notes.blobs = [b"x"]
    hosting.hand_over("e2")
    assert [do(hosting) for _ in range(4)] == ["commit_group", "fold", "hand_over", ""]
    assert hosting.is_fenced


class Chores:
    """Errands that note what is done."""

    def __init__(self) -> None:
        self.todo: list[str] = []
        self.wants_fold = False

    def next(self, number: int, epoch: str, turn: int, now: float) -> Transaction[Any] | None:
        return errand() if self.todo else None

    def on_done(self, result: Any, now: float) -> None:
        self.todo.remove(result)


def errand() -> Transaction[None]:
    yield [Commit()]


def test_errands_and_groups_take_turns() -> None:
    notes, chores = FakeContent(), Chores()
    hosting = hosted(notes, chores)
    notes.blobs = [b"x"] * 2
    chores.todo = ["a", "b", "c"]
    done = []
    while chores.todo or notes.blobs:
        done.append(do(hosting, chores.todo[0]))
    assert done == ["commit_group", "errand", "commit_group", "errand", "errand"]
    assert do(hosting) == "" and hosting.turn == 1 + 5


def test_the_journal_is_folded_at_once_if_an_errand_waits_for_it() -> None:
    notes, chores = FakeContent(), Chores()
    hosting = hosted(notes, chores)
    notes.blobs = [b"x"] * 3
    chores.wants_fold = True
    assert [do(hosting) for _ in range(4)] == ["commit_group", "fold"] * 2


def test_what_is_to_be_read_is_read_before_the_next_group() -> None:
    notes = FakeContent()
    hosting = hosted(notes)
    notes.blobs = [b"x"]
    notes.reads = [read_nodes()]
    assert do(hosting) == "read_nodes" and notes.committed == []
    assert do(hosting) == "commit_group" and notes.committed == [1]
