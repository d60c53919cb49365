"""MQTT over WebSocket and secure WebSocket: the upgrade, frames, closes, limits."""

from __future__ import annotations

import contextlib
import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Opcode

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.core.interfaces.access import OpenAccess
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.endpoints import ProxyRules, WebSocketRules
from mqtt_broker.server.config.security import AuthTable, SecurityConfig
from mqtt_broker.server.net.websocket import WebSocketLayer
from tests.core.peers import connect, publish, subscribe
from tests.server.running import LOOPS, PATIENCE_S, Running
from tests.server.transports import (
    HOST,
    Files,
    WebSocketRaw,
    connected,
    endpoint,
    masked,
    over_tls,
    over_websocket,
    tls_context,
)

PING = b"\xc0\x00"
PONG = b"\xd0\x00"
any_loop = pytest.mark.parametrize("loop", LOOPS)
WEB = WebSocketRules()


@any_loop
@pytest.mark.parametrize("subprotocol", ["mqtt", "mqttv3.1"])
def test_a_message_goes_through(loop: str, subprotocol: str) -> None:
    with (
        Running(endpoint(websocket=WEB), loop=loop) as broker,
        over_websocket(broker.port, subprotocols=[subprotocol]) as one,
        over_websocket(broker.port) as two,
    ):
        assert one.response.headers["Sec-WebSocket-Protocol"] == subprotocol
        connected(one, "one").send(subscribe(V5, "a"))
        assert one.packet()[0] == 0x90
        connected(two, "two", V311).send(publish("a", b"x" * 300_000, version=V311))
        assert one.packet().endswith(b"x" * 300_000)


def test_the_first_subprotocol_that_is_ours() -> None:
    offered = ["soap", "mqttv3.1", "mqtt"]
    with (
        Running(endpoint(websocket=WEB)) as broker,
        over_websocket(broker.port, subprotocols=offered) as client,
    ):
        assert client.response.headers["Sec-WebSocket-Protocol"] == "mqttv3.1"


def test_over_tls(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with Running(endpoint(files.rules(), WEB)) as broker:
        raw = over_tls(broker.port, files.ca)
        with WebSocketRaw(raw.sock) as client:
            connected(client).send(PING)
            assert client.packet() == PONG
            client.send(b"\xe0\x00")
            assert client.closed_with() == 1000


def test_frames_and_packets_need_not_begin_together() -> None:
    with Running(endpoint(websocket=WEB)) as broker, over_websocket(broker.port) as client:
        data = connect("c") + PING * 3
        for at in range(0, len(data), 3):
            client.send(data[at : at + 3])
        client.send(b"")
        assert client.packet()[0] == 0x20
        assert [client.packet() for _ in range(3)] == [PONG] * 3


def test_a_length_beyond_its_frame_waits_for_the_next() -> None:
    """Other brokers copied as many bytes as the packet's length says, whatever the frame held."""
    with (
        Running(endpoint(websocket=WEB)) as broker,
        over_websocket(broker.port) as client,
        over_websocket(broker.port) as witness,
    ):
        connected(witness, "witness").send(subscribe(V5, "t"))
        witness.packet()
        connected(client).send(b"\x30\x80\x20", b"\x00")  # a PUBLISH of 4,096 bytes
        client.send(b"\x01t\x00" + PING)
        witness.send(PING)
        assert witness.packet() == PONG
        client.send(bytes(4_090), PING)  # what was a ping before is payload
        assert witness.packet() == b"\x30\x80\x20\x00\x01t\x00" + PING + bytes(4_090)
        assert client.packet() == PONG


def test_frames_cut_anywhere() -> None:
    with Running(endpoint(websocket=WEB)) as broker, over_websocket(broker.port) as client:
        for byte in masked(2, connect("c")) + masked(2, PING):
            client.sock.sendall(bytes((byte,)))
        assert client.packet()[0] == 0x20
        assert client.packet() == PONG


def test_many_frames_in_one_piece_and_one_message_in_many_frames() -> None:
    with Running(endpoint(websocket=WEB)) as broker, over_websocket(broker.port) as client:
        connected(client)
        client.sock.sendall(b"".join(masked(2, PING) for _ in range(1000)))
        assert [client.packet() for _ in range(1000)] == [PONG] * 1000
        long = publish("a", b"x" * 70_000) + PING
        pieces = [long[at : at + 1000] for at in range(0, len(long), 1000)]
        client.send_frame(Opcode.BINARY, pieces[0], fin=False)
        for piece in pieces[1:-1]:
            client.send_frame(Opcode.CONT, piece, fin=False)
            client.send_frame(Opcode.PING, b"between")
        client.send_frame(Opcode.CONT, pieces[-1])
        assert client.packet() == PONG
        assert {(one.opcode, bytes(one.data)) for one in client.control} == {
            (Opcode.PONG, b"between")
        }


@pytest.mark.parametrize("end", [masked(8, b"\x03\xe8"), masked(1, b"text")], ids=["close", "text"])
def test_what_follows_the_request_at_once_counts(end: bytes) -> None:
    """Even where the end is in it too."""
    with (
        Running(endpoint(websocket=WEB)) as broker,
        over_websocket(broker.port) as witness,
        broker.raw() as client,
    ):
        connected(witness, "witness").send(subscribe(V5, "a"))
        witness.packet()
        client.send(request(), masked(2, connect("c") + publish("a", b"all at once")), end)
        assert witness.packet().endswith(b"all at once")
        assert client.rest().startswith(b"HTTP/1.1 101 ")
        assert sum(broker.refusals.values()) == (end[0] & 0xF == 1)


# Frames that are wrong.

WRONG = {
    "text": (masked(1, b"hello"), 1003),
    "text that only begins": (masked(1, b"hel", fin=False), 1003),
    "no mask": (b"\x82\x02" + PING, 1002),
    "no mask and nothing in it": (b"\x82\x00", 1002),
    "no mask on a long frame": (b"\x82\x7e\x01\x00" + bytes(256), 1002),
    "no mask on a piece": (masked(2, b"\xc0", fin=False) + b"\x80\x01\x00", 1002),
    "no mask on a ping": (b"\x89\x00", 1002),
    "no mask on a close": (b"\x88\x02\x03\xe8", 1002),
    "a first reserved bit": (b"\xc2\x82\0\0\0\0" + PING, 1002),
    "a second reserved bit": (b"\xa2\x82\0\0\0\0" + PING, 1002),
    "a third reserved bit": (b"\x92\x82\0\0\0\0" + PING, 1002),
    "a reserved opcode": (masked(3, PING), 1002),
    "a reserved control opcode": (masked(11, PING), 1002),
    "a long ping": (masked(9, bytes(126)), 1002),
    "a ping in pieces": (masked(9, b"", fin=False), 1002),
    "a continuation of nothing": (masked(0, PING), 1002),
    "a message in a message": (masked(2, b"\xc0", fin=False) + masked(2, b"\x00"), 1002),
    "a message in an empty beginning": (masked(2, b"", fin=False) + masked(2, PING), 1002),
    "a second beginning": (masked(2, b"", fin=False) + masked(2, PING, fin=False), 1002),
    "too large": (b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), 1009),
    "beyond 63 bits": (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009),
    "a close code of 0": (masked(8, b"\0\0"), 1002),
    "a close code for nobody": (masked(8, b"\x03\xed"), 1002),
    "a close code that is never sent": (masked(8, b"\x03\xee"), 1002),
    "a close code beyond all": (masked(8, b"\x13\x88"), 1002),
    "a close of one byte": (masked(8, b"\x03"), 1002),
    "a close reason that is no text": (masked(8, b"\x03\xe8\xff"), 1007),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_frame_is_answered_with_its_code(what: str) -> None:
    """And what came before it counts."""
    frame, code = WRONG[what]
    with (
        Running(endpoint(websocket=WEB)) as broker,
        over_websocket(broker.port) as witness,
        over_websocket(broker.port) as client,
    ):
        connected(witness, "witness").send(subscribe(V5, "a"))
        witness.packet()
        connected(client)
        before, behind = (masked(2, publish("a", text)) for text in (b"before", b"behind"))
        client.sock.sendall(before + frame + behind)
        assert client.closed_with() == code
        assert witness.packet().endswith(b"before")
        broker.wait_until(lambda: broker.refusals == {"WebSocket": 1})
        witness.send(PING)
        assert witness.packet() == PONG


def open_layer(rules: WebSocketRules = WEB) -> WebSocketLayer:
    layer = WebSocketLayer(rules, 1_000_000)
    assert layer.receive(request()) == b""
    assert layer.pending_output(may_wait=False).startswith(b"HTTP/1.1 101 ")
    return layer


def test_frames_and_what_is_between_them_cut_in_two_everywhere() -> None:
    """Whatever the network makes of it, the same comes out, and the same answers go back."""
    data = (
        masked(2, b"whole")
        + masked(2, b"fir", fin=False)
        + masked(9, b"ping")
        + masked(0, b"", fin=False)
        + masked(10, b"pong")
        + masked(0, b"st")
        + masked(2, b"")
        + masked(2, bytes(200))
        + masked(8, b"\x0f\xa0bye")
    )
    for at in range(len(data) + 1):
        layer = open_layer()
        found = layer.receive(data[:at]) + layer.receive(data[at:])
        assert found == b"wholefirst" + bytes(200)
        assert layer.pending_output(may_wait=False) == b"\x8a\x04ping" + b"\x88\x02\x0f\xa0"
        assert layer.ended == "closed"
    one_by_one = open_layer()
    assert b"".join(one_by_one.receive(bytes((byte,))) for byte in data) == found


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_frame_a_byte_at_a_time(what: str) -> None:
    frame, code = WRONG[what]
    layer = open_layer()
    data = masked(2, b"before") + frame + masked(2, b"behind")
    assert b"".join(layer.receive(bytes((byte,))) for byte in data) == b"before"
    assert layer.pending_output(may_wait=True) == b"\x88\x02" + code.to_bytes(2, "big")
    assert layer.ended.startswith("WebSocket: ")
    assert layer.send(b"more") == b"" and layer.close() == b""


def test_a_flood_of_pings_costs_one_pong_a_read() -> None:
    layer = open_layer()
    flood = masked(9, b"x" * 125)
    assert layer.receive(flood * 500 + masked(9, b"last") + masked(2, PING)) == PING
    assert layer.pending_output(may_wait=False) == b"\x8a\x04last"
    assert layer.receive(masked(10, b"unasked") * 500) == b""
    assert layer.pending_output(may_wait=False) == b""


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", 1000),
        (b"\x03\xe8", 1000),
        (b"\x03\xe9", 1001),
        (b"\x0b\xb8", 3000),
        (b"\x13\x87", 4999),
    ],
)
def test_a_close_gets_its_own_code_back(payload: bytes, code: int) -> None:
    layer = open_layer()
    assert layer.receive(masked(8, payload) + masked(2, b"behind") + masked(8, payload)) == b""
    assert layer.pending_output(may_wait=True) == b"\x88\x02" + code.to_bytes(2, "big")
    assert layer.ended == "closed" and layer.receive(masked(9, b"")) == b""


def test_the_longest_message_that_may_be() -> None:
    rules = WebSocketRules(message_bytes_max=1_000)
    layer = open_layer(rules)
    assert len(layer.receive(masked(2, bytes(1_000)))) == 1_000
    pieces = masked(2, bytes(500), fin=False) + masked(0, bytes(500))
    assert len(layer.receive(pieces)) == 1_000
    layer.receive(masked(2, bytes(500), fin=False) + masked(0, bytes(501))[:8])
    assert layer.pending_output(may_wait=False) == b"\x88\x02" + (1009).to_bytes(2, "big")


def test_messages_beyond_the_limit_in_pieces() -> None:
    rules = WebSocketRules(message_bytes_max=10_000)
    with Running(endpoint(websocket=rules)) as broker, over_websocket(broker.port) as client:
        connected(client)
        client.send_frame(Opcode.BINARY, bytes(6_000), fin=False)
        client.send_frame(Opcode.CONT, bytes(6_000), fin=False)
        assert client.closed_with() == 1009


def unfinished_message(pings: int) -> list[bytes]:
    """A message of 200 kB without its last frame, in pieces of 20 kB with pings between them."""
    piece = masked(0, bytes(20_000), fin=False) + masked(9, b"still here") * pings
    return [masked(2, bytes(20_000), fin=False), *[piece] * 9]


@pytest.mark.parametrize("pings", [0, 3])
def test_messages_of_strangers_that_never_end_are_bounded_together(pings: int) -> None:
    """The decoder has seen none of it, so the layer says what it keeps."""
    with Running(endpoint(websocket=WEB), connecting_bytes_max=700_000) as broker:
        strangers = [over_websocket(broker.port) for _ in range(5)]
        for stranger in strangers:
            for piece in unfinished_message(pings):
                with contextlib.suppress(ConnectionError):  # it is closed for it
                    stranger.sock.sendall(piece)
        refused = broker.server.broker.counters.refused
        broker.wait_until(lambda: refused.get("connect/connecting_bytes", 0) > 1)
        limits = broker.server.broker.state.preconnect_limits
        assert 500_000 < broker.ask(lambda: limits.bytes) <= 700_000
        with over_websocket(broker.port) as late:
            connected(late).send(publish("t", bytes(1_000_000)), PING)  # who is known may send more
            assert late.packet() == PONG
        for stranger in strangers:
            stranger.sock.close()
        broker.wait_until(lambda: not limits.bytes)


def test_messages_of_clients_that_never_end_are_bounded_together() -> None:
    web = endpoint(websocket=WEB)
    with Running(web, incomplete_bytes_max=700_000, packet_bytes_max=400_000) as broker:
        state = broker.server.broker.state
        clients = [over_websocket(broker.port) for _ in range(6)]
        for number, client in enumerate(clients):
            client.send(connect(f"c{number}"))
            assert client.packet()[0] == 0x20
            for piece in unfinished_message(0):
                with contextlib.suppress(ConnectionError):
                    client.sock.sendall(piece)
        broker.wait_until(lambda: state.counters.refused.get("disconnect/incomplete bytes", 0) > 2)
        assert 400_000 < broker.ask(lambda: state.incomplete.bytes) <= 700_000
        with over_websocket(broker.port) as late:
            connected(late).send(publish("t", bytes(100_000)), PING)
            assert late.packet() == PONG
        for client in clients:
            client.sock.close()
        broker.wait_until(lambda: not state.incomplete.bytes)


def test_a_close_is_answered_with_its_code() -> None:
    with Running(endpoint(websocket=WEB)) as broker, over_websocket(broker.port) as client:
        connected(client)
        client.protocol.send_close(1001)
        client.flush()
        assert client.closed_with() == 1001
        assert not broker.refusals


def test_the_broker_says_its_reason_and_closes() -> None:
    with Running(endpoint(websocket=WEB)) as broker, over_websocket(broker.port) as client:
        connected(client).send(b"\x36\x05\x00\x01a\x00\x01\x00")
        assert client.packet() == b"\xe0\x01\x81"
        assert client.closed_with() == 1000


def test_pings_of_one_who_does_not_read_are_forgotten() -> None:
    with (
        Running(endpoint(websocket=WEB), outbox_bytes_max=200_000) as broker,
        over_websocket(broker.port) as slow,
        over_websocket(broker.port) as fast,
    ):
        connected(slow, "slow").send(subscribe(V5, "a"))
        slow.packet()
        connected(fast, "fast")
        link: Any = broker.server.broker.connections["slow"].link
        sent = 0
        while not broker.ask(lambda: link.backlog_bytes):
            fast.send(publish("a", bytes(60_000)), PING)
            assert fast.packet() == PONG
            sent += 1
        waiting = broker.ask(lambda: link.backlog_bytes)
        slow.sock.sendall(masked(9, b"x" * 100) * 1000)
        fast.send(PING)
        assert fast.packet() == PONG
        assert broker.ask(lambda: link.backlog_bytes) <= waiting
        for _ in range(sent):
            assert slow.packet().endswith(bytes(60_000))


# The upgrade.


def request(
    path: str = "/mqtt", *lines: str, method: str = "GET", without: str = "", version: str = "1.1"
) -> bytes:
    usual = [
        "Host: x",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: AQIDBAUGBwgJCgsMDQ4PEA==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
    ]
    found = [line for line in usual if not without or not line.startswith(without)]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *found, *lines, "", ""]).encode()


REFUSED = {
    "another path": (request("/other"), 404),
    "no upgrade": (request(without="Upgrade"), 426),
    "POST": (request(method="POST"), 405),
    "HTTP/1.0": (request(version="1.0"), 400),
    "no key": (request(without="Sec-WebSocket-Key"), 400),
    "an old version": (
        request("/mqtt", "Sec-WebSocket-Version: 8", without="Sec-WebSocket-Version"),
        400,
    ),
    "another subprotocol": (
        request("/mqtt", "Sec-WebSocket-Protocol: soap", without="Sec-WebSocket-Protocol"),
        400,
    ),
    "no subprotocol": (request(without="Sec-WebSocket-Protocol"), 400),
    "MQTT": (connect("c") + b"\r\n\r\n", 405),
    "too long a request": (b"GET /mqtt HTTP/1.1\r\n" + b"X: " + b"y" * 20_000, 431),
    "too long a line": (request("/mqtt", "X: " + "y" * 9_000), 400),
    "a body": (request("/mqtt", "Content-Length: 5"), 400),
    "a body in chunks": (request("/mqtt", "Transfer-Encoding: chunked"), 400),
    "bytes that are no text": (request().replace(b"Host: x", b"Upgrade: \xff"), 400),
    "another page": (request("/mqtt", "Origin: https://evil.example"), 403),
    "two pages": (
        request("/mqtt", "Origin: https://app.example", "Origin: https://evil.example"),
        400,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_upgrade_gets_an_http_status(what: str) -> None:
    data, status = REFUSED[what]
    origins = ("https://app.example",) if "page" in what else ()
    rules = WebSocketRules(origins=origins)
    with Running(endpoint(websocket=rules)) as broker, broker.raw() as client:
        client.send(data)
        answer = client.rest()
        statuses = (400, 505) if what == "HTTP/1.0" else (status,)  # websockets 16 says the latter
        assert answer.startswith(tuple(f"HTTP/1.1 {one} ".encode() for one in statuses)), answer
        assert b"\r\nConnection: close\r\n" in answer
        broker.wait_until(lambda: broker.refusals == {"WebSocket refused": 1})


def test_what_may_be_asked_instead() -> None:
    with Running(endpoint(websocket=WEB)) as broker, broker.raw() as client:
        client.send(request(method="DELETE"))
        assert b"\r\nAllow: GET\r\n" in client.rest()


def test_an_upgrade_leaves_nothing_for_the_collector() -> None:
    """A fleet that reconnects all day would pay for it."""
    gc.collect()
    gc.disable()
    try:
        for data, is_open in ((request(), True), (request("/other"), False)):
            layer = WebSocketLayer(WEB, 1000)
            layer.receive(data)
            assert layer.is_open is is_open
            del layer
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_pages_that_may() -> None:
    rules = WebSocketRules(origins=("https://app.example",))
    with (
        Running(endpoint(websocket=rules)) as broker,
        over_websocket(broker.port, origin="https://app.example") as client,
    ):
        connected(client)


OWN_PAGES = (
    None, "http://localhost:3000", "https://LocalHost", "http://127.0.0.1:8080", "https://[::1]:1",
    "http://127.8.9.1", "http://app.localhost:5173",
)  # fmt: skip
FOREIGN_PAGES = (
    "https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example",
    "null", "http://evil.example#http://localhost", "http://localhost@evil.example",
    "http://10.0.0.1", "file://", "http://evil.example:80\x00", "http://localhost:80/", "localhost",
    "",
)  # fmt: skip


@pytest.mark.parametrize("origin", [*OWN_PAGES, *FOREIGN_PAGES], ids=repr)
def test_pages_of_others_do_not_reach_an_open_broker_through_a_browser(origin: str | None) -> None:
    """Nobody has to log in there, since it is on loopback: but a browser is on loopback, too."""
    lines = [] if origin is None else [f"Origin: {origin}"]
    with Running(endpoint(websocket=WEB)) as broker, broker.raw() as client:
        client.send(request("/mqtt", *lines), masked(8, b""))
        is_let_in = client.rest().startswith(b"HTTP/1.1 101 ")
        assert is_let_in is (origin in OWN_PAGES)
        assert is_let_in or broker.refusals == {"WebSocket refused": 1}


@pytest.mark.parametrize(
    "config",
    [Config(durability="memory", allow_anonymous=True), "logs in", "an embedder's access"],
    ids=str,
)
def test_pages_of_others_reach_a_broker_that_asks_who_comes(config: Config | str) -> None:
    found = config if isinstance(config, Config) else Config(durability="memory")
    if config == "logs in":
        auth = (AuthTable("anonymous", "anonymous"),)
        found = replace(found, security=SecurityConfig(auth=auth))
    access = OpenAccess() if config == "an embedder's access" else None
    with (
        Running(endpoint(websocket=WEB), config=found, access=access) as broker,
        over_websocket(broker.port, origin="https://page.example") as client,
    ):
        connected(client)


def test_a_path_of_its_own_with_a_query() -> None:
    rules = WebSocketRules(path="/fleet/ws")
    with (
        Running(endpoint(websocket=rules)) as broker,
        over_websocket(broker.port, path="/fleet/ws?x=1") as client,
    ):
        connected(client)


def test_a_request_that_drips_is_closed_in_time() -> None:
    ends = endpoint(websocket=WEB, handshake_timeout_s=0.1)
    with Running(ends) as broker, broker.raw() as slow:
        slow.send(b"GET /mqtt HTT")
        assert slow.rest() == b""
        assert broker.refusals == {"handshake timeout": 1}


# Compression.


def test_compression_is_not_offered_unless_it_is_asked_for() -> None:
    with (
        Running(endpoint(websocket=WEB)) as broker,
        over_websocket(broker.port, extensions=[ClientPerMessageDeflateFactory()]) as client,
    ):
        assert "Sec-WebSocket-Extensions" not in client.response.headers
        connected(client)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"server_no_context_takeover": True},
        {"client_no_context_takeover": True, "client_max_window_bits": True},
        {"server_max_window_bits": 10},
    ],
)
def test_compression(fields: dict[str, Any]) -> None:
    rules = WebSocketRules(compression=True)
    factory = ClientPerMessageDeflateFactory(**fields)
    with (
        Running(endpoint(websocket=rules)) as broker,
        over_websocket(broker.port, extensions=[factory]) as client,
    ):
        assert "permessage-deflate" in client.response.headers["Sec-WebSocket-Extensions"]
        connected(client).send(subscribe(V5, "a"))
        client.packet()
        for size in (0, 10, 1000, 200_000, 5):
            client.send(publish("a", b"x" * size))
            assert client.packet().endswith(b"x" * size)


def test_a_bomb_is_refused() -> None:
    rules = WebSocketRules(compression=True, message_bytes_max=10_000)
    with (
        Running(endpoint(websocket=rules)) as broker,
        over_websocket(broker.port, extensions=[ClientPerMessageDeflateFactory()]) as client,
    ):
        connected(client).send(bytes(1_000_000))
        assert client.closed_with() == 1009


# In company.


def test_stopping_says_why() -> None:
    with Running(endpoint(websocket=WEB)) as broker, over_websocket(broker.port) as client:
        connected(client)
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        assert client.packet() == b"\xe0\x01\x8b"
        assert client.closed_with() == 1000
        stopping.join(PATIENCE_S)


@pytest.mark.parametrize("secure", [False, True])
def test_behind_a_balancer(tmp_path: Path, secure: bool) -> None:
    """A header, then TLS, then the upgrade, then MQTT."""
    files = Files(tmp_path)
    ends = endpoint(files.rules() if secure else None, WEB, proxy=ProxyRules())
    with Running(ends) as broker, broker.raw() as raw:
        raw.send(b"PROXY TCP4 198.51.100.7 203.0.113.1 4444 443\r\n")
        if secure:
            raw.sock = tls_context(files.ca).wrap_socket(raw.sock, server_hostname=HOST)
        connected(WebSocketRaw(raw.sock)).send(PING)
        peers = broker.ask(lambda: [one.link.peer for one in broker.server.broker.links])
        assert peers == ["198.51.100.7:4444"]
