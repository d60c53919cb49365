"""The PROXY protocol: the parser alone, and who is believed by a listener."""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.core.interfaces.access import ConnectRequest, OpenAccess, Verdict
from mqtt_broker.server.config.endpoints import (
    Endpoint,
    ListenerRules,
    ProxyRules,
    WebSocketRules,
)
from mqtt_broker.server.net.proxy_protocol import SIGNATURE, Header, ProxyError, read_header
from tests.core.peers import connect
from tests.fuzz.targets import proxy_once
from tests.server.running import LOOPS, Raw, Running
from tests.server.transports import (
    Files,
    WebSocketRaw,
    connected,
    endpoint,
    over_websocket,
    tls_context,
)

V1 = b"PROXY TCP4 198.51.100.7 203.0.113.1 4444 1883\r\n"


def v2(command: int, kind: int, body: bytes, size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    return SIGNATURE + struct.pack("!BBH", command, kind, length) + body


IPV4 = bytes((198, 51, 100, 7, 203, 0, 113, 1)) + struct.pack("!HH", 4444, 1883)
IPV6 = (
    ipaddress.ip_address("2001:db8::7").packed
    + ipaddress.ip_address("2001:db8::1").packed
    + struct.pack("!HH", 4444, 1883)
)
CRC = b"\x03\x00\x04abcd"  # a TLV, which is passed over

GOOD = {
    "v1 TCP4": (V1, ("198.51.100.7", 4444)),
    "v1 TCP6": (b"PROXY TCP6 2001:DB8::7 ::1 65535 0\r\n", ("2001:db8::7", 65535)),
    "v1 UNKNOWN": (b"PROXY UNKNOWN\r\n", None),
    "v1 UNKNOWN with more": (b"PROXY UNKNOWN ffff::1 whatever\r\n", None),
    "v1 as long as may be": (
        b"PROXY UNKNOWN " + b"f" * (107 - 16) + b"\r\n",
        None,
    ),
    "v2 TCP4": (v2(0x21, 0x11, IPV4), ("198.51.100.7", 4444)),
    "v2 TCP4 with a TLV": (v2(0x21, 0x11, IPV4 + CRC), ("198.51.100.7", 4444)),
    "v2 TCP6": (v2(0x21, 0x21, IPV6), ("2001:db8::7", 4444)),
    "v2 LOCAL": (v2(0x20, 0x00, b""), None),
    "v2 LOCAL with an address": (v2(0x20, 0x11, IPV4), None),
    "v2 unix": (v2(0x21, 0x31, bytes(216)), None),
    "v2 UDP": (v2(0x21, 0x12, IPV4), None),
    "v2 unspecified": (v2(0x21, 0x00, b""), None),
}
# What other servers take an address from.
FORWARDED = {
    "X-Forwarded-For": "203.0.113.9",
    "X-Real-IP": "203.0.113.9",
    "Forwarded": "for=203.0.113.9",
    "True-Client-IP": "203.0.113.9",
}
BAD = {
    "nothing of it": b"\x10\x0d\x00\x04MQTT",
    "small letters": b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n",
    "a line too long": b"PROXY UNKNOWN " + b"f" * 200,
    "a line feed alone": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n",
    "a carriage return inside": b"PROXY TCP4 1.2.3.4\r 1.2.3.4 1 1",
    "another family": b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n",
    "an address too few": b"PROXY TCP4 1.2.3.4 1 1\r\n",
    "a word too many": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n",
    "two blanks": b"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n",
    "a wrong address": b"PROXY TCP4 1.2.3.256 1.2.3.4 1 1\r\n",
    "an address in octal": b"PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n",
    "IPv6 as TCP4": b"PROXY TCP4 ::1 1.2.3.4 1 1\r\n",
    "a zone": b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n",
    "a port too high": b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n",
    "a port with a sign": b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n",
    "a port with a zero": b"PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n",
    "no port": b"PROXY TCP4 1.2.3.4 1.2.3.4  1\r\n",
    "bytes that are no text": b"PROXY TCP4 \xff.2.3.4 1.2.3.4 1 1\r\n",
    "v2 version 1": v2(0x11, 0x11, IPV4),
    "v2 another command": v2(0x22, 0x11, IPV4),
    "v2 another family": v2(0x21, 0x41, IPV4),
    "v2 another transport": v2(0x21, 0x13, IPV4),
    "v2 too short for IPv4": v2(0x21, 0x11, IPV4[:-1]),
    "v2 too short for IPv6": v2(0x21, 0x21, IPV4),
    "v2 too long": v2(0x21, 0x11, b"", 65_535),
}


@pytest.mark.parametrize("what", GOOD)
def test_a_header_and_every_beginning_of_it(what: str) -> None:
    header, source = GOOD[what]
    assert read_header(header + b"\x10more") == Header(len(header), source)
    for end in range(len(header)):
        assert read_header(header[:end]) is None, end


@pytest.mark.parametrize("what", BAD)
def test_no_header(what: str) -> None:
    with pytest.raises(ProxyError):
        read_header(BAD[what])


@given(st.binary(max_size=300))
def test_whatever_comes(data: bytes) -> None:
    for start in (b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\x00"):
        proxy_once(start + data)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("what", GOOD)
def test_the_client_is_who_the_balancer_says(loop: str, what: str) -> None:
    header, source = GOOD[what]
    with Running(endpoint(proxy=ProxyRules()), loop=loop) as broker, broker.raw() as client:
        client.send(header, connect("c"))
        assert client.packet()[0] == 0x20
        link = broker.server.broker.connections["c"].link
        if source is None:
            assert link.peer.startswith("127.0.0.1:")
        else:
            host = f"[{source[0]}]" if ":" in source[0] else source[0]
            assert link.peer == f"{host}:{source[1]}"


def test_a_header_in_pieces() -> None:
    with Running(endpoint(proxy=ProxyRules())) as broker, broker.raw() as client:
        for byte in v2(0x21, 0x11, IPV4) + connect("c"):
            client.send(bytes((byte,)))
        assert client.packet()[0] == 0x20
        assert broker.server.broker.connections["c"].link.peer == "198.51.100.7:4444"


def test_a_header_alone_opens_the_connection() -> None:
    """And the connect timeout begins."""
    ends = endpoint(proxy=ProxyRules(), connect_timeout_s=0.05)
    with Running(ends) as broker, broker.raw() as client:
        client.send(V1)
        assert client.rest() == b""
        assert not broker.refusals


@pytest.mark.parametrize("what", ["nothing of it", "a wrong address", "v2 another command"])
def test_a_wrong_header_closes(what: str) -> None:
    with Running(endpoint(proxy=ProxyRules())) as broker, broker.raw() as client:
        client.send(BAD[what])
        assert client.rest() == b""
        assert broker.refusals == {"PROXY header": 1}


def test_who_sends_none_is_closed_in_time() -> None:
    ends = endpoint(proxy=ProxyRules(), handshake_timeout_s=0.05)
    with Running(ends) as broker, broker.raw() as client:
        assert client.rest() == b""
        assert broker.refusals == {"handshake timeout": 1}


def test_only_who_is_trusted_may_say_it(tmp_path: Path) -> None:
    nobody = ProxyRules((ipaddress.ip_network("192.0.2.0/24"),))
    local = ProxyRules((ipaddress.ip_network("::1"), ipaddress.ip_network("127.0.0.0/8")))
    unix = Endpoint(path=str(tmp_path / "s"), rules=ListenerRules(proxy=nobody))
    with Running(endpoint(proxy=nobody), endpoint(proxy=local), unix) as broker:
        with broker.raw() as client:
            assert client.rest() == b""
        assert broker.refusals == {"PROXY source": 1}
        broker.bound.pop(0)
        with broker.raw() as client:
            client.send(V1)
            connected(client)


def test_in_front_of_tls(tmp_path: Path) -> None:
    """The handshake that comes with the header waits for its turn too."""
    files = Files(tmp_path)
    ends = endpoint(files.rules(), proxy=ProxyRules())
    with Running(ends) as broker, broker.raw() as raw:
        raw.send(V1)
        raw.sock = tls_context(files.ca).wrap_socket(raw.sock, server_hostname="127.0.0.1")
        connected(raw)
        assert broker.server.broker.connections["c"].link.peer == "198.51.100.7:4444"


class Recorder(OpenAccess):
    def __init__(self) -> None:
        self.peers: list[str] = []

    def connect(self, request: ConnectRequest) -> Verdict:
        self.peers.append(request.peer)
        return super().connect(request)


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("has_websocket", [False, True])
def test_rules_bans_and_limits_are_asked_about_the_client(
    has_tls: bool, has_websocket: bool, tmp_path: Path
) -> None:
    """Whatever lies between the header and CONNECT."""
    files = Files(tmp_path)
    access = Recorder()
    web = WebSocketRules() if has_websocket else None
    ends = endpoint(files.rules() if has_tls else None, web, proxy=ProxyRules())
    with Running(ends, access=access) as broker, broker.raw() as raw:
        raw.send(V1)
        sock = raw.sock
        if has_tls:
            sock = tls_context(files.ca).wrap_socket(sock, server_hostname="127.0.0.1")
        client = WebSocketRaw(sock, headers=FORWARDED) if has_websocket else Raw(sock)
        with client:
            connected(client)
            assert access.peers == ["198.51.100.7:4444"]
            assert broker.server.broker.connections["c"].link.peer == "198.51.100.7:4444"


def test_a_header_of_http_is_nobodys_address() -> None:
    """`X-Forwarded-For` is what the client says."""
    access = Recorder()
    with (
        Running(endpoint(websocket=WebSocketRules()), access=access) as broker,
        over_websocket(broker.port, headers=FORWARDED) as client,
    ):
        connected(client)
        assert [peer.rpartition(":")[0] for peer in access.peers] == ["127.0.0.1"]
