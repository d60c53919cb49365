"""`/api/v1/bans`: list, add and lift bans, as JSON.

Bans are kept in `bans_file` of `[security]`, which `fleetmq ctl ban` writes too. A change is in
force before the answer is sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from mqtt_broker.http_api.request.bodies import Query, check_keys, read_object
from mqtt_broker.http_api.request.broker_interface import BanFigures, NotSupported
from mqtt_broker.http_api.request.middleware import P, Problem, Site, T, bad_request, json_answer
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.protection.bans import Ban, make_ban

ROOT: Final = "/api/v1/bans"
_KEYS: Final = ("kind", "value", "for_s", "why")
_FOR_S_MAX: Final = 100 * 366 * 86_400
_WHY_CHARS_MAX: Final = 256


def routes(site: Site) -> list[web.RouteDef]:
    """Return the routes of bans."""
    page = _Bans(site)
    return [
        web.get(ROOT, page.list),
        web.post(ROOT, page.add),
        web.delete(ROOT, page.lift),
    ]


class _Bans:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._broker = site.broker

    async def list(self, request: web.Request) -> web.Response:
        """List the bans in force."""
        Query(request)
        found = await self._site.ask(self._broker.bans)
        return json_answer({"bans": [_ban_json(ban) for ban in found]})

    async def add(self, request: web.Request) -> web.Response:
        """Add a ban."""
        Query(request)
        body = await read_object(request, self._site.limits)
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
        return json_answer(_ban_json(BanFigures(ban.kind, ban.value, ban.until, ban.why)), 201)

    async def lift(self, request: web.Request) -> web.Response:
        """Lift a ban."""
        query = Query(request, "kind", "value")
        ban = _checked(query.text("kind"), query.text("value"))
        if not await self._change(self._broker.ban_lift, ban.kind, ban.value):
            raise Problem(404, "UnknownBan", f"there is no ban of {ban.kind} {ban.value!r}")
        return json_answer({"lifted": {"kind": ban.kind, "value": ban.value}})

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


def _ban_json(ban: BanFigures) -> dict[str, Any]:
    found = asdict(ban)
    if ban.made_by == "hand":
        del found["username"], found["address"]
    return found
