"""Middleware of all requests: check the token and the origin, answer errors as JSON.

Errors are `{"error": NAME, "text": ONE LINE}`, those of the log with further fields. An
unexpected exception is `InternalError`: its traceback goes to the broker's log and nowhere else.
The token is compared in constant time, and is never repeated in an answer or a log.

A web page of another site must not reach the broker through a browser on this machine. So
requests with another Origin are refused, a server without a token that listens on loopback
answers only to localhost and to addresses, and a body has to be application/json, which a browser
sends to another site only after a preflight request that is never granted.
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


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of what clients of the HTTP server may use."""

    connections_max: int = 1_000
    idle_s: float = 30.0  # from connect or answer to the end of the next request's headers
    line_bytes_max: int = 16 << 10  # offsets of 256 partitions fit into it
    head_fields_max: int = 64
    body_bytes_max: int = 1 << 20
    body_s: float = 10.0
    answer_s: float = 10.0  # how long the broker has to answer
    send_s: float = 30.0  # how long a client has to read the answer,
    send_bytes_per_s_min: int = 64 << 10  # extended by the size of the answer at this rate
    threads: int = 4  # requests that wait for the disk at once


class Problem(Exception):
    """An error answer: status, name and one line of text."""

    def __init__(self, status: int, error: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.error = error


def bad_request(text: str) -> Problem:
    """Return the answer 400 with this text."""
    return Problem(400, "BadRequest", text)


@dataclass(frozen=True, slots=True)
class Site:
    """The state that all request handlers share."""

    broker: BrokerInterface
    open_streams: OpenStreams | None  # None: this broker keeps no log
    pool: Executor  # for work that waits for the disk
    limits: HttpLimits
    token: str
    is_local: bool  # only this machine can reach the server
    log: Callable[[str], None]

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
    text = json.dumps(found, ensure_ascii=False) + "\n"
    # Names from clients may contain a lone surrogate: JSON escapes it, UTF-8 cannot encode it.
    body = text.encode(errors="backslashreplace")
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


def guard(site: Site) -> Middleware:
    """Return the middleware that checks each request and answers exceptions."""
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
    """Set the headers of every answer."""
    answer.headers.update(_HEADERS)


def _check_token(request: web.Request, token: bytes) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    found = given.strip().encode(errors="surrogateescape")
    if scheme.lower() != "bearer" or not hmac.compare_digest(found, token):
        raise Problem(
            401, "Unauthorized", "the token is missing or wrong: send Authorization: Bearer TOKEN"
        )


def _check_origin(request: web.Request, site: Site) -> None:
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin")
    is_foreign = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    if is_foreign or (origin is not None and origin.partition("://")[2] != host):
        raise Problem(403, "Forbidden", "requests from other sites are refused")
    if site.is_local and not site.token and host and not _is_plain(host):
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
    return json_answer({"error": error, "text": text}, status)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
