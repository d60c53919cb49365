"""The `[[listeners]]` of a file: what they may say, and that each is served by its own rules."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.endpoints import (
    Endpoint,
    ListenerRules,
    ProxyRules,
    TlsRules,
    WebSocketRules,
)
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.link import SocketLink
from tests.core.peers import publish, subscribe
from tests.server.process import Process, refused
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


def test_everything_said(tmp_path: Path) -> None:
    config = read(
        """
        [[listeners]]
        name = "devices"
        host = "0.0.0.0"
        tls = { cert = "c", key = "k", ca = "a", crl = "r", min_version = "1.3", ciphers = "x" }
        max_connections = 5
        handshake_timeout_s = 3
        connect_timeout_s = 1.5
        tcp_nodelay = false
        [[listeners]]
        host = "::1"
        websocket = { path = "/x", origins = ["https://a"], compression = true, message_bytes_max = 9 }
        proxy_protocol = { trusted = ["192.0.2.0/24", "::1"] }
        [[listeners]]
        path = "/run/x"
        proxy_protocol = true
        websocket = true
        [[listeners]]
        host = "0.0.0.0"
        tls = { cert = "c", key = "k" }
        websocket = true
        allow_anonymous = true
        """,  # noqa: E501
        tmp_path,
    )
    tls = TlsRules("c", "k", "a", "r", "required", "1.3", "x")
    web = WebSocketRules("/x", ("https://a",), True, 9)
    proxy = ProxyRules((ipaddress.ip_network("192.0.2.0/24"), ipaddress.ip_network("::1")))
    assert config.endpoints == (
        Endpoint(
            "0.0.0.0",
            8883,
            rules=ListenerRules("devices", tls, None, None, 5, 3.0, 1.5, tcp_nodelay=False),
        ),
        Endpoint("::1", 8083, rules=ListenerRules(websocket=web, proxy=proxy)),
        Endpoint(
            path="/run/x", rules=ListenerRules(websocket=WebSocketRules(), proxy=ProxyRules())
        ),
        Endpoint(
            "0.0.0.0",
            8084,
            rules=ListenerRules(
                tls=TlsRules("c", "k"), websocket=WebSocketRules(), allow_anonymous=True
            ),
        ),
    )
    assert [one.url for one in config.endpoints] == [
        "mqtts://0.0.0.0:8883",
        "ws://[::1]:8083/x",
        "ws://unix:/run/x/mqtt",
        "wss://0.0.0.0:8084/mqtt",
    ]
    assert [one.name for one in config.endpoints][:2] == ["devices", "[::1]:8083"]


WRONG = {
    "tls = true": ("tls", "a table"),
    "tls = 'x'": ("tls", "a table"),
    "tls = {}": ("tls", "cert"),
    "tls = { cert = 'c' }": ("tls", "key"),
    "tls = { cert = 1, key = 'k' }": ("tls", "cert", "a text"),
    "tls = { cert = 'c', key = 'k', verfy = 'none' }": ("tls", "verfy", "did you mean verify?"),
    "tls = { cert = 'c', key = 'k', verify = 'yes' }": ("verify", "none, optional, required"),
    "tls = { cert = 'c', key = 'k', verify = 'required' }": ("verify", "needs ca"),
    "tls = { cert = 'c', key = 'k', ca = 'a', verify = 'none' }": ("ca", "verify"),
    "tls = { cert = 'c', key = 'k', crl = 'r' }": ("crl", "verify"),
    "tls = { cert = 'c', key = 'k', min_version = '1.1' }": ("min_version", "1.2, 1.3"),
    "websocket = 1": ("websocket", "true, or a table"),
    "websocket = { path = 'x' }": ("websocket", "path", "begins with /"),
    "websocket = { origins = 'x' }": ("websocket", "origins", "a list of texts"),
    "websocket = { message_bytes_max = -1 }": ("message_bytes_max", "0 or more"),
    "websocket = { compress = true }": ("compress", "did you mean compression?"),
    "proxy_protocol = { trusted = ['x'] }": ("trusted", "networks", "'x'"),
    "proxy_protocol = { trusted = ['192.0.2.1/24'] }": ("trusted", "'192.0.2.1/24'"),
    "proxy_protocol = 'v2'": ("proxy_protocol", "true, or a table"),
    "max_connections = -1": ("max_connections", "0 or more"),
    "max_connections = '5'": ("max_connections", "a whole number"),
    "handshake_timeout_s = 0": ("handshake_timeout_s", "0.01 to 3600"),
    "connect_timeout_s = 4000": ("connect_timeout_s", "0.01 to 3600"),
    "connect_timeout_s = nan": ("connect_timeout_s", "0.01 to 3600"),
    "allow_anonymous = 'yes'": ("allow_anonymous", "true or false"),
    'name = "a\\n"': ("name", "printable"),
    "path = '/x'\nport = 1": ("path", "port", "not both"),
    "path = '/x'\ntcp_nodelay = false": ("path", "tcp_nodelay", "not both"),
    "tcp_nodelay = 'no'": ("tcp_nodelay", "true or false"),
    "name = 'a'\n[[listeners]]\nname = 'a'": ("listeners 2", "name a"),
    f"host = '0.0.0.0'\n{TLS}": ("0.0.0.0:8883", "--allow-anonymous"),
    "host = '0.0.0.0'\ntls = { cert = 'c', key = 'k', ca = 'a', verify = 'optional' }": (
        "0.0.0.0:8883",
        "--allow-anonymous",
    ),
    "host = '0.0.0.0'\nallow_anonymous = false": ("0.0.0.0:1883", "--allow-anonymous"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_in_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"[[listeners]]\n{text}\n", tmp_path)
    said = str(caught.value)
    assert "\n" not in said
    for word in WRONG[text]:
        assert word in said, said


def test_a_certificate_for_everybody_is_login_enough(tmp_path: Path) -> None:
    text = "host = '0.0.0.0'\ntls = { cert = 'c', key = 'k', ca = 'a' }"
    config = read(f"[[listeners]]\n{text}\n", tmp_path)
    assert config.endpoints[0].rules.tls is not None
    assert config.endpoints[0].rules.tls.verify == "required"


def test_a_missing_certificate_ends_the_command(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(f"[[listeners]]\nname = 'devices'\n{TLS}\nport = 0\n")
    for option in ((), ("--check",)):
        code, _, errors = refused("--config", str(path), *option)
        assert code == 2
        assert errors.splitlines() == [
            "fleetmq broker: devices: tls.cert: c: No such file or directory"
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
        assert bool(link._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is prompt


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
