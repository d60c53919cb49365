"""Numbers of sessions and messages: all for a broker alone, a range for each node of several."""

from __future__ import annotations

import pytest

from sessions.journal.journal import Journal
from sessions.journal.net_changes import Changes
from sessions.journal.number_range import ALL, NODES_MAX, range_of
from sessions.journal.records import Left
from sessions.journal.rows import ShareRow
from sessions.journal.value_ranges import ID_MAX


def test_a_broker_alone_has_all_numbers() -> None:
    journal = Journal(lambda number, blob: None, last_message=7)
    journal.skip_numbers(message=1 << 50, session=3)
    assert (journal.numbers.message, journal.numbers.session) == (1 << 50, 3)
    assert ALL.newest() == 0


def test_ranges_of_nodes_are_apart_and_valid_in_a_store() -> None:
    for node in (1, 2, 511, NODES_MAX - 2):
        own, other = range_of(node), range_of(node + 1)
        assert ALL.first < own.first < own.end == other.first
    assert range_of(NODES_MAX - 1).end <= ID_MAX
    assert range_of(511).end <= 1 << 53, "exact in JavaScript, too"


@pytest.mark.parametrize("node", [0, -1, NODES_MAX])
def test_a_number_that_no_node_can_have(node: int) -> None:
    with pytest.raises(ValueError, match=str(node)):
        range_of(node)


def test_numbers_of_other_nodes_are_not_continued() -> None:
    own, other = range_of(3), range_of(4)
    journal = Journal(lambda number, blob: None, number_range=own)
    assert journal.new_session_number() == own.first + 1
    journal.skip_numbers(session=own.first + 9, message=other.first + 5)
    journal.skip_numbers(session=range_of(2).first + 50)
    assert journal.new_session_number() == own.first + 10
    assert journal.numbers.message == own.first


def test_what_moves_away_takes_numbers_with_it() -> None:
    own = range_of(3)
    submitted: list[bytes] = []
    journal = Journal(
        lambda number, blob: submitted.append(blob), number_range=own, last_message=own.first + 2
    )
    journal.on_left(77, 5)
    journal.flush(1.0)
    assert journal.numbers.message == own.first + 7
    changes = Changes(number_range=own)
    changes.apply(Left(77, own.first + 2, 5))
    changes.apply(ShareRow(range_of(2).first + 3, "$share/a/b"))
    assert changes.left == {77: own.first + 2}
    assert (changes.last_mid, changes.last_sid) == (own.first + 7, own.first)
