"""Messages for other numbers: whom they go to, and how they are numbered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cluster.digest import STORED, Digest
from mqtt_broker.cluster.frames.batches import BATCH_BYTES
from mqtt_broker.cluster.outbox import (
    Outbox,
    Parcel,
    join_messages,
    parcel_of,
    split_messages,
    write_parcels,
)
from mqtt_broker.cluster.statements import Insert


def digest_of(filters: dict[int, str]) -> Digest:
    digest = Digest(1)
    versions = [
        {"number": number, "epoch": "e", "filters": 5, "filters_from": 0} for number in filters
    ]
    rows = [
        {"number": n, "filter": text, "reach": STORED, "group": 1} for n, text in filters.items()
    ]
    digest.on_rows(versions, [], versions)
    digest.on_rows(versions, rows, versions)
    return digest


def ranges(parcels: list[Parcel]) -> list[tuple[int, int, int]]:
    return [(one.receiver, one.first, one.last) for one in parcels]


def test_messages_go_to_numbers_with_subscribers() -> None:
    outbox, digest = Outbox(1), digest_of({2: "a", 3: "+"})
    parcels = outbox.pack([("a", b"1"), ("b", b"2")], digest)
    assert ranges(parcels) == [(2, 1, 1), (3, 1, 2)]
    assert [one.messages for one in parcels] == [[b"1"], [b"1", b"2"]]
    assert {one.filters for one in parcels} == {5}


def test_numbers_count_only_when_the_group_is_committed() -> None:
    outbox, digest = Outbox(1), digest_of({2: "a"})
    assert ranges(outbox.pack([("a", b"1")], digest)) == [(2, 1, 1)]
    again = outbox.pack([("a", b"1"), ("a", b"2")], digest)
    outbox.on_committed(again)
    assert ranges(outbox.pack([("a", b"3")], digest)) == [(2, 3, 3)]


def test_numbers_go_on_from_what_waits_and_from_what_was_read() -> None:
    outbox, digest = Outbox(1), digest_of({2: "a", 3: "a"})
    waiting = [{"receiver": 2, "last": 7}, {"receiver": 2, "last": 9}]
    places = [{"receiver": 2, "place": 4}, {"receiver": 3, "place": 30}]
    outbox.on_loaded(waiting, places)
    assert ranges(outbox.pack([("a", b"1")], digest)) == [(2, 10, 10), (3, 31, 31)]


def test_a_parcel_is_a_row() -> None:
    parcel = Parcel(1, 2, 10, 5, [b"x", b""])
    parcel.set_transaction("e", 7)
    written = write_parcels([parcel])[0]
    assert isinstance(written, Insert)
    found = parcel_of(written.row)
    assert (found.sender, found.receiver, found.first, found.last) == (1, 2, 10, 11)
    assert found.messages == [b"x", b""] and found.filters == 5
    assert (found.epoch, found.turn) == ("e", 7)


@given(st.lists(st.binary(max_size=300)))
def test_messages_are_split_as_they_were_joined(messages: list[bytes]) -> None:
    assert split_messages(join_messages(messages)) == messages


def test_what_one_group_has_for_one_number_is_split_into_frames() -> None:
    outbox, digest = Outbox(1), digest_of({2: "a"})
    messages = [("a", bytes(BATCH_BYTES // 3))] * 5 + [("a", bytes(2 * BATCH_BYTES)), ("a", b"")]
    parcels = outbox.pack(messages, digest)
    assert ranges(parcels) == [(2, 1, 2), (2, 3, 4), (2, 5, 5), (2, 6, 6), (2, 7, 7)]
    outbox.on_committed(parcels)
    assert outbox.last(2) == 7 and outbox.last(3) == 0
