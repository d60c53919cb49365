"""Sets of Topic Names against brute force: every pair of filters over a small world of names."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from mqtt_broker.topics.filter_sets import common, covers, levels_of
from mqtt_broker.topics.names import filter_problem, matches

WORDS: Final = ("a", "b", "", "$x")
# A level more than filters have, so that what `#` reaches below every filter is in the world.
NAMES: Final = [
    name for n in range(1, 5) for levels in product(WORDS, repeat=n) if (name := "/".join(levels))
]
FILTERS: Final = [
    text
    for n in range(1, 4)
    for levels in product((*WORDS, "+", "#"), repeat=n)
    if (text := "/".join(levels)) and not filter_problem(text)
]


@pytest.fixture(scope="module")
def names_of() -> dict[str, frozenset[str]]:
    """The names that each filter matches."""
    return {text: frozenset(name for name in NAMES if matches(text, name)) for text in FILTERS}


def test_a_filter_covers_another_if_it_matches_all_its_names(
    names_of: dict[str, frozenset[str]],
) -> None:
    for one, two in product(FILTERS, repeat=2):
        expected = names_of[two] <= names_of[one]
        assert covers(levels_of(one), levels_of(two)) is expected, (one, two)


def test_two_filters_have_in_common_what_both_match(names_of: dict[str, frozenset[str]]) -> None:
    for one, two in product(FILTERS, repeat=2):
        found = common(levels_of(one), levels_of(two))
        expected = names_of[one] & names_of[two]
        if found is None:
            assert not expected, (one, two)
        else:
            text = "/".join(found)
            assert not filter_problem(text), (one, two, text)
            assert {name for name in NAMES if matches(text, name)} == expected, (one, two, text)


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        ("a/#", "a", "a"),
        ("a/#", "+/b/#", "a/b/#"),
        ("a/+", "+/b", "a/b"),
        ("#", "$SYS/#", None),
        ("+/b", "$SYS/b", None),
        ("a/+", "a", None),
    ],
)
def test_common_in_either_order(one: str, two: str, both: str | None) -> None:
    expected = None if both is None else levels_of(both)
    assert common(levels_of(one), levels_of(two)) == expected
    assert common(levels_of(two), levels_of(one)) == expected
