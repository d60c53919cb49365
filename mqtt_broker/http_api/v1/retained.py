"""`/api/v1/retained`: retained messages as a list and as a tree, one with its payload, clearing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypedDict

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.properties import TABLE, properties_of
from mqtt_broker.core.interfaces.rows import (
    HAS_CHILDREN,
    HAS_MESSAGE,
    ONE_BELOW,
    Place,
    RetainedMessage,
    RetainedRow,
    RetainedSelect,
)
from mqtt_broker.http_api.request.directory_interface import DIRECTORY
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, delete, get
from mqtt_broker.http_api.request.paging import (
    Page,
    Paging,
    decode_cursor,
    encode_cursor,
    take_page,
)
from mqtt_broker.http_api.request.problems import bad_request, not_found
from mqtt_broker.topics.names import filter_problem

ROOT: Final = "/api/v1/retained"
Topic = Annotated[str, Limits(chars_min=1, chars_max=65_535)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedQuery(Paging):
    """Which retained messages, and in which order."""

    sort: Literal["topic", "-topic", "bytes", "-bytes", "received_at", "-received_at"] = "topic"
    filter: Annotated[str | None, Limits(text="a Topic Filter; all by default")] = None
    q: Annotated[str | None, Limits(text="part of the topic")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuery(Paging):
    """A level of the tree of topics."""

    prefix: Annotated[str, Limits(text="a/b: the children of this level; empty: the top")] = ""


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """The topic of the message."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class ClearQuery:
    """The filter of the messages to remove."""

    filter: Annotated[str, Limits(chars_min=1, text="a Topic Filter")]


class RetainedItem(TypedDict):
    """A retained message without its payload."""

    topic: str
    qos: int
    payload_bytes: int
    publisher: str
    received_at: float
    expires_at: float | None


class RetainedWhole(RetainedItem):
    """A retained message."""

    payload: Annotated[str | None, Limits(text="as text, if it is UTF-8")]
    payload_base64: str
    properties: dict[str, Any]


class Branch(TypedDict):
    """A child of a level of the tree of topics."""

    name: str
    topic: Annotated[str, Limits(text="the whole name up to here")]
    messages: Annotated[int, Limits(text="here and below")]
    retained: Annotated[bool, Limits(text="a message has this very topic")]
    children: Annotated[bool, Limits(text="there is something below")]


class Cleared(TypedDict):
    """The number of messages that were removed."""

    filter: str
    removed: int


def operations(site: Site) -> list[Operation]:
    """Return the operations of retained messages."""
    page = _Retained(site)
    return [
        get(ROOT, page.show_all, errors=(409,)),
        get(ROOT + "/tree", page.tree, errors=(409,)),
        get(ROOT + "/message", page.show, errors=(404, 409)),
        delete(ROOT, page.clear, errors=(409,)),
    ]


class _Retained:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def show_all(self, query: RetainedQuery) -> Page[RetainedItem]:
        """List retained messages.

        The list is at most a second old.
        """
        if query.filter is not None:
            _check(query.filter)
        directory = self._site.broker.part(DIRECTORY)
        found = await self._site.ask(
            directory.retained,
            RetainedSelect(
                query.filter or "",
                (query.q or "").casefold(),
                query.sort.removeprefix("-"),
                query.sort.startswith("-"),
                _after(query),
                query.limit,
            ),
        )
        rows = found.rows[: query.limit]
        more = None
        if len(found.rows) > query.limit:
            more = encode_cursor(query.sort, _place_of(query.sort, rows[-1]))
        return Page([retained_item(row) for row in rows], more, found.total)

    async def tree(self, query: TreeQuery) -> Page[Branch]:
        """List the children of a level of the tree of retained topics."""
        directory = self._site.broker.part(DIRECTORY)
        prefix = query.prefix.removesuffix("/") if query.prefix != "/" else query.prefix
        if prefix and (problem := filter_problem(f"{prefix}/#")):
            raise bad_request(f"invalid prefix {prefix[:80]!r}: {problem}")
        if any(level in ("+", "#") for level in prefix.split("/")):
            raise bad_request(f"invalid prefix {prefix[:80]!r}: it is no Topic Filter")
        found = await self._site.ask(directory.branches, prefix)
        return await take_page(
            found.items(),
            query,
            lambda item: ("", item[0]),
            lambda item: branch_of(prefix, *item),
            "name",
        )

    async def show(self, query: MessageQuery) -> RetainedWhole:
        """Show the retained message of a topic, with its payload."""
        directory = self._site.broker.part(DIRECTORY)
        found = await self._site.ask(directory.retained_message, query.topic)
        if found is None:
            raise not_found(f"there is no retained message of {query.topic[:80]!r}")
        return retained_whole(found)

    async def clear(self, query: ClearQuery) -> Cleared:
        """Remove the retained messages that a Topic Filter matches."""
        _check(query.filter)
        directory = self._site.broker.part(DIRECTORY)
        count = await self._site.ask(directory.clear_retained, query.filter)
        return {"filter": query.filter, "removed": count}


def _check(text: str) -> None:
    if problem := filter_problem(text):
        raise bad_request(f"invalid filter {text[:80]!r}: {problem}")


def _place_of(sort: str, row: RetainedRow) -> Place:
    kind = sort.removeprefix("-")
    if kind == "topic":
        return "", row.topic
    return (row.size if kind == "bytes" else row.received_at), row.topic


def _after(query: RetainedQuery) -> Place | None:
    """Return the place of the cursor, if its value is of the kind that is sorted by."""
    found = decode_cursor(query.cursor, query.sort)
    is_text = query.sort.removeprefix("-") == "topic"
    if found is not None and isinstance(found[0], str) is not is_text:
        raise bad_request("the cursor is of another list or another order: begin without one")
    return found


def branch_of(prefix: str, name: str, known: int) -> Branch:
    """Return a child of a level as the API shows it."""
    return {
        "name": name,
        "topic": f"{prefix}/{name}" if prefix else name,
        "messages": known // ONE_BELOW,
        "retained": known & HAS_MESSAGE != 0,
        "children": known & HAS_CHILDREN != 0,
    }


def retained_item(row: RetainedRow) -> RetainedItem:
    """Return a retained message as lists show it."""
    return {
        "topic": row.topic,
        "qos": row.qos,
        "payload_bytes": row.size,
        "publisher": row.publisher,
        "received_at": row.received_at,
        "expires_at": row.expires_at or None,
    }


def retained_whole(found: RetainedMessage) -> RetainedWhole:
    """Return a retained message with its payload."""
    try:
        text = found.payload.decode()
    except UnicodeDecodeError:
        text = None
    return {
        **retained_item(found.row),
        "payload": text,
        "payload_base64": base64.b64encode(found.payload).decode(),
        "properties": shown_properties(found.section),
    }


def shown_properties(section: bytes) -> dict[str, Any]:
    """Return properties by name; bytes as base64."""
    shown: dict[str, Any] = {}
    for key, value in properties_of(section).items() if section else ():
        if key == prop.USER_PROPERTY:
            shown["user_properties"] = [list(pair) for pair in properties_of(section).user]
        else:
            name = TABLE[key].name.replace("-", "_")
            is_binary = isinstance(value, bytes)
            shown[name] = base64.b64encode(value).decode() if is_binary else value  # type: ignore[arg-type]
    return shown
