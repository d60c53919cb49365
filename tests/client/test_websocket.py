"""The framing of MQTT over a WebSocket, without a socket: handshake, frames, refusals, the end."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from mqtt_broker.client.websocket import WebSocket

URL = "ws://broker.example:8083/mqtt"


class Server:
    """The other end, and what arrived there."""

    def __init__(self) -> None:
        self.protocol = ServerProtocol(subprotocols=[Subprotocol("mqtt")])
        self.request: Request | None = None
        self.frames: list[Frame] = []

    def answer(self, data: bytes) -> bytes:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Request):
                self.request = event
                self.protocol.send_response(self.protocol.accept(event))
            elif isinstance(event, Frame):
                self.frames.append(event)
        return self.output()

    def output(self) -> bytes:
        return b"".join(self.protocol.data_to_send())


def opened() -> tuple[WebSocket, Server]:
    client, server = WebSocket(URL), Server()
    client.receive(server.answer(client.output()))
    assert client.is_open
    return client, server


def test_the_handshake_asks_for_mqtt_and_may_come_byte_by_byte() -> None:
    client, server = WebSocket(URL), Server()
    answer = server.answer(client.output())
    assert server.request is not None and server.request.path == "/mqtt"
    assert server.request.headers["Sec-WebSocket-Protocol"] == "mqtt"
    assert server.request.headers["Host"] == "broker.example:8083"
    for place in range(len(answer)):
        assert not client.is_open
        assert client.receive(answer[place : place + 1]) == b""
    assert client.is_open and client.error == ""


def test_bytes_right_behind_the_handshake_are_not_lost() -> None:
    client, server = WebSocket(URL), Server()
    answer = server.answer(client.output())
    server.protocol.send_binary(b"\x20\x02\0\0")
    assert client.receive(answer + server.output()) == b"\x20\x02\0\0"


def test_both_directions_are_binary_frames_however_they_are_cut() -> None:
    client, server = opened()
    server.answer(client.wrap(b"\xc0\0" * 40_000))
    assert [frame.opcode for frame in server.frames] == [Opcode.BINARY]
    assert server.frames[0].data == b"\xc0\0" * 40_000
    server.protocol.send_binary(b"\xd0", fin=False)
    server.protocol.send_continuation(b"\0", fin=True)
    stream = server.output()
    assert b"".join(client.receive(stream[n : n + 1]) for n in range(len(stream))) == b"\xd0\0"


def test_nothing_is_framed_before_it_is_open_and_after_it_is_closed() -> None:
    client, server = WebSocket(URL), Server()
    request = client.output()
    assert client.wrap(b"early") == b"" and client.close() == b""
    client.receive(server.answer(request))
    server.answer(client.close())
    assert server.frames[-1].opcode is Opcode.CLOSE
    assert client.wrap(b"late") == b"" and client.close() == b""


def test_a_ping_is_answered() -> None:
    client, server = opened()
    server.protocol.send_ping(b"alive?")
    assert client.receive(server.output()) == b""
    server.answer(client.output())
    assert (server.frames[-1].opcode, server.frames[-1].data) == (Opcode.PONG, b"alive?")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "200"),
        (b"\x20\x02\0\0 no HTTP at all\r\n\r\n", "HTTP"),
        (b"", "connection closed"),
        (b"HTTP/1.1 101 Swit", "connection closed"),
    ],
)
def test_a_refused_handshake_says_why(answer: bytes, why: str) -> None:
    client = WebSocket(URL)
    client.output()
    assert client.receive(answer) == b""
    if not client.error:
        client.receive_end()
    assert not client.is_open and client.error.startswith("not a WebSocket: ")
    assert why in client.error


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\x81\x05hello", "text frame"),
        (b"\xc2\x05hello", "reserved"),
        (b"\x80\x05hello", "continuation"),
    ],
)
def test_a_broken_frame_is_an_error_and_yields_nothing(frame: bytes, why: str) -> None:
    client, _ = opened()
    assert client.receive(frame + Frame(Opcode.BINARY, b"\xd0\0").serialize(mask=False)) == b""
    assert why in client.error
