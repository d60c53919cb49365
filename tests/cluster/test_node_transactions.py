"""The statements of the transactions on a number."""

from __future__ import annotations

import pytest

from mqtt_broker.cluster.node_row import NodeRow, new_row
from mqtt_broker.cluster.node_transactions import (
    Writes,
    confirm,
    create_number,
    end_backends,
    own_row,
    read_nodes,
    take_number,
    want_number,
)
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    EndBackends,
    Insert,
    LockTimeout,
    Put,
    Refused,
    Select,
    Statement,
    Transaction,
    Update,
)
from mqtt_broker.cluster.tables import GROUPS, KEYS, NODES, WANTS
from tests.cluster.steps import play

ROW = {"number": 7, "epoch": "e1", "turn": 4, "group": 3, "folded": 2}


def tables_of(batch: list[Statement]) -> list[str]:
    return [getattr(one, "table", type(one).__name__) for one in batch]


def test_a_write_is_refused_unless_epoch_and_turn_are_known() -> None:
    statement = own_row(7, "e1", 4, {"group": 5})
    assert statement.where == {"number": 7, "epoch": "e1", "turn": 4}
    assert statement.change == {"group": 5, "turn": 5}
    assert statement.required


@pytest.mark.parametrize(
    ("write", "others"),
    [
        (Writes(7, "e1", 4).beat(), []),
        (Writes(7, "e1", 4).commit_group(5, b"x"), [GROUPS]),
        (Writes(7, "e1", 4).fold(5, [Put("t", {})]), ["t", GROUPS]),
        (Writes(7, "e1", 4).hand_over("e9"), []),
    ],
)
def test_every_write_locks_its_own_row_first_and_is_one_round_trip(
    write: Transaction[None], others: list[str]
) -> None:
    batches, _ = play(write, [[[]]])
    assert [tables_of(batch) for batch in batches] == [[NODES, *others, "Commit"]]
    assert isinstance(batches[0][0], Update) and batches[0][0].required


def test_a_read_brings_who_waits_for_what() -> None:
    wants = [{"number": 7, "epoch": "e9"}]
    batches, (rows, found) = play(read_nodes(), [[[ROW], wants, []]])
    assert tables_of(batches[0]) == [NODES, WANTS, "Commit"]
    assert [row.number for row in rows] == [7] and found == {7: "e9"}


def test_a_number_is_taken_from_the_row_that_was_seen() -> None:
    (batch,), _ = play(take_number(NodeRow(ROW), "e2"), [[[], [ROW], [], []]])
    timeout, update, delete, commit = batch
    assert isinstance(timeout, LockTimeout) and isinstance(update, Update)
    assert update.where == {"number": 7, "epoch": "e1", "turn": 4} and update.required
    assert update.change == {"epoch": "e2"}
    assert isinstance(delete, Delete) and delete.table == WANTS
    assert isinstance(commit, Commit)


def test_a_host_confirms_with_a_commit_of_its_own() -> None:
    answers = [[[], [ROW]], [[{**ROW, "turn": 5}], []]]
    batches, row = play(confirm(7, "e1", 4), answers)
    assert isinstance(batches[0][0], EndBackends) and batches[0][0].label == "e1"
    assert isinstance(batches[0][1], Select) and batches[0][1].for_update
    assert isinstance(batches[1][0], Update) and isinstance(batches[1][1], Commit)
    assert row.turn == 5


@pytest.mark.parametrize("found", [[], [{**ROW, "turn": 3}]])
def test_a_host_that_is_fenced_or_lost_commits_is_refused(found: list[dict[str, object]]) -> None:
    transaction = confirm(7, "e1", 4)
    next(transaction)
    with pytest.raises(Refused, match="number 7 is not hosted under epoch e1 and turn 4"):
        transaction.send([[], found])


def test_a_new_number_has_every_column_and_nothing_to_inherit() -> None:
    row = new_row(7, "e1")
    assert row.keys() == ROW.keys() and NodeRow(row).is_empty
    ((insert, _),), _ = play(create_number(7, "e1"), [[[], []]])
    assert isinstance(insert, Insert) and insert.row == row


def test_asking_for_a_number_leaves_the_row_of_its_host_alone() -> None:
    (batch,), _ = play(want_number(7, "e9"), [[[], []]])
    assert tables_of(batch) == [WANTS, "Commit"]


def test_backends_are_ended_by_the_epoch_of_their_host() -> None:
    ((end, _),), _ = play(end_backends("e1"), [[[], []]])
    assert isinstance(end, EndBackends) and end.label == "e1"


def test_every_table_has_a_key() -> None:
    assert {NODES, GROUPS, WANTS} <= KEYS.keys()
