"""The `[[listeners]]` of a file: what they may say, and what is wrong with them."""

from __future__ import annotations

import ipaddress
from pathlib import Path

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
    "tls = { cert = 1, key = 'k' }": ("tls", "cert", "a string"),
    "tls = { cert = 'c', key = 'k', verfy = 'none' }": ("tls", "verfy", "did you mean verify?"),
    "tls = { cert = 'c', key = 'k', verify = 'yes' }": ("verify", "none, optional, required"),
    "tls = { cert = 'c', key = 'k', verify = 'required' }": ("verify", "needs ca"),
    "tls = { cert = 'c', key = 'k', ca = 'a', verify = 'none' }": ("ca", "verify"),
    "tls = { cert = 'c', key = 'k', crl = 'r' }": ("crl", "verify"),
    "tls = { cert = 'c', key = 'k', min_version = '1.1' }": ("min_version", "1.2, 1.3"),
    "websocket = 1": ("websocket", "true, or a table"),
    "websocket = { path = 'x' }": ("websocket", "path", "begins with /"),
    "websocket = { origins = 'x' }": ("websocket", "origins", "a list of strings"),
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
