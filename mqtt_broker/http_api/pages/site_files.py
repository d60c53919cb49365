"""`/`, `/api/docs` and `/site/...`: the pages of operators and of the API, files of this package.

No other host is asked for anything.

The files are read once, compressed once, and sent with an `ETag`. They hold no secrets, so they
need no login: the page asks for one when the API does.

The Content-Security-Policy allows scripts and styles of these files alone, nothing inline, and
connections to this server and to the broker's WebSocket listeners, for the page's test client.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from aiohttp import web

from mqtt_broker.http_api.request.broker_interface import NotSupported
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operating import OPERATING
from mqtt_broker.http_api.request.problems import Problem
from mqtt_broker.http_api.request.routing import expect

ROOT: Final = Path(__file__).with_name("site")
PREFIX: Final = "/site/"
DOCS: Final = "/api/docs"
OPEN_ROUTES: Final = frozenset({("GET", "/"), ("GET", DOCS), ("GET", "/site/{name}")})  # no login
_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src {connect}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-cache",  # kept, and asked for again with If-None-Match
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9.-]{1,253}")


@dataclass(frozen=True, slots=True)
class WebSocketAddress:
    """Port and scheme of a WebSocket listener, which the page's test client may connect to."""

    port: int
    is_tls: bool


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file of the page as it is sent: plain and compressed, with its type and its tag."""

    content_type: str
    body: bytes
    gzipped: bytes
    etag: str


@cache
def site_files() -> dict[str, SiteFile]:
    """Return all files of the page by their path below `/site/`."""
    return {
        path.relative_to(ROOT).as_posix(): _read(path)
        for path in sorted(ROOT.rglob("*"))
        if path.suffix in _TYPES
    }


def _read(path: Path) -> SiteFile:
    body = path.read_bytes()
    return SiteFile(
        _TYPES[path.suffix],
        body,
        gzip.compress(body, mtime=0),
        hashlib.sha256(body).hexdigest()[:32],
    )


def policy(host: str, listeners: Iterable[WebSocketAddress] = ()) -> str:
    """Return the Content-Security-Policy of the page at this `Host`.

    A policy cannot name an IPv6 address: there the test client reaches no listener.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    connect = ["'self'"]
    if _HOST_NAME.fullmatch(name):
        connect += [f"{'wss' if one.is_tls else 'ws'}://{name}:{one.port}" for one in listeners]
    return _POLICY.format(connect=" ".join(connect))


def send_file(request: web.Request, file: SiteFile, content_policy: str) -> web.Response:
    """Answer with a file: 304 if the browser has it, compressed if it accepts that."""
    headers = {**_HEADERS, "Content-Security-Policy": content_policy, "ETag": f'"{file.etag}"'}
    if any(tag.value in (file.etag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    body = file.body
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = file.gzipped
    return web.Response(body=body, content_type=file.content_type, charset="utf-8", headers=headers)


def routes(site: Site) -> list[web.RouteDef]:
    """Return the routes of the page."""

    async def websockets() -> Sequence[WebSocketAddress]:
        """Return the WebSocket listeners there are now; none, if the broker does not answer."""
        try:
            found = await site.ask(site.broker.part(OPERATING).listeners)
        except (NotSupported, Problem):
            return ()
        return [
            WebSocketAddress(one.port, one.scheme == "wss")
            for one in found
            if one.scheme in ("ws", "wss")
        ]

    return file_routes(websockets)


def file_routes(
    websockets: Callable[[], Awaitable[Sequence[WebSocketAddress]]],
) -> list[web.RouteDef]:
    """Return the routes of the page; `websockets` are the listeners its test client may reach."""

    async def index(request: web.Request) -> web.Response:
        """Serve the page."""
        return send_file(
            request, site_files()["index.html"], policy(request.host, await websockets())
        )

    async def file(request: web.Request) -> web.Response:
        """Serve a file of the page."""
        found = site_files().get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return send_file(request, found, policy(request.host))

    async def docs(request: web.Request) -> web.Response:
        """Serve the documentation of the API."""
        return send_file(request, site_files()["docs.html"], policy(request.host))

    return [
        web.get(path, handler, expect_handler=expect)
        for path, handler in (("/", index), (DOCS, docs), (PREFIX + "{name:.+}", file))
    ]
