"""Attacks on the HTTP server that became CVEs elsewhere: routes without a token, requests within
requests, paths that lead out of the log, names that a browser would run."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from aiohttp import web

from mqtt_broker.http_api import http_server
from mqtt_broker.http_api.request.middleware import Site
from tests.http_api.brokers import PATIENCE_S, LogBroker, Serving
from tests.streams.logs import NAME

OPEN_PATHS: Final = ("/api/docs", "/", "/healthz", "/readyz", "/api/v1/openapi.json")
TOKEN: Final = "a-token-of-the-operator"
KINDS: Final = (b"application/json", b"application/problem", b"text/plain")
CLOSING: Final = "Host: localhost\r\nConnection: close\r\n\r\n"
SCRIPT: Final = "<script>alert(1)</script>"


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Method and path of each route of the server that starts next."""
    found: list[tuple[str, str]] = []
    make = http_server.make_application

    def noted(site: Site) -> web.Application:
        application = make(site)
        for route in application.router.routes():
            assert route.resource is not None
            found.append((route.method, route.resource.canonical))
        return application

    monkeypatch.setattr(http_server, "make_application", noted)
    return found


@pytest.fixture
def http(routes: list[tuple[str, str]], broker: LogBroker) -> Iterator[Serving]:
    """A server that closes connections soon, so that all of an answer is known."""
    with Serving(broker, broker.root, idle_s=0.2) as serving:
        yield serving
    assert serving.lines == []


@pytest.fixture
def guarded(routes: list[tuple[str, str]], broker: LogBroker) -> Iterator[Serving]:
    with Serving(broker, broker.root, token=TOKEN, idle_s=0.2) as serving:
        serving.get("/healthz")  # by now the routes are known
        yield serving
    assert serving.lines == []


def test_every_route_wants_the_token(guarded: Serving, routes: list[tuple[str, str]]) -> None:
    """Those that come with the next page, too: they are taken from the application."""
    assert len(routes) > 15
    for method, pattern in routes:
        path = pattern.replace("{name}", NAME).replace("{partition}", "p0")
        path = re.sub(r"\{[^}]*\}", "x", path)
        for headers in ({"Authorization": ""}, {"Authorization": f"Bearer {TOKEN}x"}):
            status = guarded.ask(method, path, headers=headers).status
            if (method, path) == ("POST", "/api/v1/login"):
                assert status == 400
            elif pattern == "/site/{name}":
                assert status == 404  # all of the page's files are open; this one is not there
            else:
                assert status == (200 if path in OPEN_PATHS else 401), (method, path)


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/../metrics", "/healthz/..%2fmetrics", "/healthz%2f..%2fmetrics",
        "/healthz;/metrics", "/healthz?/metrics", "/metrics?/healthz", "/metrics#/healthz",
        "/./metrics", "//metrics",
        "/healthz%00/metrics", "/metrics/%2e%2e/healthz", "/%6detrics", "/metrics/", "\\metrics",
        "http://127.0.0.1/metrics", "http://healthz/metrics", "*",
    ],
)  # fmt: skip
def test_no_path_passes_for_an_open_one(guarded: Serving, path: str) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        answer = exchange(guarded, f"{method} {path} HTTP/1.1\r\n{CLOSING}".encode())
        assert b"fleetmq_" not in answer, (method, path)
        status = re.match(rb"HTTP/1\.1 (\d+)", answer)
        is_healthz = path.startswith("/healthz?")
        assert status is None or status[1] in (b"200",) * is_healthz + (b"400", b"401", b"405")


def exchange(http: Serving, data: bytes) -> bytes:
    """Send these bytes; return all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", http.port), PATIENCE_S) as near:
        near.sendall(data)
        found = b""
        try:
            while part := near.recv(65_536):
                found += part
        except ConnectionResetError:
            pass
        return found


INNER: Final = b"GET /api/v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED: Final = b"0\r\n\r\n" + INNER
HEADS: Final[dict[str, bytes]] = {
    "both lengths": b"Content-Length: %d\r\nTransfer-Encoding: chunked" % len(CHUNKED),
    "chunks first": b"Transfer-Encoding: chunked\r\nContent-Length: %d" % len(CHUNKED),
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d" % len(INNER),
    "a list of lengths": b"Content-Length: 0, %d" % len(INNER),
    "a signed length": b"Content-Length: +%d" % len(INNER),
    "a hexadecimal length": b"Content-Length: 0x%x" % len(INNER),
    "a length of underscores": b"Content-Length: 1_0",
    "a length with a space before the colon": b"Content-Length : 0",
    "an unknown coding": b"Transfer-Encoding: xchunked",
    "chunked and more": b"Transfer-Encoding: chunked, identity",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "a tab before the colon": b"Transfer-Encoding\t: chunked",
    "a folded line": b"X: y\r\n Transfer-Encoding: chunked",
    "a bare line feed": b"X: y\nTransfer-Encoding: chunked",
    "a carriage return alone": b"X: y\rTransfer-Encoding: chunked",
    "a null character": b"Transfer-Encoding: chun\x00ked",
    "two hosts": b"Host: 127.0.0.1",
}


@pytest.mark.parametrize("what", HEADS)
def test_a_request_within_a_request_is_not_taken(http: Serving, what: str) -> None:
    """A server in front may see one request where this one sees two, and ask no token for it."""
    body = CHUNKED if b"hunked" in HEADS[what] else INNER
    head = b"POST /api/v1/streams HTTP/1.1\r\nHost: localhost\r\n" + HEADS[what] + b"\r\n\r\n"
    answer = exchange(http, head + body)
    assert re.findall(rb"HTTP/1\.[01] (\d+)", answer) == [b"400"], answer


@pytest.mark.parametrize("size", [b"-1", b"+5", b"0x5", b"5 5", b"ffffffffffffffffff", b"", b"g"])
def test_chunks_of_a_wrong_size_end_the_request(http: Serving, size: bytes) -> None:
    head = b"POST /api/v1/streams HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    type_ = b"Content-Type: application/json\r\n\r\n"
    answer = exchange(http, head + type_ + size + b"\r\nhello\r\n0\r\n\r\n" + INNER)
    assert re.findall(rb"HTTP/1\.[01] (\d+)", answer) == [b"400"], answer


OUTSIDE: Final = (
    "..", "../outside", "..%2foutside", "%2e%2e%2foutside", "..%5coutside", "....//outside",
    "%252e%252e%252foutside", "/outside", "%2foutside", "ROOT/outside", "outside%00", "./telemetry",
    f"{NAME}/../../outside", f"{NAME}%2f..%2f..%2foutside", f"{NAME}.new", "..telemetry", "~",
    "file:%2f%2f", f"{NAME}%0a", "%00", f"{NAME}/p0/../../../outside",
)  # fmt: skip


def test_no_name_leads_out_of_the_log(http: Serving, broker: LogBroker) -> None:
    broker.put(b"in the log")
    outside = broker.root.parent / "outside"
    shutil.copytree(broker.root / NAME, outside)
    shutil.copytree(broker.root / NAME, broker.root / f"{NAME}.new")
    for text in OUTSIDE:
        name = text.replace("ROOT", quote(str(broker.root.parent), safe=""))
        for path in (
            f"/streams/{name}", f"/streams/{name}/describe", f"/streams/{name}/offsets",
            f"/streams/{name}/p0?offset=0", f"/api/v1/streams/{name}",
            f"/api/v1/streams/{name}/groups",
        ):  # fmt: skip
            answer = exchange(http, f"GET {path} HTTP/1.1\r\n{CLOSING}".encode())
            assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), (path, answer)
        before = sorted(outside.rglob("*"))
        for method, tail in (("DELETE", ""), ("POST", "/truncate"), ("PATCH", "")):
            body = {"retain_s": 5} if method == "PATCH" else {}
            assert http.ask(method, f"/api/v1/streams/{name}{tail}", body).status in (400, 404, 405)
        assert sorted(outside.rglob("*")) == before
    for name in ("..", "../outside", "a/b", "", ".", "x\x00", "x.new", str(outside), "-x", "a\n"):
        assert http.ask("POST", "/api/v1/streams", {"name": name}).status == 400, name


def test_nothing_that_a_client_names_is_a_page(
    http: Serving, broker: LogBroker, routes: list[tuple[str, str]]
) -> None:
    """Ids and names of clients come back as JSON or plain text, and a browser believes that."""
    broker.committed[SCRIPT, NAME] = broker.writing.log.stream(NAME).committed()
    broker.members[SCRIPT] = {SCRIPT: [0]}
    http.ask("POST", "/api/v1/bans", {"kind": "client", "value": SCRIPT, "why": SCRIPT})
    paths = [
        "/metrics", "/healthz", "/api/v1/bans", f"/api/v1/streams/{NAME}/groups", "/api/v1/streams",
        f"/api/v1/streams/{quote(SCRIPT, safe='')}", f"/{quote(SCRIPT)}", f"/{SCRIPT}",
        f"/streams?{quote(SCRIPT)}=1", f"/api/v1/bans?kind={quote(SCRIPT)}",
    ]  # fmt: skip
    seen = 0
    for path in paths:
        answer = exchange(http, f"GET {path} HTTP/1.1\r\n{CLOSING}".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        kind = re.search(rb"(?im)^content-type: *([a-z/-]+)", head)
        assert kind is not None and kind[1] in KINDS, head
        assert (
            b"X-Content-Type-Options: nosniff" in head and b"Server: FleetMQ\r\n" in head + b"\r\n"
        )
        seen += SCRIPT.encode() in body
    assert seen > 2  # they are really there


def test_an_address_is_no_path_of_a_file(http: Serving, tmp_path: Path) -> None:
    for path in ("/etc/passwd", "/../../../../etc/passwd", "/static/../etc/passwd", "/favicon.ico"):
        answer = exchange(http, f"GET {path} HTTP/1.1\r\n{CLOSING}".encode())
        assert answer.startswith(b"HTTP/1.1 404 ") and b"root:" not in answer
