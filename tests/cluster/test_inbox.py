"""Messages from other numbers: what is accepted, what is missing, and what a group writes."""

from __future__ import annotations

from mqtt_broker.cluster.inbox import MESSAGES_MAX, READ_ROWS, Inbox, read_parcels
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.statements import Delete, Expect, Put, Select
from tests.cluster.steps import play


def parcel(first: int, count: int = 1, sender: int = 2) -> Parcel:
    return Parcel(sender, 1, first, 5, [b"%d" % n for n in range(first, first + count)])


def taken(inbox: Inbox) -> list[tuple[int, int, int]]:
    return [(one.sender, one.first, one.last) for one in inbox.take()]


def test_what_follows_is_accepted_and_what_came_is_dropped() -> None:
    inbox = Inbox(1)
    for one in [parcel(1, 2), parcel(1, 2), parcel(3), parcel(1, sender=3)]:
        inbox.on_parcel(one)
    assert taken(inbox) == [(2, 1, 2), (2, 3, 3), (3, 1, 1)]
    assert taken(inbox) == [] and not inbox.missing


def test_a_gap_is_left_to_a_read() -> None:
    inbox = Inbox(1)
    inbox.on_parcel(parcel(2))
    assert taken(inbox) == [] and inbox.missing == {2}
    inbox.on_rows(2, [parcel(1).row(), parcel(2).row()])
    assert taken(inbox) == [(2, 1, 1), (2, 2, 2)] and not inbox.missing


def test_it_goes_on_from_its_places() -> None:
    inbox = Inbox(1)
    inbox.on_loaded([{"sender": 2, "place": 7}])
    inbox.on_parcel(parcel(7))
    inbox.on_parcel(parcel(8))
    assert taken(inbox) == [(2, 8, 8)]


def test_what_is_too_much_waits_in_the_table() -> None:
    inbox = Inbox(1)
    inbox.on_parcel(parcel(1, MESSAGES_MAX))
    inbox.on_parcel(parcel(MESSAGES_MAX + 1))
    assert inbox.missing == {2} and len(inbox.take()) == 1
    inbox.on_parcel(parcel(MESSAGES_MAX + 1))
    assert len(inbox.take()) == 1


def test_a_group_moves_the_places_and_deletes_what_was_read() -> None:
    inbox = Inbox(1)
    statements = inbox.write([parcel(1, 2, 3), parcel(3, 1, 3), parcel(5)])
    puts = [one.row for one in statements if isinstance(one, Put)]
    assert puts == [
        {"receiver": 1, "sender": 2, "place": 5},
        {"receiver": 1, "sender": 3, "place": 3},
    ]
    expected = [one.rows for one in statements if isinstance(one, Expect)]
    assert expected == [[(5, 5, "", 0)], [(1, 2, "", 0), (3, 3, "", 0)]]
    deletes = [one.up_to for one in statements if isinstance(one, Delete)]
    assert deletes == [("first", 5), ("first", 3)]


def test_rows_are_read_of_each_sender_and_no_more_than_some() -> None:
    inbox = Inbox(1)
    rows = [parcel(n).row() for n in range(1, READ_ROWS + 1)]
    batches, _ = play(read_parcels(inbox, 1, [2, 3]), [[rows, [], []]])
    reads = [one for one in batches[0] if isinstance(one, Select)]
    assert [one.where["sender"] for one in reads] == [2, 3]
    assert {one.limit for one in reads} == {READ_ROWS}
    assert len(inbox.take()) == READ_ROWS and inbox.missing == {2}


def test_a_hint_of_more_than_came_has_it_read() -> None:
    inbox = Inbox(1)
    inbox.on_parcel(parcel(1, 2))
    inbox.on_hint(2, 2)
    inbox.on_hint(2, 1)
    assert not inbox.missing
    inbox.on_hint(2, 3)
    inbox.on_hint(3, 1)
    assert inbox.missing == {2, 3}


def test_what_is_gone_is_dropped_with_all_that_is_not_committed() -> None:
    inbox = Inbox(1)
    for one in [parcel(1), parcel(2), parcel(1, sender=3)]:
        inbox.on_parcel(one)
    inbox.on_committed([parcel(1)])
    inbox.on_stale()
    assert taken(inbox) == [] and inbox.missing == {2, 3}
    inbox.on_rows(2, [parcel(2).row()])
    assert taken(inbox) == [(2, 2, 2)] and inbox.missing == {3}
