"""`/api/v1/tokens`: names and roles of the tokens in force; never the tokens."""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

from mqtt_broker.http_api.request.access import ADMIN, ROLE_NAMES
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.paging import Page, Paging, take_page

ROOT: Final = "/api/v1/tokens"


class TokenItem(TypedDict):
    """A token, without what is secret."""

    name: str
    role: Annotated[str, Limits(text="viewer, operator or admin")]


def operations(site: Site) -> list[Operation]:
    """Return the operation of tokens."""

    async def show(query: Paging) -> Page[TokenItem]:
        """List the tokens of the API."""
        found: list[TokenItem] = [
            {"name": token.name, "role": ROLE_NAMES[token.role]} for token in site.access.tokens()
        ]
        return await take_page(
            found, query, lambda item: ("", item["name"]), lambda item: item, "name"
        )

    return [get(ROOT, show, role=ADMIN)]
