"""What is no HTTP, and what goes too far, is answered as all other errors are."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any, Final

import pytest

from mqtt_broker.http_api.connection import problem_of
from tests.http_api.brokers import PATIENCE_S, LogBroker, Serving

CLOSING: Final = b"Host: localhost\r\nConnection: close\r\n"
LOGIN: Final = b"POST /api/v1/login HTTP/1.1\r\nContent-Type: application/json\r\n" + CLOSING


def exchange(http: Serving, data: bytes) -> tuple[int, dict[str, str], Any]:
    with socket.create_connection(("127.0.0.1", http.port), PATIENCE_S) as near:
        near.sendall(data)
        found = b""
        while part := near.recv(65_536):
            found += part
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return int(first.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (b"\x16\x03\x01\x02\x00", 400, "BadRequest"),  # TLS
        (b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c", 400, "BadRequest"),
        (b"nonsense\r\n\r\n", 400, "BadRequest"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "BadRequest"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "BadRequest"),
        (b"GET * HTTP/1.1\r\n" + CLOSING + b"\r\n", 400, "BadRequest"),
        (b"GET /" + b"x" * 17_000 + b" HTTP/1.1\r\n" + CLOSING + b"\r\n", 400, "BadRequest"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 17_000 + b"\r\n\r\n", 400, "BadRequest"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100 + b"\r\n", 400, "BadRequest"),
        (b"GET / HTTP/1.1\r\nHost: \x00\r\n\r\n", 400, "BadRequest"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "BadRequest"),
        (b"TRACE / HTTP/1.1\r\n" + CLOSING + b"\r\n", 405, "MethodNotAllowed"),
        (b"OPTIONS * HTTP/1.1\r\n" + CLOSING + b"\r\n", 404, "NotFound"),
        (b"CONNECT x:1 HTTP/1.1\r\n" + CLOSING + b"\r\n", 404, "NotFound"),
        (b"GET /%ff HTTP/1.1\r\n" + CLOSING + b"\r\n", 404, "NotFound"),
        (LOGIN + b"Content-Length: x\r\n\r\n", 400, "BadRequest"),
        (LOGIN + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "BadRequest"),
        (LOGIN + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "BadRequest"),
        (LOGIN + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 400, "BadRequest"),
        (LOGIN + b"Expect: x\r\nContent-Length: 2\r\n\r\n{}", 417, "ExpectationFailed"),
        (b"GET /healthz HTTP/1.1\r\nExpect: x\r\n" + CLOSING + b"\r\n", 417, "ExpectationFailed"),
        (b"GET /site/x HTTP/1.1\r\nExpect: x\r\n" + CLOSING + b"\r\n", 417, "ExpectationFailed"),
    ],
)
def test_every_error_is_a_problem_document(
    http: Serving, data: bytes, status: int, error: str
) -> None:
    found, headers, body = exchange(http, data)
    assert (found, body["error"]) == (status, error)
    assert body["status"] == status and body["detail"] == body["text"] and body["title"]
    assert headers["content-type"] == "application/problem+json; charset=utf-8"
    assert headers["server"] == "fleetmq"
    assert headers["cache-control"] == "no-store"
    assert len(body["text"]) < 300
    assert http.lines == []  # it may hold a token


def test_a_body_that_is_asked_for(http: Serving) -> None:
    with socket.create_connection(("127.0.0.1", http.port), PATIENCE_S) as near:
        near.sendall(LOGIN + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert near.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        near.sendall(b"{}")
        assert near.recv(100).startswith(b"HTTP/1.1 200 ")
    old = LOGIN.replace(b"/1.1", b"/1.0")  # HTTP/1.0 has no such header
    assert exchange(http, old + b"Expect: x\r\nContent-Length: 2\r\n\r\n{}")[0] == 200


def test_too_many_connections(broker: LogBroker) -> None:
    with Serving(broker, broker.root, connections_max=3) as http, ExitStack() as stack:
        for _ in range(3):
            one = http.connect()
            stack.callback(one.close)
            assert http.get("/healthz", over=one).status == 200
        status, headers, body = exchange(http, b"")
        assert (status, body["error"], body["title"]) == (503, "Unavailable", "Service Unavailable")
        assert headers["retry-after"] == "1" and headers["server"] == "fleetmq"
        assert headers["content-type"] == "application/problem+json; charset=utf-8"


def test_mistakes_of_ours_say_nothing() -> None:
    assert "secret" not in str(problem_of(500, "secret"))
    assert problem_of(400, "a\n  b\n" + "c" * 999)["text"].startswith("the request is not valid ")
