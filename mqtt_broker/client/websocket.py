"""MQTT over a WebSocket, seen from the client: a stream of bytes inside binary frames."""

from __future__ import annotations

import socket
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from mqtt_broker.client.errors import ClientError

_READ_BYTES: Final = 65_536
_DATA: Final = (Opcode.BINARY, Opcode.CONT)


class WebSocket:
    """The framing of one connection; the caller moves the bytes. Opening it blocks."""

    def __init__(self, link: socket.socket, url: str) -> None:
        self._protocol = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol("mqtt")], max_size=None
        )
        self._protocol.send_request(self._protocol.connect())
        link.sendall(self.output())
        while self._protocol.state is State.CONNECTING:
            data = link.recv(_READ_BYTES)
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            if self._protocol.handshake_exc is not None:
                why = str(self._protocol.handshake_exc)
                raise ClientError(f"{url} does not accept a WebSocket: {why}")
        self._protocol.events_received()  # the HTTP response; the broker sends nothing unasked

    def wrap(self, data: bytes) -> bytes:
        """Frame bytes to be sent."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_binary(data)
        return self.output()

    def unwrap(self, data: bytes) -> bytes:
        """Return the MQTT bytes in what has come; answers to pings are due in `output`."""
        self._protocol.receive_data(data)
        return b"".join(
            bytes(event.data)
            for event in self._protocol.events_received()
            if isinstance(event, Frame) and event.opcode in _DATA
        )

    def output(self) -> bytes:
        """Return what has to be written, once."""
        return b"".join(self._protocol.data_to_send())

    def close(self) -> bytes:
        """Return the closing frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
        return self.output()
