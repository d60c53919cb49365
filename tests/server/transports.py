"""Clients that come through TLS and WebSocket, for the tests of both.

with Running(tls_endpoint(files)) as broker, over_tls(broker.port, files.ca) as client:
    client.send(connect("c"))
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from mqtt_broker.codec.constants import V5
from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules, TlsRules, WebSocketRules
from tests.core.peers import connect
from tests.server.certificates import Authority, Issued
from tests.server.running import PATIENCE_S, Raw

HOST: Final = "127.0.0.1"


class Files:
    """What a TLS listener needs, in a folder; `authority` signs clients too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = self.authority.write(folder)
        self.server = self.authority.issue("broker", ip=HOST)
        self.cert, self.key = self.server.write(folder, "server")

    def rules(self, **fields: Any) -> TlsRules:
        return TlsRules(self.cert, self.key, **fields)

    def mutual(self, **fields: Any) -> TlsRules:
        return self.rules(**{"ca": self.ca, "verify": "required", **fields})

    def client(self, name: str, issued: Issued) -> tuple[str, str]:
        return issued.write(self.folder, name)


def endpoint(
    tls: TlsRules | None = None, websocket: WebSocketRules | None = None, **fields: Any
) -> Endpoint:
    return Endpoint(HOST, 0, rules=ListenerRules(tls=tls, websocket=websocket, **fields))


def tls_context(ca: str, cert: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(*cert)
    return context


def over_tls(
    port: int, ca: str, cert: tuple[str, str] | None = None, context: ssl.SSLContext | None = None
) -> Raw:
    sock = socket.create_connection((HOST, port), PATIENCE_S)
    try:
        return Raw((context or tls_context(ca, cert)).wrap_socket(sock, server_hostname=HOST))
    except BaseException:
        sock.close()
        raise


def connected(raw: Raw, client_id: str = "c", version: int = V5, expiry: int = 0) -> Raw:
    raw.send(connect(client_id, version, expiry=expiry))
    answer = raw.packet()
    assert answer[0] == 0x20 and answer[3] == 0, answer.hex()
    return raw


class WebSocketRaw(Raw):
    """What is sent goes out as binary frames, what comes in is what their payloads hold."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        path: str = "/mqtt",
        subprotocols: Sequence[str] = ("mqtt",),
        origin: str | None = None,
        extensions: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sock)
        port = sock.getpeername()[1]
        self.protocol = ClientProtocol(
            parse_uri(f"ws://{HOST}:{port}{path}"),
            origin=origin,  # type: ignore[arg-type]
            subprotocols=list(subprotocols) or None,  # type: ignore[arg-type]
            extensions=extensions,
            max_size=None,
        )
        self._waiting = b""
        self.control: list[Frame] = []
        self.text = ""
        request = self.protocol.connect()
        request.headers.update(headers or {})
        self.protocol.send_request(request)
        self.flush()
        while not (events := self.protocol.events_received()):
            self._feed()
            if self.protocol.handshake_exc is not None:
                break
        self.response: Any = events[0] if events else self.protocol.handshake_exc

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.sock.sendall(data)

    def _feed(self) -> bool:
        data = self.sock.recv(65_536)
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        return bool(data)

    def send(self, *data: bytes) -> None:
        self.protocol.send_binary(b"".join(data))
        self.flush()

    def send_frame(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> None:
        self.sock.sendall(
            Frame(opcode, data, fin).serialize(mask=True, extensions=self.protocol.extensions)
        )

    def _take(self) -> bool:
        """Read once; whether the stream goes on."""
        goes_on = self._feed()
        for event in self.protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._waiting += event.data
            else:
                self.control.append(event)
        return goes_on

    def exactly(self, count: int) -> bytes:
        while len(self._waiting) < count:
            if not self._take():
                raise EOFError(self._waiting)
        out, self._waiting = self._waiting[:count], self._waiting[count:]
        return out

    def rest(self) -> bytes:
        while self._take():
            pass
        out, self._waiting = self._waiting, b""
        return out

    def closed_with(self) -> int:
        """The code of the close frame that ends the stream."""
        self.rest()
        assert self.protocol.close_rcvd is not None
        return int(self.protocol.close_rcvd.code)


def over_websocket(port: int, **fields: Any) -> WebSocketRaw:
    sock = socket.create_connection((HOST, port), PATIENCE_S)
    try:
        return WebSocketRaw(sock, **fields)
    except BaseException:
        sock.close()
        raise


def masked(opcode: int, data: bytes, *, fin: bool = True) -> bytes:
    """A client's frame, written by hand."""
    mask = b"\x12\x34\xa5\x78"
    size = len(data)
    head = bytes(((0x80 if fin else 0) | opcode,))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size <= 0xFFFF:
        head += bytes((0xFE,)) + size.to_bytes(2, "big")
    else:
        head += bytes((0xFF,)) + size.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
