"""What is answered before a broker is ready, while it is, and while it stops."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.http_api import address_file
from mqtt_broker.http_api.acceptor import Acceptor
from mqtt_broker.http_api.http_server import HttpServer
from mqtt_broker.http_api.request.broker_interface import StoreFigures, WatchFigures
from mqtt_broker.http_api.request.http_limits import HttpLimits
from tests.http_api.brokers import BASE, PATIENCE_S, LogBroker
from tests.server.broker_process import Process

# The broker says where HTTP is as soon as the port is open, and is held up in its store until
# there is a file.
HELD_UP: Final = """
import os, time
from mqtt_broker.http_api.acceptor import Acceptor
from mqtt_broker.http_api.http_server import HttpServer
from sessions.store.store import Store
begin, read = HttpServer.start, Store.snapshot
def start(self):
    host, port = begin(self)
    print(f"{host}:{port}", flush=True)
    return host, port
def snapshot(self):
    while not os.path.exists(FLAG):
        time.sleep(0.01)
    return read(self)
HttpServer.start, Store.snapshot = start, snapshot
"""


def ask(port: int, path: str, method: str = "GET") -> tuple[int, Any, http.client.HTTPMessage]:
    """Ask over a connection of its own, as probes do."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request(method, path)
        reply = connection.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if text else None, reply.headers


def ask_if_in_time(port: int, path: str) -> tuple[int, Any, http.client.HTTPMessage] | None:
    """Return None if the hand-over came between connecting and asking, half a second apart."""
    try:
        return ask(port, path)
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return None


@contextmanager
def starting(
    root: Path | None = None, limits: HttpLimits | None = None
) -> Iterator[tuple[HttpServer, int]]:
    server = HttpServer("127.0.0.1", 0, None, "secret", root, print, limits)
    _, port = server.start()
    try:
        yield server, port
    finally:
        assert server.stop(PATIENCE_S)


def test_every_path_says_that_the_broker_starts() -> None:
    with starting() as (server, port):
        server.say("reading the state")
        why = "the broker is starting: reading the state"
        assert ask(port, "/healthz")[:2] == (200, {"status": "starting", "why": why})
        status, body, headers = ask(port, "/readyz")
        assert (status, body) == (503, {"status": "starting", "why": why})
        assert headers["Retry-After"] == "1" and headers["Connection"] == "close"
        for path in ("/", "/metrics", "/api/v1/clients", "/api/v1/nothing?x=1", "/x/../y"):
            status, body, headers = ask(port, path)
            assert (status, body["status"], body["detail"]) == (503, 503, why), path
            assert body["error"] == "Starting" and body["type"] == "/api/docs#errors-Starting"
            assert headers.get_content_type() == "application/problem+json"
            assert headers["Retry-After"] == "1"
        assert ask(port, "/api/v1/reload", "POST")[0] == 503
        assert ask(port, "/readyz", "HEAD")[:2] == (503, None)


def test_the_broker_takes_over_when_it_is_ready(broker: LogBroker) -> None:
    with starting(broker.root) as (server, port):
        assert ask(port, "/readyz")[0] == 503
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as waits:
            waits.connect()  # and says nothing before the broker is there
            server.serve(broker)
            assert ask(port, "/readyz")[:2] == (200, {"status": "ok"})
        assert ask(port, "/api/v1/streams")[0] == 401  # and now the token counts
        broker.base = BASE.__class__(
            version="1", build="compiled", started_at=1.0, is_stopping=True, store=StoreFigures()
        )
        stops = {"status": "failing", "why": "the broker is stopping"}
        assert ask(port, "/readyz")[:2] == (503, stops)
        assert ask(port, "/healthz")[:2] == (200, {"status": "ok"})


def test_who_connects_after_the_start_is_not_told_that_it_goes_on(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve` returns when the thread has ceased to accept connections for the start."""
    closed: list[Acceptor] = []
    close = Acceptor.close

    def note(self: Acceptor) -> None:
        close(self)
        closed.append(self)

    monkeypatch.setattr(Acceptor, "close", note)
    with starting(broker.root) as (server, port):
        assert ask(port, "/readyz")[0] == 503
        server.serve(broker)
        assert len(closed) == 1
        assert ask(port, "/readyz")[0] == 200


def test_who_connected_before_the_hand_over_may_ask_after_it(broker: LogBroker) -> None:
    with starting(broker.root, HttpLimits(hand_over_s=PATIENCE_S)) as (server, port):
        assert ask(port, "/readyz")[0] == 503
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as late:
            late.connect()
            server.serve(broker)
            late.request("GET", "/readyz")
            assert late.getresponse().status == 503
        assert ask(port, "/readyz")[0] == 200


def test_a_quick_start_is_never_seen(broker: LogBroker) -> None:
    with starting(broker.root) as (server, port):
        server.serve(broker)
        assert ask(port, "/readyz")[0] == 200


def test_a_start_that_fails_ends_the_server() -> None:
    with starting() as (server, port):
        assert ask(port, "/healthz")[0] == 200
        assert server.stop(PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            ask(port, "/healthz")


def test_many_connections_during_the_start(broker: LogBroker) -> None:
    with starting(broker.root) as (server, port), ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(500)
        ]
        assert ask(port, "/readyz")[0] == 503
        answers: list[int] = []
        askers = [
            threading.Thread(target=lambda: answers.append(ask(port, "/api/v1/clients")[0]))
            for _ in range(50)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(PATIENCE_S)
        assert answers == [503] * 50
        server.serve(broker)  # those who said nothing are sent away
        assert ask(port, "/readyz")[0] == 200
        for sock in silent:
            sock.settimeout(PATIENCE_S)
            assert sock.recv(1) == b""


def test_only_what_a_restart_cures_is_deadly(broker: LogBroker) -> None:
    with starting(broker.root) as (server, port):
        server.serve(broker)
        broker.watched = WatchFigures(12.0, 0.0, ("publishes wait",))
        assert ask(port, "/healthz")[0] == 200  # the store may come back by itself
        assert ask(port, "/readyz")[:2] == (503, {"status": "failing", "why": "publishes wait"})
        for watched in (
            WatchFigures(12.0, 0.0, ("a thread has ended",), needs_restart=True),
            WatchFigures(0.0, 9.0, ("the loop is late",), is_loop_late=True),
        ):
            broker.watched = watched
            why = {"status": "failing", "why": watched.why[0]}
            assert ask(port, "/healthz")[:2] == ask(port, "/readyz")[:2] == (503, why)


def held_up(tmp_path: Path) -> Process:
    return Process(
        "--port", "0", "--http", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"),
        env={"FLEETMQ_DURABILITY": "commit"},
        before=HELD_UP.replace("FLAG", repr(str(tmp_path / "go"))),
    )  # fmt: skip


def test_a_process_whose_store_is_slow(tmp_path: Path) -> None:
    with held_up(tmp_path) as process:
        port = process.addresses[0][1]
        assert ask(port, "/healthz")[0] == 200
        while not (found := ask(port, "/readyz"))[1]["why"].endswith("the state"):
            pass
        why = "the broker is starting: reading the state"
        assert found[:2] == (503, {"status": "starting", "why": why})
        assert not (tmp_path / "data" / address_file.FILE).exists()
        (tmp_path / "go").touch()
        while (ready := ask_if_in_time(port, "/readyz")) is None or ready[0] != 200:
            pass
        assert ready[1] == {"status": "ok"}
        assert address_file.read(tmp_path / "data") == f"http://127.0.0.1:{port}"
        process.end()
    assert not (tmp_path / "data" / address_file.FILE).exists()


def test_a_signal_ends_a_start_that_is_held_up(tmp_path: Path) -> None:
    with held_up(tmp_path) as process:
        assert ask(process.addresses[0][1], "/readyz")[0] == 503
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(PATIENCE_S) == 143


def test_a_second_broker_leaves_the_address_of_the_first(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    env = {"FLEETMQ_DURABILITY": "commit", "FLEETMQ_HTTP": "127.0.0.1:0"}
    with Process("--port", "0", "--data-dir", data_dir, env=env) as process:
        before = address_file.read(tmp_path / "data")
        with pytest.raises(AssertionError, match="did not start"):
            Process("--port", "0", "--data-dir", data_dir, env=env).__enter__()
        assert address_file.read(tmp_path / "data") == before
        with urllib.request.urlopen(f"{before}/readyz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        process.end()
