"""Streams read over HTTP, and connections that break: nothing is lost, repeated, or made up."""

from __future__ import annotations

import random
import re
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest

from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.remote import http_client as connection_module
from mqtt_broker.streams.remote.http_client import HttpClient, Rejected, Unreachable
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource
from tests.http_api.brokers import LogBroker, Serving
from tests.streams.logs import NAME
from tests.streams.remotes import PATIENCE_S, TOKEN, drain, fill, opened


def _is_whole(request: bytes) -> bool:
    head, found, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return bool(found) and len(body) >= (int(length[1]) if length else 0)


class Between:
    """Stands before a server, and does to its answers what networks do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.breaks: Iterator[tuple[str, int]] = iter(())
        self.connections = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._port = 0
        with socket.create_connection(self._listening.getsockname()):
            self._thread.join(PATIENCE_S)
        self._listening.close()

    def _run(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if not self._port:
                near.close()
                return
            self.connections += 1
            with near:
                near.settimeout(PATIENCE_S)
                self._serve(near)

    def _serve(self, near: socket.socket) -> None:
        how, after = next(self.breaks, ("", 0))
        if how == "refuses":
            return
        with socket.create_connection(("127.0.0.1", self._port)) as far:
            request = b""
            while not _is_whole(request):
                part = near.recv(65_536)
                if not part:
                    return
                request += part
            far.sendall(request.replace(b"\r\nAccept:", b"\r\nConnection: close\r\nAccept:"))
            answer = b""
            while part := far.recv(65_536):
                answer += part
        if how == "cuts":
            answer = answer[:after]
        elif how == "flips":
            body = answer.index(b"\r\n\r\n") + 4
            at = body + after % max(1, len(answer) - body)
            answer = answer[:at] + bytes([answer[at] ^ 0x55]) + answer[at + 1 :]
        elif how == "busy":
            answer = b"HTTP/1.1 503 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        near.sendall(answer)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(connection_module, "PAUSE_S_MAX", 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_repeated_by_a_bad_network(
    broker: LogBroker, http: Serving, seed: int
) -> None:
    broker.create(segment_bytes=16 << 10)
    sent = fill(broker, 100)
    chance = random.Random(seed)

    def breaks() -> Iterator[tuple[str, int]]:
        while True:
            how = chance.choice(("refuses", "cuts", "flips", "busy", "", "", ""))
            # A second flip of the same batch would be damage over there.
            yield how, chance.randrange(1, 5_000)
            yield "", 0

    with opened(http) as source, Between(http.port) as between:
        source.address = (between.url, *source.address[1:])
        with RemoteReader(source, 0, 0) as reader:
            between.breaks = breaks()
            found = drain(reader, 4_000)
    assert [record.payload for record in found] == sent
    assert [record.offset for record in found] == list(range(1_000))


@pytest.mark.usefixtures("quick")
def test_patience_ends(broker: LogBroker, http: Serving) -> None:
    broker.create()
    with opened(http, patience_s=0.2) as source, Between(http.port) as between:
        source.address = (between.url, *source.address[1:])
        with RemoteReader(source, 0, 0) as reader:
            between.breaks = iter([("refuses", 0)] * 10_000)
            before = between.connections
            with pytest.raises(Unreachable):
                reader.read()
            assert 3 < between.connections - before < 500


def test_what_is_no_broker_is_told(broker: LogBroker) -> None:
    for answer in (b"hello", b"", b"[]", b'{"settings": 1}', b'{"settings": {}, "schema": 1}'):
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def serve(listening: socket.socket = listening, answer: bytes = answer) -> None:
                near, _ = listening.accept()
                with near:
                    near.recv(65_536)
                    near.sendall(
                        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
                        % (len(answer), answer)
                    )

            thread = threading.Thread(target=serve)
            thread.start()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(StreamError, match="the server is not a FleetMQ broker"):
                RemoteSource(url, NAME)
            thread.join(PATIENCE_S)


def test_a_restarted_server_is_waited_for(broker: LogBroker) -> None:
    """Killed and started again under a reader, over and over."""
    broker.create(segment_bytes=16 << 10)
    sent = fill(broker, 200, rows=5)
    with Serving(broker, broker.root, TOKEN) as http:
        port = http.port
        source = opened(http)
        reader = RemoteReader(source, 0, 0)
        found = [record for batch in reader.read(4_000) for record in records(batch)]
    is_over = threading.Event()

    def restart() -> None:
        while not is_over.is_set():
            with Serving(broker, broker.root, TOKEN, port):
                is_over.wait(0.15)

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        with source, reader:
            found += drain(reader, 1_000)
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
    assert [record.payload for record in found] == sent


def test_an_idle_connection_that_was_closed_is_no_failure(broker: LogBroker) -> None:
    broker.create()
    fill(broker, 1)
    with (
        Serving(broker, broker.root, idle_s=0.05) as http,
        RemoteSource(http.url, NAME, patience_s=0) as source,
    ):
        for _ in range(3):
            assert source.ends().ends == (10,)
            closed = source.connection.http.sock
            assert select.select([closed], [], [], PATIENCE_S)[0]  # the server closes it


def test_a_command_is_not_sent_twice(broker: LogBroker, http: Serving) -> None:
    with Between(http.port) as between, HttpClient(between.url, TOKEN) as connection:
        between.breaks = iter([("cuts", 5)])
        with pytest.raises(Unreachable):
            connection.ask("POST", "/api/v1/streams", {"name": NAME}, tries_again=False)
        assert between.connections == 1


def test_an_answer_that_makes_no_sense_ends(broker: LogBroker, http: Serving) -> None:
    """Batches that are whole, and not those that were asked for."""
    broker.create()
    fill(broker, 5)
    with opened(http) as source, RemoteReader(source, 0, 0) as reader:
        assert reader.read(1)
        reader.offset = 40
        get = source.get

        def other(connection: HttpClient, path: str, query: Any, wait_s: float = 0) -> Any:
            return get(connection, path, {**query, "offset": 0}, wait_s)

        source.get = other  # type: ignore[method-assign]
        with pytest.raises(Rejected, match="it begins with offset 0, not 40"):
            reader.read(1)
