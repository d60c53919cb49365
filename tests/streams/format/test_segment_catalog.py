"""The list of sealed segments, and the index of one: found by offset, by time, or damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.streams.format import segment_index
from mqtt_broker.streams.format.batch import NULL, Malformed
from mqtt_broker.streams.format.segment_catalog import Catalog, SealedSegment
from mqtt_broker.streams.format.segment_index import Index, IndexBuilder, IndexEntry

SEED = 77
SEGMENTS = [
    SealedSegment(0, 10, 100, 5, 50, 0),
    SealedSegment(10, 20, 100, 40, 45, 2),  # the clock was set back
    SealedSegment(30, 40, 100, 60, 90, 0),  # 20 to 29 are lost
]


def test_what_is_written_is_read_and_every_flipped_bit_is_found() -> None:
    catalog = Catalog.of(SEGMENTS, 44)
    data = catalog.encode(SEED)
    again = Catalog.decode(data, SEED)
    assert again.segments() == SEGMENTS and again.next_base == 44 and again.size == 300
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(Malformed):
                Catalog.decode(bytes(flipped), SEED)
    for length in range(len(data)):
        with pytest.raises(Malformed):
            Catalog.decode(data[:length], SEED)
    with pytest.raises(Malformed):
        Catalog.decode(data, SEED + 1)


def test_an_empty_one() -> None:
    empty = Catalog.decode(Catalog.of([], 7).encode(SEED), SEED)
    assert (len(empty), empty.start, empty.next_base, empty.find(9)) == (0, 7, 7, -1)
    assert empty.find_time(0) == 0


def test_the_bytes_are_pinned() -> None:
    assert Catalog.of([SealedSegment(1, 2, 3, 4, 5, 6)], 2).encode(0).hex() == (
        "464d43316fe5f46501000000000000000200000000000000"
        + "".join(f"{number:02x}" + "00" * 7 for number in (1, 2, 3, 4, 5, 6))
    )  # fmt: skip


def test_by_offset() -> None:
    catalog = Catalog.of(SEGMENTS, 44)
    assert [catalog.find(offset) for offset in (0, 9, 10, 25, 30, 99)] == [0, 0, 1, 1, 2, 2]
    assert catalog.start == 0 and catalog.without(1).start == 10


def test_by_time_the_first_that_has_it_whatever_the_clock_did() -> None:
    catalog = Catalog.of(SEGMENTS, 44)
    assert [catalog.find_time(at) for at in (0, 50, 51, 90, 91)] == [0, 0, 2, 2, 3]


def test_the_next_catalog_is_another() -> None:
    catalog = Catalog.of(SEGMENTS[:2], 30)
    more = catalog.sealed(SEGMENTS[2], 40)
    joined = more.replaced(0, 2, SealedSegment(0, 20, 50, 5, 50, 3))
    assert (len(catalog), len(more), len(joined)) == (2, 3, 2)
    assert (catalog.next_base, more.next_base) == (30, 40)
    assert joined[0].name == "00000000000000000000.3.seg"
    assert joined[1] == SEGMENTS[2]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(0, 1100))
def test_an_index_finds_the_last_place_before(times: list[int], wanted: int) -> None:
    marks = IndexBuilder(SEED)
    data = b""
    for number, at in enumerate(times):
        data += marks.add(number * 10, at, number * segment_index.STEP_BYTES)
    found = Index(data, SEED).at_offset(wanted)
    last = min(wanted // 10, len(times) - 1)
    before = max(times[:last], default=NULL)
    assert found == IndexEntry(last * 10, before, last * segment_index.STEP_BYTES)
    by_time = Index(data, SEED).at_time(wanted)
    assert by_time is not None
    place = by_time.base // 10
    assert all(at < wanted for at in times[:place])
    assert place == len(times) - 1 or max(times[: place + 1]) >= wanted


def test_close_places_share_an_entry() -> None:
    marks = IndexBuilder(SEED)
    assert marks.add(0, 1, 0)
    assert not marks.add(1, 1, segment_index.STEP_BYTES - 8)
    assert marks.add(2, 1, segment_index.STEP_BYTES)


def test_a_damaged_entry_is_not_followed() -> None:
    data = bytearray(segment_index.encode(IndexEntry(5, 6, 64), SEED))
    assert Index(bytes(data), SEED).at_offset(5) == IndexEntry(5, 6, 64)
    for place in range(len(data)):
        data[place] ^= 1
        assert Index(bytes(data), SEED).at_offset(1 << 62) is None
        data[place] ^= 1
