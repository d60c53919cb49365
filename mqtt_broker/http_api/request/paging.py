"""Pages of long lists: `limit`, `cursor`, `sort`; `{"items": [...], "next": ..., "total": n}`.

A cursor is the place of the last item of a page: the value it is sorted by, and its key. So it
holds while items come and go: what is not changed is neither repeated nor left out.

A page is taken in slices, between which other requests and the broker's thread run.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final, Generic, TypeVar

from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.problems import bad_request

LIMIT: Final = 50
LIMIT_MAX: Final = 1_000
CURSOR_CHARS_MAX: Final = 12_000
_SHOWN_AT_ONCE: Final = 50
_SLICE: Final = 200  # items that are looked at, until others may run

T = TypeVar("T")
Item = TypeVar("Item")
Place = tuple[Any, str]  # the value that is sorted by, and the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """The parameters of every list. A list adds its filters, and `sort` with its choices."""

    limit: Annotated[int, Limits(1, LIMIT_MAX, text=f"items of a page, at most {LIMIT_MAX}")] = (
        LIMIT
    )
    cursor: Annotated[str, Limits(chars_max=CURSOR_CHARS_MAX, text="`next` of the page before")] = (
        ""
    )


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A page of a list. `total` counts what the filters match, on all pages."""

    items: list[Item]
    next: str | None
    total: int


def encode_cursor(sort: str, place: Place) -> str:
    """Return a cursor behind this place."""
    text = json.dumps([sort, *place], ensure_ascii=True, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, sort: str) -> Place | None:
    """Return the place of a cursor; None: there is no cursor."""
    if not cursor:
        return None
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        raise bad_request("invalid cursor: pass `next` of the page before") from None
    if not (isinstance(found, list) and len(found) == 3 and isinstance(found[2], str)):
        raise bad_request("invalid cursor: pass `next` of the page before")
    if found[0] != sort:
        raise bad_request("the cursor is of another list or another order: begin without one")
    is_number = isinstance(found[1], int | float) and not isinstance(found[1], bool)
    if not (is_number or isinstance(found[1], str)):
        raise bad_request("invalid cursor: pass `next` of the page before")
    return found[1], found[2]


async def take_page(
    found: Iterable[T],
    paging: Paging,
    place_of: Callable[[T], Place],
    show: Callable[[T], Item],
    sort: str = "",
    matches: Callable[[T], bool] | None = None,
) -> Page[Item]:
    """Return the page that `paging` asks for. A `sort` that begins with - is reversed."""
    after = decode_cursor(paging.cursor, sort)
    best, total = await _best(found, paging.limit, after, place_of, sort.startswith("-"), matches)
    items = best[: paging.limit]
    more = encode_cursor(sort, place_of(items[-1])) if len(best) > paging.limit else None
    shown: list[Item] = []
    for start in range(0, len(items), _SHOWN_AT_ONCE):
        shown += [show(item) for item in items[start : start + _SHOWN_AT_ONCE]]
        await asyncio.sleep(0)
    return Page(shown, more, total)


async def _best(
    found: Iterable[T],
    limit: int,
    after: Place | None,
    place_of: Callable[[T], Place],
    is_reversed: bool,
    matches: Callable[[T], bool] | None,
) -> tuple[Sequence[T], int]:
    """Find the first items behind a place, and how many there are in all."""
    choose = heapq.nlargest if is_reversed else heapq.nsmallest
    best: list[tuple[Place, int, T]] = []
    total = number = 0
    items = iter(found)
    try:
        while part := list(islice(items, _SLICE)):
            kept = part if matches is None else [item for item in part if matches(item)]
            total += len(kept)
            for item in kept:
                place = place_of(item)
                if after is None or (place < after if is_reversed else place > after):
                    number += 1
                    best.append((place, number, item))
            best = choose(limit + 1, best)
            await asyncio.sleep(0)
    except TypeError:  # a cursor of a number for a list of texts
        raise bad_request("the cursor is of another list or another order") from None
    return [item for _, _, item in best], total
