"""Which numbers a process hosts."""

from __future__ import annotations

from itertools import count
from typing import Final

import pytest

from mqtt_broker.cluster.membership import (
    LAPSE_S,
    READ_GAP_S_MAX,
    Accept,
    Create,
    Decision,
    HandOver,
    Lapses,
    Membership,
    Take,
    Want,
)
from mqtt_broker.cluster.node_row import FREE, NodeRow

STEP_S: Final = 0.5  # between two reads


def row(number: int, epoch: str, *, turn: int = 1, group: int = 1) -> NodeRow:
    values = {"number": number, "epoch": epoch, "turn": turn, "group": group, "folded": 0}
    return NodeRow(values)


@pytest.fixture
def membership() -> Membership:
    epochs = count(1)
    return Membership(1, lambda: f"mine{next(epochs)}")


def lapse(membership: Membership, rows: list[NodeRow], *, own_moves: bool = True) -> list[Decision]:
    """What is decided when these rows have not moved for too long, and this process's own has."""
    now, decisions, turn = 0.0, membership.decide(rows, {}, 0.0), 1
    while now <= LAPSE_S:
        now += STEP_S
        turn += own_moves
        own = [row(1, one.epoch, turn=turn) if one.number == 1 else one for one in rows]
        decisions = membership.decide(own, {}, now)
    return decisions


def test_a_process_creates_its_number_and_hosts_it(membership: Membership) -> None:
    (create,) = membership.decide([], {}, 0.0)
    assert isinstance(create, Create) and (create.number, create.epoch) == (1, "mine1")
    (again,) = membership.decide([], {}, 1.0)
    assert isinstance(again, Create) and again.epoch == "mine1"
    membership.on_hosted(1, "mine1")
    assert membership.decide([row(1, "mine1")], {}, 2.0) == []


def test_a_row_that_does_not_move_lapses(membership: Membership) -> None:
    membership.on_hosted(1, "mine1")
    (take,) = lapse(membership, [row(1, "mine1"), row(2, "other")])
    assert isinstance(take, Take) and take.seen.epoch == "other" and take.number == 2


def test_no_row_lapses_while_the_process_itself_cannot_write(membership: Membership) -> None:
    membership.on_hosted(1, "mine1")
    rows = [row(1, "mine1"), row(2, "other")]
    assert lapse(membership, rows, own_moves=False) == []
    membership.on_lost(1)  # what hosts nothing counts every read
    takes = lapse(membership, [row(1, "theirs"), row(2, "other")], own_moves=False)
    assert [take.number for take in takes] == [1, 2]


def test_a_row_that_moves_does_not() -> None:
    lapses = Lapses()
    for step in range(20):
        moved = row(2, "other", turn=step // 3)
        lapses.on_rows([moved], step * STEP_S)
        assert not lapses.has_lapsed(moved)
    lapses.on_rows([row(2, "another", turn=6)], 20 * STEP_S)
    assert not lapses.has_lapsed(row(2, "another", turn=6))


def test_a_row_that_has_moved_since_the_last_read_that_counts_has_not_lapsed() -> None:
    lapses = Lapses()
    for step in range(20):
        lapses.on_rows([row(2, "other")], step * STEP_S)
    assert lapses.has_lapsed(row(2, "other"))
    assert not lapses.has_lapsed(row(2, "other", turn=2))


def test_time_in_which_nobody_read_counts_as_one_gap() -> None:
    lapses = Lapses()
    lapses.on_rows([row(2, "other")], 0.0)
    lapses.on_rows([row(2, "other")], 3_600.0)
    assert not lapses.has_lapsed(row(2, "other"))
    assert lapses.counted_s(0.5) == 0.5 and lapses.counted_s(3_600.0) == READ_GAP_S_MAX


def test_after_an_outage_everybody_is_given_the_whole_time_anew() -> None:
    lapses = Lapses()
    for step in range(4):
        lapses.on_rows([row(2, "other")], step * STEP_S)
    back = 3 * STEP_S + LAPSE_S + 1.0
    lapses.on_rows([row(2, "other")], back)
    assert not lapses.has_lapsed(row(2, "other"))
    for step in range(1, 4):
        lapses.on_rows([row(2, "other")], back + step * STEP_S)
    assert not lapses.has_lapsed(row(2, "other"))
    lapses.on_rows([row(2, "other")], back + LAPSE_S)
    assert lapses.has_lapsed(row(2, "other"))


def test_what_another_host_holds_is_not_lapsed_unseen() -> None:
    assert not Lapses().has_lapsed(row(2, "other"))


def test_a_free_number_is_taken_at_once_if_it_has_something(membership: Membership) -> None:
    membership.on_hosted(1, "mine1")
    free = [row(1, "mine1"), row(2, FREE), row(3, FREE, group=0)]
    (take,) = membership.decide(free, {}, 0.0)
    assert isinstance(take, Take) and take.number == 2


def test_its_own_number_is_asked_for_and_accepted(membership: Membership) -> None:
    (want,) = membership.decide([row(1, "other")], {}, 0.0)
    assert isinstance(want, Want) and want.epoch == "mine1"
    assert membership.decide([row(1, "other", turn=2)], {1: "mine1"}, 1.0) == []
    (accept,) = membership.decide([row(1, "mine1")], {1: "mine1"}, 2.0)
    assert isinstance(accept, Accept) and accept.epoch == "mine1"


def test_an_inherited_number_is_handed_to_its_own_process(membership: Membership) -> None:
    membership.on_hosted(1, "mine1")
    membership.on_hosted(2, "mine2")
    rows = [row(1, "mine1"), row(2, "mine2")]
    (hand_over,) = membership.decide(rows, {1: "twin", 2: "theirs"}, 0.0)
    assert isinstance(hand_over, HandOver) and hand_over.epoch == "theirs"
    membership.on_lost(2)
    assert membership.decide([rows[0], row(2, "theirs")], {2: "theirs"}, 1.0) == []


def test_a_number_that_this_process_gave_up_is_taken_again_at_once(membership: Membership) -> None:
    membership.on_hosted(1, "mine0")
    membership.on_lost(1)
    (take,) = membership.decide([row(1, "mine0")], {}, 0.0)
    assert isinstance(take, Take) and take.epoch == "mine1"


def test_a_host_that_is_fenced_learns_it_from_its_next_write(membership: Membership) -> None:
    membership.on_hosted(1, "mine1")
    assert membership.decide([row(1, "other")], {}, 0.0) == []
