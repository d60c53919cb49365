"""The server itself: it starts, ends, keeps its limits, and lets nobody in who may not."""

from __future__ import annotations

import gzip
import logging
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import pytest

from mqtt_broker.http_api.http_server import HttpServer, HttpServerError
from mqtt_broker.http_api.request.broker_interface import Snapshot
from mqtt_broker.http_api.request.http_limits import HttpLimits
from tests.http_api.brokers import BASE, PATIENCE_S, LogBroker, Serving

TOKEN: Final = "hush-hush-4711"


def raw(http: Serving) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", http.port))
    found.settimeout(PATIENCE_S)
    return found


def rest(sock: socket.socket) -> bytes:
    data = b""
    try:
        while part := sock.recv(65_536):
            data += part
    except ConnectionResetError:
        pass
    return data


# Start and stop.


def test_it_answers_while_it_is_still_starting(broker: LogBroker) -> None:
    server = HttpServer("127.0.0.1", 0, broker, "", broker.root, print)
    host, port = server.start()
    try:
        assert host == "127.0.0.1"
        with socket.create_connection((host, port)) as near:  # the backlog takes it at once
            near.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            near.settimeout(PATIENCE_S)
            assert rest(near).startswith(b"HTTP/1.0 200 OK")
    finally:
        assert server.stop(PATIENCE_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))


def test_stopping_before_it_has_started(broker: LogBroker) -> None:
    server = HttpServer("127.0.0.1", 0, broker, "", broker.root, print)
    server.start()
    assert server.stop(PATIENCE_S)
    assert HttpServer("127.0.0.1", 0, broker, "", broker.root, print).stop(0.1)


def test_an_address_that_is_taken(http: Serving, broker: LogBroker) -> None:
    server = HttpServer("127.0.0.1", http.port, broker, "", broker.root, print)
    with pytest.raises(HttpServerError) as caught:
        server.start()
    assert str(caught.value) == (
        f"cannot listen for HTTP on 127.0.0.1:{http.port}: Address already in use; "
        "choose another address (http, --http HOST:PORT), or off"
    )
    assert server.stop(0.1)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "192.0.2.1", "a b"])
def test_an_address_that_is_none(broker: LogBroker, host: str) -> None:
    with pytest.raises(HttpServerError, match="cannot listen for HTTP on "):
        HttpServer(host, 0, broker, "", None, print).start()


def test_ipv6(broker: LogBroker) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with (
        Serving(broker, broker.root, host="::1") as http,
        socket.create_connection(("::1", http.port)) as near,
    ):
        near.settimeout(PATIENCE_S)
        near.sendall(
            b"GET /streams HTTP/1.1\r\nHost: [::1]:%d\r\nConnection: close\r\n\r\n" % http.port
        )
        assert rest(near).startswith(b"HTTP/1.1 200 OK")


def test_it_stops_while_clients_wait_and_read(broker: LogBroker) -> None:
    broker.put(b"x" * 5_000_000)
    with ExitStack() as stack, Serving(broker, broker.root) as http:
        for path in (b"/streams/telemetry/p1?offset=0&wait_s=30", b"/healthz"):
            near = stack.enter_context(raw(http))
            near.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        for partition in range(4):  # one of them sends more than sockets hold
            near = stack.enter_context(raw(http))
            near.sendall(
                b"GET /streams/telemetry/p%d?offset=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
                % partition
            )
            assert near.recv(12).startswith(b"HTTP/1.1 20")
    assert http.lines == []  # and it has stopped in time, or the block had not ended


def test_importing_the_server_imports_no_aiohttp() -> None:
    code = (
        "import sys; import mqtt_broker.http_api.http_server, mqtt_broker.http_api.snapshot;"
        "assert not {'aiohttp', 'prometheus_client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Who may ask.


@pytest.fixture
def guarded(broker: LogBroker) -> Iterator[Serving]:
    with Serving(broker, broker.root, TOKEN) as serving:
        yield serving
    assert serving.lines == []


PATHS: Final = (
    "/metrics", "/streams", "/streams/telemetry", "/streams/telemetry/p0?offset=0", "/nothing",
    "/api/v1/streams", "/site", "//healthz", "/healthz/", "/HEALTHZ",
)  # fmt: skip


def test_a_token_is_wanted_everywhere_but_for_health(guarded: Serving) -> None:
    assert guarded.ask("GET", "/healthz", headers={"Authorization": ""}).status == 200
    for path in PATHS:
        for given in ("", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN,
                      f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}",
                      "Bearer \xff\xfe"):  # fmt: skip
            for method in ("GET", "POST", "DELETE", "HEAD"):
                found = guarded.ask(method, path, headers={"Authorization": given})
                assert found.status == 401, (path, given)
                assert found.headers["WWW-Authenticate"] == "Bearer"
                assert TOKEN.encode() not in found.body
    for given in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
        assert guarded.get("/streams", headers={"Authorization": given}).status == 200


def test_what_cannot_be_read_is_not_logged_with_its_token(
    broker: LogBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with Serving(broker, broker.root, TOKEN) as http:
        for head in (
            b"GET / HTTP/1.1\r\nAuthorization : Bearer %b\r\n\r\n",
            b"GET / HTTP/1.1\r\nAuthorization: Bearer %b\x00\r\n\r\n",
            b"GET / HTTP/9.9\r\nAuthorization: Bearer %b\r\n\r\n",
            b"G\x01T / HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n",
            b"Authorization: Bearer %b\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: x\r\nAuthorization: Bearer %b\r\n\r\n",
            b"GET /?%b HTTP/1.1\r\nHost: a\r\nHost: b\r\nTransfer-Encoding: x\r\n\r\n",
        ):
            with raw(http) as near:
                near.sendall(head % TOKEN.encode())
                answer = rest(near)
                assert answer.startswith((b"HTTP/1.1 40", b"HTTP/1.0 40")), answer
                assert b"Traceback" not in answer
    assert http.lines == []
    printed = capfd.readouterr()
    for text in (caplog.text, printed.out, printed.err):
        assert TOKEN not in text


def test_other_sites_in_a_browser_are_not_answered(http: Serving) -> None:
    here = f"127.0.0.1:{http.port}"
    for headers, status in (
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": f"localhost:{http.port}"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": here, "Origin": f"http://{here}"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": f"evil.example:{http.port}"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example:1"}, 403),
        ({"Host": here, "Origin": "http://evil.example"}, 403),
        ({"Host": here, "Origin": "null"}, 403),
        ({"Host": here, "Origin": f"http://{here}0"}, 403),
    ):
        assert http.get("/streams", headers=headers).status == status, headers
    found = http.ask(
        "POST", "/api/v1/streams", b'{"name": "x"}', headers={"Content-Type": "text/plain"}
    )
    assert (found.status, found.json()["error"]) == (415, "UnsupportedMediaType")
    assert all("Access-Control" not in name for name in http.get("/streams").headers)


def test_with_a_token_any_name_will_do(guarded: Serving) -> None:
    assert guarded.get("/streams", headers={"Host": "broker.example"}).status == 200


# Limits.


def test_who_sends_its_request_slowly_is_closed(broker: LogBroker) -> None:
    with Serving(broker, broker.root, idle_s=0.2) as http, raw(http) as silent, raw(http) as slow:
        start = time.monotonic()

        def trickle() -> None:
            try:
                for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 10_000:
                    slow.sendall(bytes([byte]))
                    time.sleep(0.01)
            except OSError:
                pass

        thread = threading.Thread(target=trickle)
        thread.start()
        assert rest(silent) == b""
        assert rest(slow) == b""
        thread.join(PATIENCE_S)
        assert not thread.is_alive()  # it had gone on for minutes
        assert time.monotonic() - start > 0.15


def test_a_second_request_that_comes_slowly_is_closed_too(broker: LogBroker) -> None:
    with Serving(broker, broker.root, idle_s=0.2) as http, raw(http) as near:
        near.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        assert rest(near).count(b"HTTP/1.1") == 1


def test_a_body_that_comes_slowly(broker: LogBroker) -> None:
    with Serving(broker, broker.root, body_s=0.1) as http, raw(http) as near:
        near.sendall(
            b"POST /api/v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        assert b" 408 " in rest(near)


def test_a_body_that_is_too_large(broker: LogBroker) -> None:
    with Serving(broker, broker.root, body_bytes_max=1_000) as http:
        found = http.ask("POST", "/api/v1/streams", b'{"name": "%b"}' % (b"x" * 2_000))
        assert (found.status, found.json()["error"]) == (413, "TooLarge")
        with raw(http) as near:  # without saying how large
            near.sendall(
                b"POST /api/v1/streams HTTP/1.1\r\nHost: localhost\r\n"
                b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
            )
            near.sendall(b"800\r\n" + b"x" * 0x800 + b"\r\n")
            assert near.recv(12) == b"HTTP/1.1 413"


def test_a_bomb_is_not_unpacked(http: Serving) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    found = http.ask("POST", "/api/v1/streams", bomb, headers={"Content-Encoding": "gzip"})
    assert found.status in (400, 413, 415)


def test_heads_that_are_too_large(http: Serving) -> None:
    for head in (
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
    ):
        with raw(http) as near:
            try:
                near.sendall(head)
            except OSError:
                continue
            assert rest(near).startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


def test_too_many_connections(broker: LogBroker) -> None:
    with Serving(broker, broker.root, connections_max=10) as http, ExitStack() as stack:
        kept = [http.connect() for _ in range(10)]
        for one in kept:
            stack.callback(one.close)
            assert http.get("/healthz", over=one).status == 200
        with raw(http) as near:
            answer = rest(near)
        assert answer.startswith(b"HTTP/1.1 503 ")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(body) in head
        kept[0].close()
        for _ in range(1_000):  # its place is free as soon as the server has seen it
            if http.get("/healthz").status == 200:
                break
        assert http.get("/healthz", over=kept[1]).status == 200


def test_who_does_not_read_is_cut_off(broker: LogBroker) -> None:
    broker.put(b"x" * 6_000_000)
    with Serving(broker, broker.root, send_s=0.2, send_bytes_per_s_min=1 << 30) as http:
        partition = next(n for n in range(4) if http.get(f"/streams/telemetry/p{n}?offset=0").body)
        with socket.socket() as near:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            near.settimeout(PATIENCE_S)
            near.connect(("127.0.0.1", http.port))
            near.sendall(
                b"GET /streams/telemetry/p%d?offset=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
                % partition
            )
            time.sleep(0.5)  # the server has 0.2 s
            assert len(rest(near)) < 6_000_000
        assert http.get("/healthz").status == 200
    assert http.lines == []


def test_who_asks_and_never_reads_is_cut_off(broker: LogBroker) -> None:
    with (
        Serving(broker, broker.root, connections_max=1, send_s=0.1) as http,
        socket.socket() as near,
    ):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        near.connect(("127.0.0.1", http.port))
        ask = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        near.sendall(ask * 100)  # more than the system keeps for it
        deadline = time.monotonic() + PATIENCE_S  # its place is free when it is cut off
        while http.get("/healthz").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert http.lines == []


def test_pipelined_requests_are_answered_in_order(http: Serving) -> None:
    with raw(http) as near:
        near.sendall(
            b"GET /streams/x HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50
            + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answer = rest(near)
    assert answer.count(b"HTTP/1.1 404") == 50
    assert answer.rstrip().endswith(b'{"status": "ok"}')


# A broker that does not answer, or wrongly.


class Odd(LogBroker):
    """Takes snapshots as a test says."""

    answer: Any = None

    def snapshot(self) -> Future[Snapshot]:
        if isinstance(self.answer, Exception):
            raise self.answer
        future: Future[Snapshot] = Future()
        if isinstance(self.answer, Snapshot):
            future.set_result(self.answer)
        elif self.answer == "cancelled":
            future.cancel()
        elif self.answer == "fails":
            future.set_exception(ZeroDivisionError("hidden words"))
        self.waiting = future
        return future


@pytest.fixture
def odd(broker: LogBroker) -> LogBroker:
    broker.__class__ = Odd
    return broker


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "the broker did not answer within 0.1 s"),
        ("cancelled", "the broker is stopping"),
        (RuntimeError("Event loop is closed"), "the broker has stopped"),
    ],
)
def test_a_broker_that_does_not_answer(odd: Odd, answer: object, why: str) -> None:
    odd.answer = answer
    with Serving(odd, odd.root, answer_s=0.1) as http:
        found = http.get("/readyz")
        assert (found.status, found.json()) == (503, {"status": "failing", "why": why})
        for path in ("/metrics", "/api/v1/streams"):
            found = http.get(path)
            assert (found.status, found.json()["error"]) == (503, "Unavailable")
            assert found.json()["text"] == found.json()["detail"] == why
        assert http.get("/streams/telemetry").status == 200  # which needs no broker
        if answer is None:
            odd.waiting.set_result(BASE)  # too late, and no harm
    assert http.lines == []


def test_a_mistake_of_ours_stays_in_the_log(odd: Odd) -> None:
    odd.answer = "fails"
    with Serving(odd, odd.root) as http:
        found = http.get("/metrics")
        assert found.status == 500
        assert found.json()["error"] == "InternalError"
        assert b"hidden" not in found.body and b"Traceback" not in found.body
        assert http.get("/readyz").status == 500
    assert "hidden words" in http.lines[0] and "Traceback" in http.lines[0]


@pytest.mark.parametrize("seed", range(3))
def test_anything_that_is_no_http(http: Serving, seed: int) -> None:
    """Garbage, requests with a few bytes changed, and requests that stop in the middle."""
    chance = random.Random(seed)
    good = (
        b"POST /api/v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Transfer-Encoding: chunked\r\n\r\nd\r\n{"name": "x"}\r\n0\r\n\r\n'
    )
    for _ in range(150):
        data = bytearray(good if chance.random() < 0.8 else chance.randbytes(200))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.choice((0, 10, 13, 32, 58, 255, 65))
        del data[chance.choice((len(data), chance.randrange(len(data)))) :]
        with raw(http) as near:
            near.sendall(data)
            near.shutdown(socket.SHUT_WR)
            answer = rest(near)
            assert answer == b"" or answer.startswith(b"HTTP/1."), answer
            assert b"Traceback" not in answer
    assert http.get("/healthz").status == 200


def test_many_at_once(http: Serving, broker: LogBroker) -> None:
    broker.put(*[b"%d" % n for n in range(1_000)])

    def work(number: int) -> list[int]:
        with ExitStack() as stack:
            near = http.connect()
            stack.callback(near.close)
            return [
                http.get(path, over=near).status
                for _ in range(10)
                for path in ("/healthz", "/metrics", f"/streams/telemetry/p{number % 4}?offset=0")
            ]

    with ThreadPoolExecutor(16) as pool:
        for statuses in pool.map(work, range(64)):
            assert set(statuses) <= {200, 204}


def test_limits_are_sane() -> None:
    limits = HttpLimits()
    assert limits.line_bytes_max > 256 * 45  # offsets of 256 partitions in a query string
