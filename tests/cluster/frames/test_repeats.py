"""The window of arrivals, compared with a set of all that came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cluster.frames.layout import Drop
from mqtt_broker.cluster.frames.repeats import WINDOW, Arrivals
from tests.property_examples import examples


@examples(200)
@given(st.lists(st.integers(1, 3 * WINDOW), max_size=80))
def test_none_is_taken_twice(came: list[int]) -> None:
    arrivals = Arrivals()
    seen: set[int] = set()
    for sequence in came:
        found = arrivals.add(sequence, in_order=False)
        if seen and sequence <= max(seen) - WINDOW:
            assert found is Drop.LATE
        elif sequence in seen:
            assert found is Drop.REPEATED
        else:
            assert found is None
            seen.add(sequence)


@examples(100)
@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=60))
def test_what_must_be_in_order_is(came: list[tuple[int, bool]]) -> None:
    arrivals = Arrivals()
    taken = [
        sequence
        for sequence, in_order in came
        if arrivals.add(sequence, in_order=in_order) is None and in_order
    ]
    assert taken == sorted(set(taken))


def test_missing_ones_are_counted_from_the_first_that_came() -> None:
    arrivals = Arrivals()
    for sequence in (100, 103, 104, 101):
        assert arrivals.add(sequence, in_order=False) is None
    assert arrivals.missing == 1
