"""Middleware of all requests: who makes them, from which site, how often; errors as JSON.

Errors are problem documents (`problems`). An unexpected exception is `InternalError`: its
traceback goes to the broker's log and nowhere else. A token is compared in constant time, and is
never repeated in an answer or a log.

A web page of another site must not reach the broker through a browser on this machine. So
requests with another Origin are refused, a server without a token that listens on loopback
answers only to localhost and to addresses, and a body has to be application/json, which a browser
sends to another site only after a preflight request that is never granted. A change with the cookie
of a session has to repeat the session's CSRF token, too.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar

from aiohttp import web
from aiohttp.typedefs import Middleware

from mqtt_broker.http_api.request import problems
from mqtt_broker.http_api.request.access import (
    ANYBODY,
    COOKIE,
    CSRF_HEADER,
    NOBODY,
    Access,
    Caller,
)
from mqtt_broker.http_api.request.broker_interface import BrokerInterface, NotSupported
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.open_streams import OpenStreams
from mqtt_broker.http_api.request.problems import Problem, encoded, unauthorized
from mqtt_broker.http_api.request.rates import Rates
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.remote.http_protocol import encode_error, status_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
P = ParamSpec("P")
T = TypeVar("T")

CALLER: Final = web.RequestKey("caller", Caller)
API: Final = "/api/"  # the paths whose requests are counted
_UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_SERVER: Final = "FleetMQ"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Site:
    """The state that all request handlers share."""

    broker: BrokerInterface
    open_streams: OpenStreams | None  # None: this broker keeps no log
    pool: Executor  # for work that waits for the disk
    limits: HttpLimits
    access: Access
    is_local: bool  # only this machine can reach the server
    log: Callable[[str], None]
    rates: Rates = field(init=False)
    login_rates: Rates = field(init=False)  # of logins that fail

    def __post_init__(self) -> None:
        limits = self.limits
        rates = Rates(limits.requests_per_s, limits.requests_burst, time.monotonic)
        object.__setattr__(self, "rates", rates)
        rates = Rates(limits.logins_per_s, limits.logins_burst, time.monotonic)
        object.__setattr__(self, "login_rates", rates)

    def streams(self) -> OpenStreams:
        """Return the streams of the data directory. Raises NotSupported when there is none."""
        if self.open_streams is None:
            raise NotSupported("this broker keeps no telemetry log: it has no data directory")
        return self.open_streams

    async def ask(self, call: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Wait for the broker's answer. A call that has started is never cancelled."""
        try:
            answer = asyncio.wrap_future(call(*args, **kwargs))
        except RuntimeError:  # the broker's loop is closed
            raise Problem(503, "Unavailable", "the broker has stopped") from None
        try:
            done, _ = await asyncio.wait((answer,), timeout=self.limits.answer_s)
        finally:
            answer.add_done_callback(_retrieve)
        if not done:
            raise Problem(
                503,
                "Unavailable",
                f"the broker did not answer within {self.limits.answer_s:g} s",
            )
        if answer.cancelled():
            raise Problem(503, "Unavailable", "the broker is stopping")
        return answer.result()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that waits for the disk; close its result when the request is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(
            self.pool, lambda: work(*args, **kwargs)
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_close)
            raise


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a late answer, so that asyncio does not log it."""
    if not answer.cancelled():
        answer.exception()


def _close(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled() and answer.exception() is None:
        close = getattr(answer.result(), "close", None)
        if close is not None:
            close()


def json_answer(found: object, status: int = 200) -> web.Response:
    """Return an answer with this JSON body."""
    return encoded(found, status, "application/json")


def guard(site: Site, open_routes: Collection[tuple[str, str]]) -> Middleware:
    """Return the middleware that checks each request and answers exceptions.

    `open_routes`: methods and paths that need no token.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_origin(request, site)
            caller = _caller(request, site)
            _check_rate(request, site, caller)
            if caller is None and not _is_open(request, open_routes):
                raise unauthorized()
            request[CALLER] = caller or NOBODY
            return await handler(request)
        except Exception as error:
            return _error_answer(request, error, site.log)

    return guarded


async def set_headers(request: web.Request, answer: web.StreamResponse) -> None:
    """Set the headers of every answer; the files of the page have a Cache-Control of their own."""
    add_headers(answer)


def add_headers(answer: web.StreamResponse) -> None:
    """Add the headers that every answer has."""
    for name, value in _HEADERS.items():
        answer.headers.setdefault(name, value)
    answer.headers["Server"] = _SERVER


def _caller(request: web.Request, site: Site) -> Caller | None:
    """Return who makes a request: by its token, else by its cookie."""
    if "Authorization" in request.headers:
        scheme, _, given = request.headers["Authorization"].partition(" ")
        found = site.access.by_token(given.strip()) if scheme.lower() == "bearer" else None
    elif cookie := request.cookies.get(COOKIE):
        found = site.access.by_cookie(cookie)
        if found is not None and request.method in _UNSAFE:
            _check_csrf(request, found)
    else:
        found = None
    return ANYBODY if found is None and site.access.is_open else found


def _check_csrf(request: web.Request, caller: Caller) -> None:
    given = request.headers.get(CSRF_HEADER, "").encode(errors="surrogateescape")
    if not hmac.compare_digest(given, caller.csrf.encode()):
        raise Problem(
            403, "Forbidden", f"{CSRF_HEADER} is missing or wrong: send `csrf` of GET /api/v1/me"
        )


def _check_rate(request: web.Request, site: Site, caller: Caller | None) -> None:
    if not request.path.startswith(API):
        return
    is_known = caller is not None and caller.key
    key = caller.key if caller is not None and is_known else f"address {request.remote}"
    wait_s = site.rates.take(key)
    if wait_s:
        raise too_many("requests", wait_s)


def too_many(what: str, wait_s: float) -> Problem:
    """Return the answer 429."""
    seconds = str(max(1, math.ceil(wait_s)))
    return Problem(
        429, "TooManyRequests", f"too many {what}: try again in {seconds} s",
        {"Retry-After": seconds},
    )  # fmt: skip


def _is_open(request: web.Request, open_routes: Collection[tuple[str, str]]) -> bool:
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    return resource is not None and (method, resource.canonical) in open_routes


def _check_origin(request: web.Request, site: Site) -> None:
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin")
    is_foreign = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    if request.method == "GET" and request.path == "/" and origin is None:
        is_foreign = False  # a link to the page; the page itself holds no data
    if is_foreign or (origin is not None and origin.partition("://")[2] != host):
        raise Problem(403, "Forbidden", "requests from other sites are refused")
    if site.is_local and site.access.is_open and host and not _is_plain(host):
        raise Problem(
            403,
            "Forbidden",
            f"invalid Host {host[:80]!r}: without a token this server answers to localhost and to "
            "addresses only",
        )
    if request.method in _UNSAFE and request.can_read_body:
        if request.content_type != "application/json":
            raise Problem(415, "UnsupportedMediaType", "the body must be application/json")


def _is_plain(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _error_answer(
    request: web.Request, error: Exception, log: Callable[[str], None]
) -> web.StreamResponse:
    headers: dict[str, str] = {}
    match error:
        case StreamError():
            answer = problems.answer(status_of(error), encode_error(error))
        case NotSupported():
            answer = _plain_answer(409, "Refused", str(error))
        case Problem():
            answer = _plain_answer(error.status, error.error, str(error))
            headers.update(error.headers)
            if error.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
        case web.HTTPException():
            texts = {
                404: f"there is nothing at {request.path}",
                405: f"{request.path} does not support {request.method}",
            }
            answer = _plain_answer(
                error.status,
                error.reason.replace(" ", ""),
                texts.get(error.status, error.reason),
            )
            if "Allow" in error.headers:
                headers["Allow"] = error.headers["Allow"]
        case ConnectionError():
            raise error  # the client has closed the connection
        case OSError():
            log(f"http: {request.method} {request.path[:200]!r}: {error.strerror or error}")
            answer = _plain_answer(500, "DiskError", error.strerror or "the disk failed")
        case _:
            log(f"http: internal error: {request.method} {request.path[:200]!r}\n" + _trace(error))
            answer = _plain_answer(500, "InternalError", "internal error; see the broker's log")
    answer.headers.update(headers)
    if request.can_read_body and not request.content.at_eof():
        answer.force_close()  # without waiting for the rest of the body
    return answer


def _plain_answer(status: int, error: str, text: str) -> web.Response:
    return problems.answer(status, {"error": error, "text": text})


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
