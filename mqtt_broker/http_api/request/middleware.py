"""What every request and every answer goes through: who may ask, errors as JSON, headers.

Errors are `{"error": NAME, "text": ONE LINE}`, those of the log with their fields beside. What
we did not foresee is `InternalError`: its traceback goes to the broker's log and nowhere else.
The token is compared in constant time, and is never repeated in an answer or a log.

A browser that is open on this machine must not become a door to the broker for other sites.
So nothing is answered to another Origin, a server without a token that listens on loopback
answers to no other name, and what changes something has to come as application/json, which
other sites cannot send without being asked for permission that is never given.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from aiohttp import web
from aiohttp.typedefs import Middleware

from mqtt_broker.http_api.limits import HttpLimits
from mqtt_broker.http_api.request.broker_interface import BrokerInterface, NotSupported
from mqtt_broker.http_api.request.open_streams import OpenStreams
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.remote.http_protocol import encode_error, status_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
P = ParamSpec("P")
T = TypeVar("T")

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})  # without a token
_UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HEADERS: Final = {
    "Server": "FleetMQ",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class Problem(Exception):
    """An answer that is no 200: its status, its name and one line."""

    def __init__(self, status: int, error: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.error = error


def bad_request(text: str) -> Problem:
    return Problem(400, "BadRequest", text)


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages share."""

    commands: BrokerInterface
    shelf: OpenStreams | None  # None: this broker keeps no log
    pool: Executor  # for what waits for the disk
    limits: HttpLimits
    token: str
    is_local: bool  # nobody but this machine can reach it
    log: Callable[[str], None]

    def streams(self) -> OpenStreams:
        if self.shelf is None:
            raise NotSupported("this broker keeps no telemetry log: it has no data directory")
        return self.shelf

    async def ask(self, call: Callable[P, Future[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the broker answers. It is not cancelled: what was begun there goes on."""
        try:
            answer = asyncio.wrap_future(call(*args, **kwargs))
        except RuntimeError:  # its loop is closed
            raise Problem(503, "Unavailable", "the broker has stopped") from None
        try:
            done, _ = await asyncio.wait((answer,), timeout=self.limits.answer_s)
        finally:
            answer.add_done_callback(_take)
        if not done:
            raise Problem(
                503,
                "Unavailable",
                f"the broker did not answer within {self.limits.answer_s:g} s",
            )
        if answer.cancelled():
            raise Problem(503, "Unavailable", "the broker stops")
        return answer.result()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what waits for the disk. What nobody waits for any longer is closed."""
        running = asyncio.get_running_loop().run_in_executor(
            self.pool, lambda: work(*args, **kwargs)
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_close)
            raise


def _take(answer: asyncio.Future[Any]) -> None:
    """Look at what came too late, so that nobody is told it was never looked at."""
    if not answer.cancelled():
        answer.exception()


def _close(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled() and answer.exception() is None:
        close = getattr(answer.result(), "close", None)
        if close is not None:
            close()


def json_answer(found: object, status: int = 200) -> web.Response:
    text = json.dumps(found, ensure_ascii=False) + "\n"
    # What a client named may hold half a surrogate pair, which JSON has escapes for.
    body = text.encode(errors="backslashreplace")
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


def guard(site: Site) -> Middleware:
    token = site.token.encode()

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_origin(request, site)
            if token and request.path not in OPEN_PATHS:
                _check_token(request, token)
            return await handler(request)
        except Exception as error:
            return _error_answer(request, error, site.log)

    return guarded


async def set_headers(request: web.Request, answer: web.StreamResponse) -> None:
    """Before anything is sent."""
    answer.headers.update(_HEADERS)


def _check_token(request: web.Request, token: bytes) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    found = given.strip().encode(errors="surrogateescape")
    if scheme.lower() != "bearer" or not hmac.compare_digest(found, token):
        raise Problem(401, "Unauthorized", "the token is missing or wrong")


def _check_origin(request: web.Request, site: Site) -> None:
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin")
    is_foreign = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    if is_foreign or (origin is not None and origin.partition("://")[2] != host):
        raise Problem(403, "Forbidden", "another site may not ask")
    if site.is_local and not site.token and host and not _is_plain(host):
        raise Problem(
            403,
            "Forbidden",
            "without a token this server answers to localhost and to addresses only",
        )
    if request.method in _UNSAFE and request.can_read_body:
        if request.content_type != "application/json":
            raise Problem(415, "UnsupportedMediaType", "a body is application/json")


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
            answer = json_answer(encode_error(error), status_of(error))
        case NotSupported():
            answer = _plain_answer(409, "Refused", str(error))
        case Problem():
            answer = _plain_answer(error.status, error.error, str(error))
            if error.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
        case web.HTTPException():
            texts = {
                404: f"there is nothing at {request.path}",
                405: f"{request.method} is not for {request.path}",
            }
            answer = _plain_answer(
                error.status,
                error.reason.replace(" ", ""),
                texts.get(error.status, error.reason),
            )
            if "Allow" in error.headers:
                headers["Allow"] = error.headers["Allow"]
        case ConnectionError():
            raise error  # the client has gone: there is nobody to answer
        case OSError():
            log(f"http: {request.method} {request.path!r}: {error.strerror or error}")
            answer = _plain_answer(500, "DiskError", error.strerror or "the disk failed")
        case _:
            log(f"http: internal error: {request.method} {request.path!r}\n" + _trace(error))
            answer = _plain_answer(
                500, "InternalError", "internal error; the broker's log says more"
            )
    answer.headers.update(headers)
    if request.can_read_body and not request.content.at_eof():
        answer.force_close()  # what is left of the body is not waited for
    return answer


def _plain_answer(status: int, error: str, text: str) -> web.Response:
    return json_answer({"error": error, "text": text}, status)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
