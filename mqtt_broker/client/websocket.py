"""MQTT over a WebSocket, seen from the client: a stream of bytes inside binary frames.

It has no socket: the blocking client and the simulator's links move the bytes.
"""

from __future__ import annotations

from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from mqtt_broker.codec.constants import REMAINING_LENGTH_MAX

_DATA: Final = (Opcode.BINARY, Opcode.CONT)
# A message is parsed when it is whole; what never ends is not kept.
_MESSAGE_BYTES_MAX: Final = REMAINING_LENGTH_MAX + 5  # the largest MQTT packet


class WebSocket:
    """The framing of one connection, from the request to open it, which `output` returns first."""

    def __init__(self, url: str) -> None:
        self.error = ""  # how the broker refused or broke the WebSocket protocol, if it did
        self._protocol = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol("mqtt")], max_size=_MESSAGE_BYTES_MAX
        )
        self._protocol.send_request(self._protocol.connect())

    @property
    def is_open(self) -> bool:
        """Tell whether the broker has accepted the WebSocket."""
        protocol = self._protocol
        return protocol.handshake_exc is None and protocol.state is not State.CONNECTING

    def wrap(self, data: bytes) -> bytes:
        """Frame bytes to be sent; return nothing unless the WebSocket is open."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_binary(data)
        return self.output()

    def receive(self, data: bytes) -> bytes:
        """Return the MQTT bytes in what has come; answers to pings are due in `output`."""
        self._protocol.receive_data(data)
        return self._received()

    def receive_end(self) -> None:
        """Note the end of the stream."""
        self._protocol.receive_eof()
        self._received()

    def _received(self) -> bytes:
        protocol = self._protocol
        parts: list[bytes] = []
        for event in protocol.events_received():
            if isinstance(event, Frame) and not self.error:
                if event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                    self.error = "a text frame"
                    protocol.fail(CloseCode.INVALID_DATA, self.error)
                elif event.opcode in _DATA:
                    parts.append(bytes(event.data))
        if not self.error:
            if protocol.handshake_exc is not None:
                self.error = f"not a WebSocket: {_reason(protocol.handshake_exc)}"
            elif protocol.parser_exc is not None:
                self.error = str(protocol.parser_exc)
        return b"".join(parts)

    def output(self) -> bytes:
        """Return what has to be written, once."""
        return b"".join(self._protocol.data_to_send())

    def close(self) -> bytes:
        """Return the closing frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
        return self.output()


def _reason(error: Exception) -> str:
    """Describe why a handshake failed, with its cause."""
    return f"{error}: {error.__cause__}" if error.__cause__ else str(error)
