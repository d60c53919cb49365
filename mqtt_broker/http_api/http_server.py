"""The HTTP server: a thread with an event loop of its own and a listening socket.

`start` binds the socket and returns; the thread does everything else, imports included. Until
`serve` hands it a broker, it answers that the broker is starting. Clients that connect before the
first answers wait in the socket's backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqtt_broker.http_api.acceptor import Acceptor
from mqtt_broker.http_api.request.broker_interface import BrokerInterface
from mqtt_broker.http_api.send_watch import SendWatch
from mqtt_broker.server.process.descriptors import Descriptors

if TYPE_CHECKING:
    from aiohttp import web

    from mqtt_broker.http_api.request.access import Credentials
    from mqtt_broker.http_api.request.http_limits import HttpLimits
    from mqtt_broker.http_api.request.middleware import Site
    from mqtt_broker.http_api.request.operations import Operation

_BACKLOG: Final = 512
_RETRY_S: Final = 0.5  # before a server that failed is started again
# How long a start may take without an answer. Most are quicker, and do not compete with the imports
# of this thread for the interpreter.
_QUICK_START_S: Final = 0.5
# How long the hand-over waits for the thread. It takes milliseconds, if the thread is not stuck.
_HAND_OVER_S: Final = 5.0
_ASK_STEP_S: Final = 0.01
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json; charset=utf-8\r\n"
    b"Content-Length: %d\r\nRetry-After: 1\r\nCache-Control: no-store\r\nServer: FleetMQ\r\n"
    b"Connection: close\r\n\r\n%s"
)


class HttpServerError(Exception):
    """The server cannot start; the text is one line."""


class HttpServer:
    """The HTTP server's thread. Call `start` and `stop` once each."""

    def __init__(
        self,
        host: str,
        port: int,
        broker: BrokerInterface | None,
        token: str,
        streams_root: Path | None,
        log: Callable[[str], None],
        limits: HttpLimits | None = None,
        descriptors: Descriptors | None = None,
        credentials: Callable[[], Credentials] | None = None,
    ) -> None:
        """`broker`: None if it is still starting, and `serve` will hand it over."""
        self._host = host
        self._port = port
        self._broker = broker
        self._token = token
        self._root = streams_root
        self._log = log
        self._limits = limits
        self._credentials = credentials
        self._descriptors = descriptors or Descriptors(log)
        self._socket: socket.socket | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # set while it serves
        self._next: asyncio.Event | None = None  # ends what is served now
        self._over = threading.Event()
        self._lock = threading.Lock()  # guards the three attributes above, and `_broker`
        self._handed_over = threading.Event()  # the broker is there, or will never be
        self._start_is_over = threading.Event()  # no connection is accepted to say "starting"
        self._start_is_over.set()
        self._progress = "reading files"  # of the start
        self._thread = threading.Thread(target=self._run, name="fleetmq-http", daemon=True)

    def start(self) -> tuple[str, int]:
        """Start serving and return the address that was bound. Raises HttpServerError."""
        self._socket = _bound(self._host, self._port)
        self._own_loop = asyncio.SelectorEventLoop()  # opened now: descriptors may be short later
        host, port = self._socket.getsockname()[:2]
        self._thread.start()
        return host, port

    def say(self, progress: str) -> None:
        """Note what the broker's start is at, in a few words. Any thread may call it."""
        self._progress = progress

    def serve(self, broker: BrokerInterface, descriptors: Descriptors | None = None) -> None:
        """Serve the pages of this broker, which has started.

        Whoever connects after this is not told that the broker is starting.
        """
        with self._lock:
            self._broker = broker
            self._descriptors = descriptors or self._descriptors
            self._end_now()
        self._start_is_over.wait(_HAND_OVER_S)

    def _end_now(self) -> None:
        """End what is served now, under the lock."""
        self._handed_over.set()
        if self._loop is not None and self._next is not None:
            self._loop.call_soon_threadsafe(self._next.set)

    def stop(self, timeout_s: float) -> bool:
        """Finish the answers under way and stop. Return False if that took too long."""
        with self._lock:
            self._over.set()
            self._end_now()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        said = ""
        own_loop = self._own_loop
        assert self._socket is not None and own_loop is not None
        if self._broker is None:
            self._handed_over.wait(_QUICK_START_S)
        try:
            with asyncio.Runner(loop_factory=lambda: own_loop) as runner:
                while not self._over.is_set():
                    try:
                        runner.run(self._serve_all())
                    except Exception as error:  # a bug, or no descriptors for the imports
                        if said != (said := repr(error)):
                            self._log(_failure(error))
                        self._over.wait(_RETRY_S)
                    finally:
                        with self._lock:
                            self._loop = self._next = None
        finally:
            self._socket.close()

    async def _serve_all(self) -> None:
        """Serve what there is, from now to the end."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        if self._broker is None:
            await self._serve_start()
        broker = self._broker
        if broker is not None and not self._over.is_set():
            await self._serve_broker(broker)

    async def _serve_start(self) -> None:
        """Say that the broker is starting, until `serve` or `stop`."""
        # Imported here, as all of aiohttp, so that the broker's start does not wait for it.
        from mqtt_broker.http_api.pages import starting
        from mqtt_broker.http_api.request.http_limits import HttpLimits

        application = starting.make_application(lambda: self._progress)
        limits = self._limits or HttpLimits()
        await self._serve(application, limits, is_start=True)

    async def _serve_broker(self, broker: BrokerInterface) -> None:
        from mqtt_broker.http_api.request.access import Access, credentials_of
        from mqtt_broker.http_api.request.http_limits import HttpLimits
        from mqtt_broker.http_api.request.middleware import Site
        from mqtt_broker.http_api.request.open_streams import OpenStreams

        assert self._socket is not None
        limits = self._limits or HttpLimits()
        credentials = credentials_of(self._token)
        access = Access(self._credentials or (lambda: credentials), time.time, limits.session_s)
        open_streams = OpenStreams(self._root) if self._root is not None else None
        with ThreadPoolExecutor(limits.threads, "fleetmq-http-disk") as pool:
            site = Site(
                broker,
                open_streams,
                pool,
                limits,
                access,
                _is_local(self._socket),
                self._log,
            )
            await self._serve(make_application(site), limits, is_start=False)
        if open_streams is not None:
            open_streams.close()

    async def _serve(
        self, application: web.Application, limits: HttpLimits, *, is_start: bool
    ) -> None:
        """Serve an application until `stop`; that of the start until `serve`."""
        from aiohttp import web

        from mqtt_broker.http_api.connection import Connection

        assert self._socket is not None
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {
            "access_log": None,
            "logger": _quiet_logger(self._log),
            "keepalive_timeout": limits.idle_s,
            "max_line_size": limits.line_bytes_max,
            "max_field_size": limits.line_bytes_max,
            "max_headers": limits.head_fields_max,
            "lingering_time": 2.0,
        }
        runner = web.AppRunner(
            application, shutdown_timeout=0.5, handler_cancellation=True, **options
        )

        def connect() -> asyncio.Protocol:
            assert runner.server is not None
            if len(runner.server.connections) >= limits.connections_max:
                return _Refusal()
            connection = Connection(runner.server, loop=loop, **options)
            return SendWatch(connection, limits.send_s, loop.call_later)

        await runner.setup()
        acceptor = Acceptor(
            loop,
            self._socket,
            connect,
            _Refusal,
            self._descriptors,
        )
        end = asyncio.Event()
        with self._lock:
            self._loop, self._next = loop, end
            if self._over.is_set() or (is_start and self._broker is not None):
                end.set()
            else:
                acceptor.start()
                if is_start:
                    self._start_is_over.clear()
        try:
            await end.wait()
        finally:
            acceptor.close()
            self._start_is_over.set()
            if is_start and not self._over.is_set():
                await _let_them_ask(runner.server, limits.hand_over_s)
            await runner.cleanup()
            _forget_handlers()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, ConnectionError):
            return  # a client closed the connection during the answer
        text = str(context.get("message", ""))
        if isinstance(error, BaseException):
            text += "\n" + "".join(traceback.format_exception(error)).rstrip()
        self._log(f"http: internal error: {text}")


def all_operations(site: Site) -> list[Operation]:
    """Return the operations of all pages."""
    # Not above: the broker does not wait for these imports.
    from mqtt_broker.http_api.log import ranges
    from mqtt_broker.http_api.pages import health, metrics
    from mqtt_broker.http_api.v1 import (
        backups,
        bans,
        clients,
        config,
        documents,
        explain,
        health_parts,
        listeners,
        logs,
        overview,
        publish,
        retained,
        session,
        sessions,
        stream_records,
        streams,
        subscriptions,
        tokens,
        traces,
        users,
        why,
    )

    pages = (health, metrics, session, tokens, streams, bans, backups, ranges)
    operating = (users, health_parts, config, logs, listeners, explain, why, traces)
    clients_and_messages = (overview, clients, sessions, subscriptions, retained, publish)
    all_pages = (*pages, stream_records, *clients_and_messages, *operating)
    found = [operation for page in all_pages for operation in page.operations(site)]
    return [*found, *documents.operations(found)]


def make_application(site: Site) -> web.Application:
    """Return the application with the routes of all pages."""
    from aiohttp import web

    from mqtt_broker.http_api.pages import site_files
    from mqtt_broker.http_api.request import routing
    from mqtt_broker.http_api.request.middleware import guard, set_headers

    operations = all_operations(site)
    application = web.Application(
        middlewares=[guard(site, routing.open_routes(operations) | site_files.OPEN_ROUTES)],
        client_max_size=site.limits.body_bytes_max,
    )
    application.on_response_prepare.append(set_headers)
    application.add_routes(routing.routes(site, operations))
    application.add_routes(site_files.routes(site))
    return application


async def _let_them_ask(server: web.Server | None, most_s: float) -> None:
    """Wait for those who are connected and have not asked yet. New connections wait meanwhile.

    A probe that is sent away without an answer may take the broker for dead.
    """
    assert server is not None
    loop = asyncio.get_running_loop()
    end = loop.time() + most_s
    await asyncio.sleep(_ASK_STEP_S)
    while server.connections and loop.time() < end:
        await asyncio.sleep(_ASK_STEP_S)


def _forget_handlers() -> None:
    """Let go of the application: aiohttp keeps the handlers of a process that it called last.

    With them it would keep everything that a broker has, which matters where a program runs many
    brokers one after the other.
    """
    from aiohttp import web_app

    kept = getattr(web_app, "_cached_build_middleware", None)
    if kept is not None:
        kept.cache_clear()


class _Refusal(asyncio.Protocol):
    """Answers a connection over the limit with 503 and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_refusal())
        transport.close()


@cache
def _refusal() -> bytes:
    from mqtt_broker.http_api.request import problems

    found = {"error": "Unavailable", "text": "too many connections at once"}
    body = json.dumps(problems.document(503, found)).encode() + b"\n"
    return _FULL % (len(body), body)


def _bound(host: str, port: int) -> socket.socket:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                with contextlib.suppress(OSError):
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.setblocking(False)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HttpServerError(
            f"cannot listen for HTTP on {where}: {reason}; choose another address (http, --http "
            "HOST:PORT), or off"
        ) from None
    return bound


def _is_local(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def _failure(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"http: cannot serve: {error}; trying again"
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"http: the server failed and is started again\n{trace}"


class _OursOnly(logging.Filter):
    """Drops aiohttp's messages about malformed requests, which may contain a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        from aiohttp.http_exceptions import HttpProcessingError
        from aiohttp.web import RequestPayloadError

        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | RequestPayloadError)


class _Lines(logging.Handler):
    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__()
        self._line = log

    def emit(self, record: logging.LogRecord) -> None:
        self._line("http: " + self.format(record))


def _quiet_logger(log: Callable[[str], None]) -> logging.Logger:
    """Return a logger outside the tree that passes aiohttp's messages on to the broker's log."""
    logger = logging.Logger("fleetmq.http", logging.WARNING)  # noqa: LOG001
    logger.addFilter(_OursOnly())
    logger.addHandler(_Lines(log))
    return logger
