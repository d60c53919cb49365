"""Pages: nothing twice, nothing left out, whatever comes and goes between two of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from mqtt_broker.http_api.request.paging import Page, Paging, encode_cursor, take_page
from mqtt_broker.http_api.request.problems import Problem


def page(items: dict[str, int], paging: Paging, sort: str = "n", **more: Any) -> Page[str]:
    return asyncio.run(
        take_page(
            list(items.items()), paging, lambda item: (item[1], item[0]), lambda item: item[0],
            sort, **more,
        )
    )  # fmt: skip


@pytest.mark.parametrize("sort", ["n", "-n"])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_pages_together_are_the_list(sort: str, limit: int) -> None:
    chance = random.Random(limit)
    items = {f"k{n}": chance.randrange(20) for n in range(1_234)}
    wanted = sorted(items, key=lambda key: (items[key], key), reverse=sort == "-n")
    found: list[str] = []
    cursor = ""
    while True:
        one = page(items, Paging(limit=limit, cursor=cursor), sort)
        assert one.total == len(items) and len(one.items) <= limit
        found += one.items
        if one.next is None:
            break
        cursor = one.next
        if limit == 1 and len(found) > 50:
            break
    assert found == wanted[: len(found)]
    assert limit == 1 or len(found) == len(items)


def test_what_goes_and_comes_between_pages_shifts_nothing() -> None:
    items = {f"k{n:03}": n for n in range(100)}
    first = page(items, Paging(limit=50))
    for key in [*first.items[:49], first.items[49]]:
        del items[key]
    items["new"] = 0
    second = page(items, Paging(limit=50, cursor=first.next or ""))
    assert second.items == [f"k{n:03}" for n in range(50, 100)] and second.next is None


def test_a_filter_counts_what_it_matches() -> None:
    items = {f"k{n}": n for n in range(100)}
    found = page(items, Paging(limit=3), matches=lambda item: item[1] % 2 == 0)
    assert (found.items, found.total) == (["k0", "k2", "k4"], 50)


@pytest.mark.parametrize(
    "cursor",
    ["x", "%%", "e30", "W10", "WzEsMiwzXQ", "bnVsbA", "A" * 9_000, encode_cursor("-n", (1, "x")),
     encode_cursor("n", (None, "x")), encode_cursor("n", (True, "x")),
     encode_cursor("n", ("a", "x"))],
)  # fmt: skip
def test_what_is_no_cursor(cursor: str) -> None:
    with pytest.raises(Problem) as problem:
        page({"k": 1}, Paging(cursor=cursor))
    assert problem.value.status == 400 and "cursor" in str(problem.value)
