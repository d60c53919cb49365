"""`/api/v1/bans`: list, add and lift bans, as JSON.

Bans are kept in `bans_file` of `[security]`, which `fleetmq ctl ban` writes too. A change is in
force before the answer is sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, cast

from mqtt_broker.http_api.request.bodies import check_keys
from mqtt_broker.http_api.request.broker_interface import BanFigures, NotSupported
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import P, Site, T
from mqtt_broker.http_api.request.operations import Operation, delete, get, post
from mqtt_broker.http_api.request.problems import Problem, bad_request
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.protection.bans import Ban, make_ban

ROOT: Final = "/api/v1/bans"
_KEYS: Final = ("kind", "value", "for_s", "why")
_FOR_S_MAX: Final = 100 * 366 * 86_400
_WHY_CHARS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class NewBan:
    """A ban to add."""

    kind: Literal["client", "user", "address"]
    value: Annotated[str, Limits(chars_min=1, text="a client id, a user name, an address")]
    for_s: Annotated[float, Limits(0, _FOR_S_MAX, text="0: until it is lifted")] = 0.0
    why: Annotated[str, Limits(chars_max=_WHY_CHARS_MAX)] = ""


@dataclass(frozen=True, slots=True)
class WhichBan:
    """The ban to lift."""

    kind: Annotated[str, Limits(text="client, user or address")] = ""
    value: str = ""


class BanItem(TypedDict):
    """A ban in force."""

    kind: str
    value: str
    until: Annotated[float, Limits(text="Unix time; 0: until it is lifted")]
    why: str
    made_by: Annotated[str, Limits(text="hand or flapping")]
    username: NotRequired[str | None]
    address: NotRequired[str]


class BanList(TypedDict):
    """The bans in force."""

    bans: list[BanItem]


class LiftedBan(TypedDict):
    """The ban that was lifted."""

    lifted: dict[str, str]


def operations(site: Site) -> list[Operation]:
    """Return the operations of bans."""
    page = _Bans(site)
    return [
        get(ROOT, page.list),
        post(ROOT, page.add, status=201, body=NewBan, errors=(409,)),
        delete(ROOT, page.lift, errors=(404, 409)),
    ]


class _Bans:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._broker = site.broker

    async def list(self) -> BanList:
        """List the bans in force."""
        found = await self._site.ask(self._broker.bans)
        return {"bans": [_ban_json(ban) for ban in found]}

    async def add(self, body: dict[str, Any]) -> BanItem:
        """Add a ban."""
        check_keys(body, _KEYS)
        span = body.get("for_s", 0)
        if isinstance(span, bool) or not isinstance(span, int | float):
            raise bad_request(f"invalid for_s {str(span)[:80]!r}: expected a number of seconds")
        if not (math.isfinite(span) and 0 <= span <= _FOR_S_MAX):
            raise bad_request(
                f"invalid for_s {span}: expected 0 (until it is lifted) to {_FOR_S_MAX}"
            )
        why = _text(body, "why", is_needed=False)
        if len(why) > _WHY_CHARS_MAX or not why.isprintable():
            raise bad_request(f"why must have at most {_WHY_CHARS_MAX} printable characters")
        until = time.time() + span if span else 0.0
        ban = _checked(_text(body, "kind"), _text(body, "value"), until, why)
        await self._change(self._broker.ban_add, ban)
        return _ban_json(BanFigures(ban.kind, ban.value, ban.until, ban.why))

    async def lift(self, query: WhichBan) -> LiftedBan:
        """Lift a ban."""
        ban = _checked(query.kind, query.value)
        if not await self._change(self._broker.ban_lift, ban.kind, ban.value):
            raise Problem(404, "UnknownBan", f"there is no ban of {ban.kind} {ban.value!r}")
        return {"lifted": {"kind": ban.kind, "value": ban.value}}

    async def _change(self, call: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._site.ask(call, *args, **kwargs)
        except FileError as error:  # the file was edited and is invalid: it is not overwritten
            raise NotSupported(str(error)) from None


def _text(body: dict[str, Any], key: str, *, is_needed: bool = True) -> str:
    found = body.get(key, "")
    if not isinstance(found, str):
        raise bad_request(f"{key} is not a string")
    if is_needed and not found:
        raise bad_request(f"{key} is missing")
    try:
        found.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise bad_request(f"{key} is not valid Unicode") from None
    return found


def _checked(kind: str, value: str, until: float = 0.0, why: str = "") -> Ban:
    try:
        return make_ban(kind, value, until, why)
    except FileError as error:
        raise bad_request(str(error)) from None


def _ban_json(ban: BanFigures) -> BanItem:
    found = asdict(ban)
    if ban.made_by == "hand":
        del found["username"], found["address"]
    return cast(BanItem, found)
