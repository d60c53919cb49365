"""`/api/v1/clients`: connected and absent clients, one client whole, and what is done to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypedDict

from mqtt_broker.core.interfaces.rows import (
    ClientDetail,
    ClientRow,
    MessageRow,
    Rows,
    SubscriptionRow,
)
from mqtt_broker.http_api.request.directory_interface import DIRECTORY, Directory
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get, post
from mqtt_broker.http_api.request.paging import Page, Paging, Place, take_page
from mqtt_broker.http_api.request.problems import Problem, bad_request, not_found
from mqtt_broker.http_api.v1.subscriptions import SubscriptionItem, subscription_item

ROOT: Final = "/api/v1/clients"
ADMINISTRATIVE_ACTION: Final = 0x98
# Reason codes that a server may send in DISCONNECT and that an operator may mean.
KICK_REASONS: Final = frozenset(
    {0x80, 0x83, 0x87, 0x89, 0x8B, 0x8E, 0x93, 0x96, 0x97, 0x98, 0x9C, 0x9D, 0xA0}
)

Sort = Literal[
    "id", "-id", "backlog", "-backlog", "drops", "-drops", "idle", "-idle",
    "connected_at", "-connected_at", "messages_in", "-messages_in",
    "messages_out", "-messages_out", "unread", "-unread",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsQuery(Paging):
    """Which clients, and in which order."""

    sort: Sort = "id"
    q: Annotated[str | None, Limits(text="part of the id, the user or the address")] = None
    id: Annotated[str | None, Limits(text="the client id")] = None
    user: Annotated[str | None, Limits(text="the user name")] = None
    address: Annotated[str | None, Limits(text="the beginning of the address")] = None
    version: Annotated[int | None, Limits(3, 5, text="3 (3.1), 4 (3.1.1) or 5")] = None
    online: bool | None = None
    listener: Annotated[str | None, Limits(text="the name of the listener")] = None
    backlog_min: Annotated[int | None, Limits(0, text="messages in flight and queued")] = None
    drops_min: Annotated[int | None, Limits(0)] = None
    idle_min_s: Annotated[float | None, Limits(0)] = None
    connected_since: Annotated[float | None, Limits(0, text="Unix time")] = None


class ClientItem(TypedDict):
    """A client; counts of messages and bytes are those of its connection."""

    id: str
    online: bool
    user: str | None
    address: str
    version: int
    listener: str
    connected_at: float | None
    disconnected_at: float | None
    keep_alive_s: int
    clean_start: bool
    session_expiry_s: int
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    dropped: int
    unread_bytes: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    idle_s: float | None
    held: Annotated[list[str], Limits(text="why it is not read from now")]


class Will(TypedDict):
    """The will of a client."""

    topic: str
    qos: int
    retain: bool
    payload_bytes: int


class Rates(TypedDict):
    """Means since the client has connected, a second."""

    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float


class WholeClient(ClientItem):
    """All about one client."""

    created_at: float
    session_expires_at: float | None
    stored: Annotated[bool, Limits(text="its session is in the store")]
    receive_maximum: int
    packet_bytes_max: Annotated[int, Limits(text="0: no limit")]
    will: Will | None
    limits: dict[str, float]
    rates: Rates


class MessageItem(TypedDict):
    """A message in flight to a client, or queued for it."""

    place: Annotated[int, Limits(text="packet id in flight, else the place in the queue")]
    topic: str
    qos: int
    retain: bool
    payload_bytes: int
    publisher: str
    received_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class KickRequest:
    """Reason and effect of a disconnect."""

    reason_code: Annotated[int, Limits(0x80, 0xFF, text="of DISCONNECT")] = ADMINISTRATIVE_ACTION
    remove_session: bool = False


class Outcome(TypedDict):
    """Result of a command for a client."""

    id: str
    done: str


class ClearedQueue(TypedDict):
    """The queue that is cleared."""

    id: str
    messages: Annotated[int, Limits(text="that waited when clearing began")]


def operations(site: Site) -> list[Operation]:
    """Return the operations of clients."""
    page = _Clients(site)
    one = ROOT + "/{id}"
    return [
        get(ROOT, page.show_all, errors=(409,)),
        get(one, page.show, errors=(409,)),
        get(one + "/subscriptions", page.subscriptions, errors=(409,)),
        get(one + "/inflight", page.inflight, errors=(409,)),
        get(one + "/queue", page.queue, errors=(409,)),
        post(one + "/kick", page.kick, errors=(409,)),
        post(one + "/clear-queue", page.clear_queue, errors=(409,)),
        post(one + "/expire", page.expire, errors=(409,)),
    ]


class _Clients:
    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def _directory(self) -> Directory:
        return self._site.broker.part(DIRECTORY)

    async def show_all(self, query: ClientsQuery) -> Page[ClientItem]:
        """List clients, connected or not.

        The list is at most a second old.
        """
        directory = self._directory
        rows = await self._site.ask(directory.clients)
        now = directory.now()
        place_of = PLACES[query.sort.removeprefix("-")]
        return await take_page(
            rows,
            query,
            place_of,
            lambda row: client_item(row, now),
            query.sort,
            _filter(query, now),
        )

    async def show(self, id: str) -> WholeClient:
        """Show all about a client."""
        directory = self._directory
        found = await self._site.ask(directory.client, id)
        if found is None:
            raise _unknown(id)
        return whole_client(found, directory.now())

    async def subscriptions(self, id: str, query: Paging) -> Page[SubscriptionItem]:
        """List the subscriptions of a client."""
        await self.show(id)
        rows = await self._site.ask(self._directory.subscriptions, id)

        def place_of(row: SubscriptionRow) -> Place:
            return "", row.filter

        return await take_page(rows, query, place_of, subscription_item, "filter")

    async def inflight(self, id: str, query: Paging) -> Page[MessageItem]:
        """List the messages in flight to a client, by packet id."""
        return self._messages(id, query, await self._site.ask(self._directory.inflight, id))

    async def queue(self, id: str, query: Paging) -> Page[MessageItem]:
        """List the messages in memory that wait for a client.

        `queued` of the client counts those that are in the store only, too.
        """
        return self._messages(id, query, await self._site.ask(self._directory.queue, id))

    def _messages(self, id: str, query: Paging, rows: Rows[MessageRow] | None) -> Page[MessageItem]:
        if rows is None:
            raise _unknown(id)
        return message_page(list(rows), query)

    async def kick(self, id: str, body: KickRequest) -> Outcome:
        """Disconnect a client, with its session if asked."""
        if body.reason_code not in KICK_REASONS:
            listed = ", ".join(str(code) for code in sorted(KICK_REASONS))
            raise bad_request(f"invalid reason_code {body.reason_code}: expected one of {listed}")
        directory = self._directory
        if not await self._site.ask(directory.kick, id, body.reason_code, body.remove_session):
            raise _unknown(id)
        return {"id": id, "done": "kicked"}

    async def clear_queue(self, id: str) -> ClearedQueue:
        """Drop all messages that wait for a client; those in flight stay."""
        count = await self._site.ask(self._directory.clear_queue, id)
        if count is None:
            raise _unknown(id)
        return {"id": id, "messages": count}

    async def expire(self, id: str) -> Outcome:
        """End the session of a client that is away."""
        directory = self._directory
        found = await self._site.ask(directory.client, id)
        if found is None:
            raise _unknown(id)
        if found.row.is_online or not await self._site.ask(directory.expire, id):
            raise Problem(409, "Refused", f"{id[:80]!r} is connected: kick it with remove_session")
        return {"id": id, "done": "expired"}


def _unknown(client_id: str) -> Problem:
    return not_found(f"there is no client {client_id[:80]!r}")


PLACES: Final[dict[str, Callable[[ClientRow], Place]]] = {
    "id": lambda row: ("", row.id),
    "backlog": lambda row: (row.inflight + row.queued, row.id),
    "drops": lambda row: (row.dropped, row.id),
    "idle": lambda row: (-row.heard_at, row.id),
    "connected_at": lambda row: (row.connected_at, row.id),
    "messages_in": lambda row: (row.messages_in, row.id),
    "messages_out": lambda row: (row.messages_out, row.id),
    "unread": lambda row: (row.unread_bytes, row.id),
}


def _filter(query: ClientsQuery, now: float) -> Callable[[ClientRow], bool] | None:
    """Return the condition of a query, made of the parts that it has; None: all."""
    tests: list[Callable[[ClientRow], bool]] = []
    for value, test in (
        (query.id, lambda row: row.id == query.id),
        (query.user, lambda row: row.user == query.user),
        (query.address, lambda row: row.address.startswith(query.address)),
        (query.version, lambda row: row.version == query.version),
        (query.online, lambda row: row.is_online is query.online),
        (query.listener, lambda row: row.listener == query.listener),
        (query.backlog_min, lambda row: row.inflight + row.queued >= query.backlog_min),
        (query.drops_min, lambda row: row.dropped >= query.drops_min),
        (query.idle_min_s, lambda row: row.is_online and now - row.heard_at >= query.idle_min_s),
        (query.connected_since, lambda row: row.connected_at >= query.connected_since),
        (query.q, _search(query.q or "")),
    ):
        if value is not None:
            tests.append(test)
    if not tests:
        return None
    return lambda row: all(test(row) for test in tests)


def _search(text: str) -> Callable[[ClientRow], bool]:
    wanted = text.casefold()

    def test(row: ClientRow) -> bool:
        return (
            wanted in row.id.casefold()
            or (row.user is not None and wanted in row.user.casefold())
            or wanted in row.address
        )

    return test


def _or_none(time: float) -> float | None:
    """Return a time; 0 and inf stand for none."""
    return time if time and math.isfinite(time) else None


def client_item(row: ClientRow, now: float) -> ClientItem:
    """Return a client as the API shows it."""
    return {
        "id": row.id,
        "online": row.is_online,
        "user": row.user,
        "address": row.address,
        "version": row.version,
        "listener": row.listener,
        "connected_at": _or_none(row.connected_at),
        "disconnected_at": _or_none(row.disconnected_at),
        "keep_alive_s": row.keep_alive_s,
        "clean_start": row.clean_start,
        "session_expiry_s": row.session_expiry_s,
        "subscriptions": row.subscriptions,
        "inflight": row.inflight,
        "queued": row.queued,
        "queued_bytes": row.queued_bytes,
        "dropped": row.dropped,
        "unread_bytes": row.unread_bytes,
        "messages_in": row.messages_in,
        "messages_out": row.messages_out,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "idle_s": max(0.0, now - row.heard_at) if row.is_online else None,
        "held": list(row.held),
    }


def whole_client(found: ClientDetail, now: float) -> WholeClient:
    """Return one client as the API shows it."""
    row = found.row
    seconds = max(1.0, now - row.connected_at)
    will = found.will
    return {
        **client_item(row, now),
        "created_at": row.created_at,
        "session_expires_at": _or_none(row.expires_at),
        "stored": row.is_stored,
        "receive_maximum": found.receive_maximum,
        "packet_bytes_max": found.packet_bytes_max,
        "will": None
        if will is None
        else {"topic": will[0], "qos": will[1], "retain": will[2], "payload_bytes": will[3]},
        "limits": found.limits,
        "rates": {
            "messages_in": row.messages_in / seconds,
            "messages_out": row.messages_out / seconds,
            "bytes_in": row.bytes_in / seconds,
            "bytes_out": row.bytes_out / seconds,
        },
    }


def message_page(rows: list[MessageRow], query: Paging) -> Page[MessageItem]:
    """Return a page of messages, which are in their order: a cursor is the last place."""
    after = -1
    if query.cursor:
        if not query.cursor.isdecimal() or len(query.cursor) > 9 or not query.cursor.isascii():
            raise bad_request("invalid cursor: pass `next` of the page before")
        after = int(query.cursor)
    start = next((n for n, row in enumerate(rows) if row.place == after), -1) + 1
    part = rows[start : start + query.limit]
    has_more = start + query.limit < len(rows)
    return Page([_message_item(row) for row in part], str(part[-1].place) if has_more else None,
                len(rows))  # fmt: skip


def _message_item(row: MessageRow) -> MessageItem:
    return {
        "place": row.place,
        "topic": row.topic,
        "qos": row.qos,
        "retain": row.retain,
        "payload_bytes": row.size,
        "publisher": row.publisher,
        "received_at": row.received_at,
        "expires_at": _or_none(row.expires_at),
    }
