"""`/api/v1/subscriptions`: who is subscribed to what, and who would get a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypedDict

from mqtt_broker.core.interfaces.rows import MatchRow, SubscriptionRow
from mqtt_broker.http_api.request.directory_interface import DIRECTORY
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.paging import Page, Paging, take_page
from mqtt_broker.http_api.request.problems import bad_request
from mqtt_broker.topics.names import name_problem

ROOT: Final = "/api/v1/subscriptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionsQuery(Paging):
    """Which subscriptions."""

    client: Annotated[str | None, Limits(text="the client id")] = None
    filter: Annotated[str | None, Limits(text="the Topic Filter as it was subscribed to")] = None
    q: Annotated[str | None, Limits(text="part of the filter or the client id")] = None
    shared: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchQuery(Paging):
    """The topic to match."""

    topic: Annotated[str, Limits(chars_min=1, chars_max=65_535)]


class SubscriptionItem(TypedDict):
    """A subscription."""

    client: str
    filter: str
    qos: int
    group: Annotated[str | None, Limits(text="the share name of a shared subscription")]
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: Annotated[int, Limits(text="0: none")]
    online: bool


class MatchItem(TypedDict):
    """A subscription that a topic matches."""

    client: str
    filter: str
    qos: int
    group: Annotated[str | None, Limits(text="of its members, one gets each message")]
    online: bool
    permitted: Annotated[bool, Limits(text="by the rules as they are now")]


def operations(site: Site) -> list[Operation]:
    """Return the operations of subscriptions."""
    page = _Subscriptions(site)
    return [
        get(ROOT, page.show_all, errors=(409,)),
        get(ROOT + "/match", page.match, errors=(409,)),
    ]


class _Subscriptions:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def show_all(self, query: SubscriptionsQuery) -> Page[SubscriptionItem]:
        """List subscriptions, of all clients or of one."""
        directory = self._site.broker.part(DIRECTORY)
        rows = await self._site.ask(directory.subscriptions, query.client)
        return await take_page(
            rows,
            query,
            lambda row: (row.filter, row.client),
            subscription_item,
            "filter",
            _filter(query),
        )

    async def match(self, query: MatchQuery) -> Page[MatchItem]:
        """List the subscriptions that would get a message of a topic."""
        if problem := name_problem(query.topic):
            raise bad_request(f"invalid topic {query.topic[:80]!r}: {problem}")
        directory = self._site.broker.part(DIRECTORY)
        rows = await self._site.ask(directory.matches, query.topic)
        return await take_page(
            rows, query, lambda row: (row.client, row.filter), match_item, "client"
        )


def _filter(query: SubscriptionsQuery) -> Callable[[SubscriptionRow], bool] | None:
    if query.filter is None and query.shared is None and query.q is None:
        return None
    part = None if query.q is None else query.q.casefold()

    def test(row: SubscriptionRow) -> bool:
        return (
            (query.filter is None or row.filter == query.filter)
            and (query.shared is None or (row.group != "") is query.shared)
            and (part is None or part in row.filter.casefold() or part in row.client.casefold())
        )

    return test


def subscription_item(row: SubscriptionRow) -> SubscriptionItem:
    """Return a subscription as the API shows it."""
    return {
        "client": row.client,
        "filter": row.filter,
        "qos": row.qos,
        "group": row.group or None,
        "no_local": row.no_local,
        "retain_as_published": row.retain_as_published,
        "retain_handling": row.retain_handling,
        "identifier": row.identifier,
        "online": row.is_online,
    }


def match_item(row: MatchRow) -> MatchItem:
    """Return a subscription that matches as the API shows it."""
    return {
        "client": row.client,
        "filter": row.filter,
        "qos": row.qos,
        "group": row.group or None,
        "online": row.is_online,
        "permitted": row.is_permitted,
    }
