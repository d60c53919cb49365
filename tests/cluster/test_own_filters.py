"""The filters of the own number: which rows a group writes, and when rows of old ones go."""

from __future__ import annotations

from mqtt_broker.cluster.digest import NOBODY, STORED
from mqtt_broker.cluster.own_filters import OwnFilters
from mqtt_broker.cluster.statements import Delete, Put, PutAll, Statement
from mqtt_broker.cluster.tables import FILTERS, VERSIONS


def filters_of(statements: list[Statement]) -> dict[str, int]:
    puts = [one for one in statements if isinstance(one, PutAll) and one.table == FILTERS]
    rows = [row for one in puts for row in one.rows]
    return {row["filter"]: row["reach"] for row in rows}


def since(statements: list[Statement]) -> int:
    last = statements[-1]
    assert isinstance(last, Put) and last.table == VERSIONS
    found: int = last.row["filters_from"]
    return found


def opened(removed_max: int = 64) -> OwnFilters:
    filters = OwnFilters(1, "e", removed_max)
    filters.write(1)
    filters.on_committed(1)
    return filters


def test_the_first_group_of_an_epoch_replaces_what_was_there() -> None:
    filters = OwnFilters(1, "e")
    filters.load([{"filter": "old"}, {"filter": "kept"}])
    filters.set("kept", STORED)
    assert filters.has_changed
    statements = filters.write(7)
    assert filters_of(statements) == {"old": NOBODY, "kept": STORED}
    assert since(statements) == 7 and isinstance(statements[-2], Delete)
    filters.on_committed(7)
    assert filters.write(8) == []


def test_a_group_writes_what_has_changed() -> None:
    filters = opened()
    filters.set("a", STORED)
    assert filters_of(filters.write(2)) == {"a": STORED}
    assert filters_of(filters.write(2)) == {"a": STORED}  # asked again
    filters.on_committed(2)
    filters.set("a", STORED)
    assert filters.write(3) == []
    filters.set("a", NOBODY)
    assert filters_of(filters.write(3)) == {"a": NOBODY} and since(filters.write(3)) == 1


def test_rows_of_filters_that_are_gone_are_deleted_when_they_are_many() -> None:
    filters = opened(removed_max=2)
    for group, text in enumerate("abc", start=2):
        filters.set(text, STORED)
        filters.set(text, NOBODY)
        statements = filters.write(group)
        has_swept = any(isinstance(one, Delete) for one in statements)
        assert has_swept == (text == "c")
        filters.on_committed(group)
    assert since(statements) == 4


def test_half_as_many_as_there_are_may_stay() -> None:
    filters = opened(removed_max=0)
    for text in "abcd":
        filters.set(text, STORED)
    filters.write(2)
    filters.on_committed(2)
    filters.set("a", NOBODY)
    assert since(filters.write(3)) == 1
    filters.on_committed(3)
    filters.set("b", NOBODY)
    assert since(filters.write(4)) == 4
