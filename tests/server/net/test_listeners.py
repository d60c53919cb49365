"""The `[[listeners]]` of a file: what they may say, and that each is served by its own rules."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.endpoints import (
    ProxyRules,
)
from mqtt_broker.server.net.link import SocketLink
from mqtt_broker.server.net.listener import Listener
from tests.core.peers import publish, subscribe
from tests.server.broker_process import Process, refused
from tests.server.running import Running
from tests.server.transports import (
    Files,
    WebSocketRaw,
    connected,
    endpoint,
    over_tls,
    over_websocket,
)

TLS = "tls = { cert = 'c', key = 'k' }"


def read(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "f.toml"
    path.write_text(text)
    return load(str(path), {}, {})


def test_a_missing_certificate_ends_the_command(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(f"[[listeners]]\nname = 'devices'\n{TLS}\nport = 0\n")
    for option in ((), ("--check",)):
        code, _, errors = refused("--config", str(path), *option)
        assert code == 2
        assert errors.splitlines() == [
            f"fleetmq broker: {path}:4: listeners 1: tls.cert: c: No such file or directory"
        ]


def test_one_broker_many_ways_in(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = tmp_path / "f.toml"
    tls = f"tls = {{ cert = '{files.cert}', key = '{files.key}' }}"
    rows = ["", tls, "websocket = true", f"websocket = true\n{tls}", "proxy_protocol = true"]
    path.write_text("".join(f"[[listeners]]\nport = 0\n{row}\n" for row in rows))
    with Process("--config", str(path)) as broker:
        ports = [address[1] for address in broker.addresses]
        assert len(ports) == 5
        clients = [
            broker.raw(),
            over_tls(ports[1], files.ca),
            over_websocket(ports[2]),
            WebSocketRaw(over_tls(ports[3], files.ca).sock),
            broker.raw(broker.addresses[4]),
        ]
        clients[4].send(b"PROXY TCP4 198.51.100.7 203.0.113.1 4444 1883\r\n")
        for number, client in enumerate(clients):
            connected(client, f"c{number}").send(subscribe(5, "a"))
            assert client.packet()[0] == 0x90
        for number, client in enumerate(clients):
            client.send(publish("a", str(number).encode()))
            for other in clients:
                assert other.packet()[-1:] == str(number).encode()
        for client in clients:
            client.sock.close()
        broker.end()


@pytest.mark.parametrize("secure", [False, True])
def test_a_listener_that_is_full(tmp_path: Path, secure: bool) -> None:
    """Others come in by the others, and by this one when somebody has left."""
    tls = Files(tmp_path).rules() if secure else None
    with Running(endpoint(tls, max_connections=2, name="few"), endpoint()) as broker:
        first, second = broker.raw(), broker.raw()
        with broker.raw() as third:
            assert third.rest() == b""
        assert broker.refusals == {"listener full": 1}
        first.reset()
        broker.wait_until(lambda: len(broker.server.net.links) == 1)
        with broker.raw() as again:
            broker.wait_until(lambda: len(broker.server.net.links) == 2)
            again.reset()
        second.reset()
        broker.bound.pop(0)
        connected(broker.raw()).sock.close()


@pytest.mark.parametrize("prompt", [True, False])
def test_whether_small_answers_may_wait(prompt: bool) -> None:
    with Running(endpoint(tcp_nodelay=prompt)) as broker, connected(broker.raw()):
        (link,) = broker.server.net.links
        assert isinstance(link, SocketLink)
        assert bool(link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is prompt


def test_a_connect_timeout_of_its_own() -> None:
    with Running(endpoint(connect_timeout_s=0.05), connect_timeout_s=100.0) as broker:
        with broker.raw() as silent:
            assert silent.rest() == b""
        connected(broker.raw()).sock.close()


class Filter:
    """Stands in for the authenticator: refuses one address, and counts the others."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.admitted: list[str] = []

    def admit(self, peer: str) -> str:
        self.asked.append(peer)
        if peer.startswith("198.51.100.66:"):
            return "banned"
        self.admitted.append(peer)
        return ""

    def release(self, peer: str) -> None:
        self.admitted.remove(peer)


@pytest.mark.parametrize("secure", [False, True])
def test_the_filter_is_asked_before_tls_and_told_who_left(tmp_path: Path, secure: bool) -> None:
    """Behind a balancer it is asked about the client, not about the balancer."""
    files = Files(tmp_path)
    tls = files.rules() if secure else None
    connection_filter = Filter()
    with Running(endpoint(tls), endpoint(tls, proxy=ProxyRules())) as broker:
        server: Any = broker.server
        server.net.connection_filter = connection_filter
        with broker.raw():
            broker.wait_until(lambda: len(connection_filter.admitted) == 1)
            assert connection_filter.admitted[0].startswith("127.0.0.1:")
        broker.wait_until(lambda: not connection_filter.admitted)
        broker.bound.pop(0)
        for number in (66, 7):
            with broker.raw() as client:
                header = f"PROXY TCP4 198.51.100.{number} 203.0.113.1 4444 1883\r\n"
                client.send(header.encode())
                if number == 66:
                    assert client.rest() == b""
                else:
                    broker.wait_until(lambda: connection_filter.admitted == ["198.51.100.7:4444"])
        broker.wait_until(lambda: not connection_filter.admitted)
        assert len(connection_filter.asked) == 3
        assert broker.refusals["banned"] == 1
        server.net.connection_filter = None


class HalfOpen:
    """A link that fails when it is as good as open."""

    def __init__(self, link: SocketLink, failures: list[int]) -> None:
        self._link = link
        self._failures = failures
        self.abort = link.abort

    def open(self) -> None:
        self._link.open()
        self._failures.pop()
        raise ValueError("a mistake")


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_connection_that_cannot_be_made_costs_no_listener(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    make = Listener.make_link
    failures = [1, 1, 1]

    def fail(self: Listener, sock: socket.socket, address: object) -> SocketLink:
        if where == "before" and failures:
            failures.pop()
            raise OSError(24, "Too many open files")
        link = make(self, sock, address)
        return HalfOpen(link, failures) if failures else link  # type: ignore[return-value]

    monkeypatch.setattr(Listener, "make_link", fail)
    with Running() as broker:
        for _ in range(3):
            with broker.raw() as raw, contextlib.suppress(ConnectionResetError):
                assert raw.rest() == b""
        with broker.client("c"):
            assert broker.ask(lambda: len(broker.server.net.links)) == 1
            assert broker.ask(lambda: broker.server.listeners[0].state.connections) == 1
    assert len([one for one in caplog.records if one.exc_info]) == 1
