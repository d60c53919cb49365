"""Records as bytes and back, runs of pairs, and blobs that are not what was sealed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.journal import records
from sessions.journal.records import (
    Completed,
    Corrupt,
    Cursor,
    CursorsGone,
    Delivered,
    Done,
    Ended,
    Freed,
    Left,
    Received,
    Record,
    Released,
    Retained,
    Sent,
    Stored,
    StreamGone,
    Unsubscribed,
    runs_of,
    seal,
    unseal,
)
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow, WillRow
from tests.property_examples import examples

CHECK = examples(200)

NUMBER = st.integers(0, 2**63 - 1)
ID = st.integers(1, 65_535)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TIME = st.floats(0, 1e12) | st.just(math.inf)
BYTES = st.binary(max_size=40)
IDS = st.lists(ID, min_size=1, max_size=9).map(tuple)

WILLS = st.builds(WillRow, TEXT, BYTES, st.integers(0, 2), st.booleans(), BYTES)
SESSIONS = st.builds(
    SessionRow,
    NUMBER,
    TEXT,
    st.none() | TEXT,
    st.sampled_from([3, 4, 5]),
    TIME,
    st.integers(0, 2**32 - 1),
    st.booleans(),
    TIME,
    TIME,
    st.none() | WILLS,
)
SUBSCRIPTIONS = st.builds(
    SubscriptionRow,
    NUMBER,
    TEXT,
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 268_435_455),
)


@st.composite
def stored(draw: st.DrawFn) -> Stored:
    size = draw(st.integers(0, 30))
    payloads = draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=5))
    return Stored(
        draw(NUMBER),
        draw(TEXT),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(BYTES),
        draw(TEXT),
        draw(TIME),
        draw(st.integers(-1, 2**32 - 1)),
        payloads,
    )


@st.composite
def delivered(draw: st.DrawFn) -> Delivered:
    count = draw(st.integers(1, 6))
    ids = st.lists(ID, min_size=count, max_size=count).map(tuple) | st.just(())
    return Delivered(
        draw(NUMBER),
        draw(NUMBER),
        draw(NUMBER),
        count,
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple)),
        draw(TEXT),
        draw(ids),
    )


RECORDS: st.SearchStrategy[Record] = st.one_of(
    SESSIONS,
    SUBSCRIPTIONS,
    stored(),
    delivered(),
    st.builds(Ended, NUMBER),
    st.builds(Unsubscribed, NUMBER, TEXT),
    st.builds(Sent, NUMBER, st.lists(st.tuples(NUMBER, ID), max_size=5)),
    st.builds(
        Done, NUMBER, st.lists(st.tuples(NUMBER, NUMBER, st.integers(1, 2**32 - 1)), max_size=5)
    ),
    st.builds(Released, NUMBER, st.lists(st.tuples(NUMBER, NUMBER, ID), max_size=5)),
    st.builds(Completed, NUMBER, IDS),
    st.builds(Received, NUMBER, IDS),
    st.builds(Freed, NUMBER, IDS),
    st.builds(Retained, NUMBER, NUMBER),
    st.builds(ShareRow, NUMBER, TEXT),
    st.builds(StreamRow, TEXT, TEXT, TEXT, TEXT, TIME),
    st.builds(StreamGone, TEXT),
    st.builds(
        Cursor, TEXT, TEXT, TEXT, st.lists(st.tuples(st.integers(0, 65_535), NUMBER), max_size=5)
    ),
    st.builds(CursorsGone, TEXT, TEXT),
    st.builds(Left, NUMBER, NUMBER, st.integers(0, 2**32 - 1)),
)


def encode(record: Record) -> bytes:
    match record:
        case SessionRow():
            return records.encode_session(record)
        case SubscriptionRow():
            return records.encode_subscribed(record)
        case ShareRow():
            return records.encode_shared(record)
        case Ended():
            return records.encode_end(record.sid)
        case Unsubscribed():
            return records.encode_unsubscribed(record.sid, record.filter)
        case Stored():
            return records.encode_stored(
                record.mid,
                record.topic.encode(),
                record.qos,
                record.retain,
                record.section,
                record.publisher.encode(),
                record.received_at,
                record.expiry_interval,
                record.payloads,
            )
        case Delivered():
            return records.encode_delivered(
                record.sid,
                record.n,
                record.mid,
                record.count,
                record.size,
                record.qos,
                record.retain,
                record.subscription_ids,
                record.share,
                list(record.packet_ids),
            )
        case Sent():
            return records.encode_sent(record.sid, record.sent)
        case Done():
            return records.encode_done(record.sid, record.runs)
        case Released():
            return records.encode_released(record.sid, record.released)
        case Completed():
            return records.encode_ids(records.COMPLETED, record.sid, list(record.packet_ids))
        case Received():
            return records.encode_ids(records.RECEIVED, record.sid, list(record.packet_ids))
        case Freed():
            return records.encode_ids(records.FREED, record.sid, list(record.packet_ids))
        case Retained():
            return records.encode_retained(record.mid, record.before)
        case StreamRow():
            return records.encode_stream(record)
        case StreamGone():
            return records.encode_stream_gone(record.name)
        case Cursor():
            return records.encode_cursor(record.owner, record.stream, record.epoch, record.offsets)
        case Left():
            return records.encode_left(record.sid, record.base, record.messages)
        case CursorsGone():
            return records.encode_cursors_gone(record.owner, record.stream)


@CHECK
@given(st.lists(RECORDS, max_size=8))
def test_round_trip(found: list[Record]) -> None:
    assert list(unseal(seal([encode(record) for record in found]))) == found


@CHECK
@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_a_changed_blob_is_refused_before_anything_is_read(
    found: list[Record], data: st.DataObject
) -> None:
    blob = bytearray(seal([encode(record) for record in found]))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        unseal(bytes(blob))


@pytest.mark.parametrize("length", range(5))
def test_a_blob_that_is_cut_short(length: int) -> None:
    with pytest.raises(Corrupt):
        unseal(seal([records.encode_end(1)])[:length])


def test_a_group_without_records() -> None:
    """Only the telemetry log had something."""
    assert list(unseal(seal([]))) == []
    assert len(seal([])) == 5


def test_a_cursor_is_small_and_may_be_anybodys() -> None:
    record = Cursor("o" * 70_000, "s" * 100, "e" * 36, [(65_535, 2**63 - 1)])
    assert list(unseal(seal([encode(record)]))) == [record]
    words = Cursor("g", "s", "e", [(0, 1)])
    assert len(encode(words)) == 11 + 3 + 10


def test_a_record_of_another_kind() -> None:
    with pytest.raises(Corrupt, match="unknown type 99 of a record"):
        list(unseal(seal([b"\x63"])))


@CHECK
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_runs_say_the_same_as_pairs(pairs: list[tuple[int, int]]) -> None:
    said = [(n + at, mid + at) for n, mid, count in runs_of(pairs) for at in range(count)]
    assert said == pairs


def test_runs_are_long() -> None:
    assert runs_of([(4, 10), (5, 11), (6, 12), (8, 13)]) == [(4, 10, 3), (8, 13, 1)]
