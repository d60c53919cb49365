"""Parse WebSocket frames with `websockets`, for when aiohttp's parser cannot be used.

`Reader` and `Queue` have the interface of those in `websocket_library`, and are twenty times
slower. Not compiled.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import WebSocketError
from websockets.exceptions import PayloadTooBig
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import Protocol as FrameParser
from websockets.protocol import Side

_WINDOW_BITS: Final = 15  # can read the output of any smaller window


class FrameSink(Protocol):
    """Receives the frames of one client from the parser."""

    data: list[bytes | bytearray]
    pings: list[bytes]

    def end(self, code: int) -> None:
        """Take the peer's close frame."""
        ...

    def fail(self) -> None:
        """Note that the parser has failed: the queue has the exception."""
        ...


class Queue:
    """Keeps the error that ended the parser."""

    def __init__(self, frames: FrameSink) -> None:
        self._frames = frames
        self._error: Exception | None = None

    def exception(self) -> Exception | None:
        return self._error

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._frames.fail()


class _Parser(FrameParser):
    """The parser of an open connection, with the negotiated extension."""

    def __init__(self, size_max: int, compress: bool) -> None:
        super().__init__(Side.SERVER, max_size=size_max)
        if compress:
            self.extensions = [PerMessageDeflate(False, False, _WINDOW_BITS, _WINDOW_BITS)]


class Reader:
    """Collects the messages of one client; a message is kept until its last fragment."""

    def __init__(self, frames: FrameSink, queue: Queue, size_max: int, compress: bool) -> None:
        self._frames = frames
        self._queue = queue
        self._parser = _Parser(size_max - 1, compress)
        self._message: list[bytes] = []
        self._is_over = False

    def feed_data(self, data: bytes) -> None:
        """Parse input, and give whole messages, pings and the close to the sink."""
        if self._is_over:
            return
        parser = self._parser
        parser.receive_data(data)
        parser.data_to_send()  # its answers; the layer makes its own
        try:
            for frame in parser.events_received():
                if not self._is_over:
                    self._take(frame)
            if parser.parser_exc is not None and not self._is_over:
                raise _error_of(parser.parser_exc)
        except WebSocketError as error:
            self._is_over = True
            self._queue.set_exception(error)

    def _take(self, frame: Any) -> None:
        assert isinstance(frame, Frame)
        if frame.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
            raise WebSocketError(CloseCode.UNSUPPORTED_DATA, "a text frame")
        if frame.opcode is Opcode.PING:
            self._frames.pings.append(bytes(frame.data))
        elif frame.opcode is Opcode.CLOSE:
            self._frames.end(Close.parse(bytes(frame.data)).code if frame.data else 0)
            self._is_over = True
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._message.append(bytes(frame.data))
            if frame.fin:
                self._frames.data.append(b"".join(self._message))
                self._message.clear()


def _error_of(error: Exception) -> WebSocketError:
    is_large = isinstance(error, PayloadTooBig)
    code = CloseCode.MESSAGE_TOO_BIG if is_large else CloseCode.PROTOCOL_ERROR
    return WebSocketError(code, str(error) or type(error).__name__)
