"""`/api/v1/sessions`: the state that outlives connections, of connected and absent clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypedDict

from mqtt_broker.core.interfaces.rows import ClientRow
from mqtt_broker.http_api.request.directory_interface import DIRECTORY
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.paging import Page, Paging, Place, take_page

ROOT: Final = "/api/v1/sessions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsQuery(Paging):
    """Which sessions, and in which order."""

    sort: Literal[
        "id", "-id", "backlog", "-backlog", "created_at", "-created_at", "expires_at", "-expires_at"
    ] = "id"
    q: Annotated[str | None, Limits(text="part of the client id or the user")] = None
    online: bool | None = None
    stored: Annotated[bool | None, Limits(text="in the store")] = None


class SessionItem(TypedDict):
    """A session."""

    id: str
    user: str | None
    online: bool
    stored: bool
    created_at: float
    disconnected_at: float | None
    expires_at: Annotated[float | None, Limits(text="null: connected, or it never expires")]
    session_expiry_s: int
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    dropped: int


PLACES: Final[dict[str, Callable[[ClientRow], Place]]] = {
    "id": lambda row: ("", row.id),
    "backlog": lambda row: (row.inflight + row.queued, row.id),
    "created_at": lambda row: (row.created_at, row.id),
    "expires_at": lambda row: (_end_of(row), row.id),
}
_FAR: Final = 1e15  # later than every time


def _end_of(row: ClientRow) -> float:
    return row.expires_at if row.expires_at and math.isfinite(row.expires_at) else _FAR


def operations(site: Site) -> list[Operation]:
    """Return the operation of sessions."""

    async def show(query: SessionsQuery) -> Page[SessionItem]:
        """List sessions, of connected and absent clients."""
        rows = await site.ask(site.broker.part(DIRECTORY).clients)
        place_of = PLACES[query.sort.removeprefix("-")]
        return await take_page(rows, query, place_of, session_item, query.sort, _filter(query))

    return [get(ROOT, show, errors=(409,))]


def _filter(query: SessionsQuery) -> Callable[[ClientRow], bool] | None:
    part = None if query.q is None else query.q.casefold()

    def test(row: ClientRow) -> bool:
        return (
            (query.online is None or row.is_online is query.online)
            and (query.stored is None or row.is_stored is query.stored)
            and (part is None or part in row.id.casefold() or part in (row.user or "").casefold())
        )

    return test


def session_item(row: ClientRow) -> SessionItem:
    """Return a session as the API shows it."""
    end = _end_of(row)
    return {
        "id": row.id,
        "user": row.user,
        "online": row.is_online,
        "stored": row.is_stored,
        "created_at": row.created_at,
        "disconnected_at": row.disconnected_at or None,
        "expires_at": None if end == _FAR else end,
        "session_expiry_s": row.session_expiry_s,
        "subscriptions": row.subscriptions,
        "inflight": row.inflight,
        "queued": row.queued,
        "queued_bytes": row.queued_bytes,
        "dropped": row.dropped,
    }
