"""Rings of cells, and the names that they refer to."""

from __future__ import annotations

from mqtt_broker.recorder.segments import (
    NOBODY,
    TRAFFIC_CELL,
    Receivers,
    Segment,
    SegmentRing,
)


def used(now_ms: int = 5, cells: int = 400) -> Segment:
    segment = Segment(TRAFFIC_CELL, TRAFFIC_CELL * cells)
    segment.begin(1, now_ms)
    return segment


def test_equal_names_have_one_number() -> None:
    segment = used()
    assert segment.number_topic("a/b") == segment.number_topic("a/b")
    assert segment.number_topic("a/c") != segment.number_topic("a/b")
    receivers = Receivers(("c",), ("a/#",), b"\x01", ())
    equal = Receivers(("c",), ("a/#",), b"\x01", ())
    assert segment.number_route(receivers) == segment.number_route(equal)
    assert segment.number_route(NOBODY) != segment.number_route(receivers)


def test_numbers_say_what_they_are_of() -> None:
    segment = used()
    names = [segment.number_topic("t"), segment.number_client("c"), segment.number_text("x")]
    assert [segment.name_of(number) for number in names] == ["t", "c", "x"]
    assert segment.name_of(0) == ""


def test_each_session_of_a_client_has_a_number() -> None:
    segment = used()
    first, other, second = (segment.number_client(name) for name in ("c", "d", "c"))
    assert segment.numbers_of_client("c") == [first, second]
    assert segment.numbers_of_client("d") == [other]
    assert segment.numbers_of_client("e") == []


def test_a_segment_is_full_of_cells_or_of_names() -> None:
    segment = used(cells=2)
    found = []
    for _ in range(2):
        segment.reserve()
        found.append(segment.is_full)
    assert found == [False, True]
    segment = used()
    segment.number_topic("t" * 20_000)
    assert segment.is_full


def test_the_oldest_segment_is_reused() -> None:
    ring = SegmentRing(TRAFFIC_CELL, TRAFFIC_CELL * 2 * 3, 3)  # three, of two cells each
    begins = []
    for at in range(7):
        ring.writable(at).reserve()
        begins.append(ring.begins_ms)
    assert begins == [0, 0, 0, 0, 0, 0, 2]  # the first two cells are gone
    assert ring.has_lost
    assert [segment.base_ms for segment in ring.newest_first()] == [6, 4, 2]


def test_a_segment_ends_when_the_clock_is_set_back_or_it_is_very_old() -> None:
    ring = SegmentRing(TRAFFIC_CELL, 10_000, 4)
    first = ring.writable(1_000)
    assert ring.writable(2_000) is first
    assert ring.writable(500) is not first
    second = ring.current
    assert ring.writable(500 + (1 << 31)) is not second


def test_nothing_is_kept_before_it_is_used() -> None:
    ring = SegmentRing(TRAFFIC_CELL, 64 << 20, 8)
    assert ring.bytes == 0
    assert sum(len(segment.cells) for segment in ring.segments) == 0
