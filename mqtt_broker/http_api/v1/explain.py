"""`/api/v1/rules/explain`: which rule of the running broker decides, and how."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operating import OPERATING, Explanation
from mqtt_broker.http_api.request.operations import Operation, post
from mqtt_broker.http_api.request.problems import bad_request
from mqtt_broker.topics.names import filter_problem, is_wildcard, split_share

PATH: Final = "/api/v1/rules/explain"
_CHARS_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Question:
    """A client, and what it would do."""

    topic: Annotated[
        str, Limits(chars_min=1, chars_max=_CHARS_MAX, text="a Topic Name, or a filter")
    ]
    action: Literal["publish", "subscribe"] = "publish"
    client: Annotated[str, Limits(chars_max=_CHARS_MAX, text="the client id")] = ""
    user: Annotated[str | None, Limits(chars_max=_CHARS_MAX)] = None
    address: Annotated[str, Limits(chars_max=64, text="the client's IP address")] = ""
    roles: Annotated[list[str], Limits(items_max=100, text="beside those that the user has")] = (
        field(default_factory=list)
    )


def operations(site: Site) -> list[Operation]:
    """Return the operation of explaining."""

    async def explain(body: Question) -> Explanation:
        """Tell which rule decides whether a client may publish or subscribe.

        The running broker is asked: with its rules, and with the roles of the password file, of the
        tables and of the configuration.
        """
        _check(body)
        operating = site.broker.part(OPERATING)
        return await site.in_thread(
            operating.explain,
            body.client,
            body.user,
            body.address,
            body.action,
            body.topic,
            body.roles,
        )

    return [post(PATH, explain, role=access.VIEWER)]


def _check(body: Question) -> None:
    if body.address:
        try:
            ipaddress.ip_address(body.address)
        except ValueError:
            raise bad_request(f"invalid address {body.address!r}: expected an IP address") from None
    shared = split_share(body.topic)
    if body.action == "publish" and (is_wildcard(body.topic) or shared is not None):
        raise bad_request(
            f"invalid topic {body.topic[:80]!r}: a Topic Name has no wildcard; "
            "for a filter the action is subscribe"
        )
    if problem := filter_problem(body.topic if shared is None else shared[1]):
        raise bad_request(f"invalid topic {body.topic[:80]!r}: {problem}")
