"""WebSocket without sockets: the opening handshake, and frames in both directions.

`websockets` reads and answers the HTTP request; aiohttp's compiled reader parses incoming frames.
With 100 frames of 70 bytes in a chunk that takes 0.08 us a frame, where `websockets` takes 1.7 and
`wsproto` 5.4, and a PUBLISH costs the broker 0.1 to 0.4. Outgoing frames are made here: a header of
two to four bytes before a turn's output for the peer. Sockets and timing are in `layered_link`.
"""

from __future__ import annotations

import http
import zlib
from collections.abc import Callable
from typing import Any, Final, final

# From the whole package first, which waits if the thread of the HTTP server is importing it. A part
# of it would not wait, and fail in the middle of its ring of imports.
from aiohttp import WebSocketError, WSCloseCode
from aiohttp.http_websocket import ws_ext_gen, ws_ext_parse
from websockets.http11 import Request

from mqtt_broker.server.config.endpoints import WebSocketRules
from mqtt_broker.server.net.websocket_library import OpeningHandshake, parsing

REQUEST_BYTES_MAX: Final = 16_384
# Larger output is split: clients limit the size of a message, and MQTT does not require frames and
# packets to begin together. Up to this size a frame's header has four bytes.
FRAME_BYTES_MAX: Final = 65_535
_BINARY: Final = 0x82
_PING_ANSWER: Final = 0x8A
_PING_HEAD_BYTES: Final = 6  # a client's, with its mask
_CLOSE: Final = 0x88
_RSV1: Final = 0x40
_SYNC_END: Final = b"\x00\x00\xff\xff"  # the sender leaves it out. [RFC 7692, 7.2.1]
_NORMAL: Final = 1000
_PROTOCOL_ERROR: Final = 1002
_ABNORMAL: Final = 1006  # reported where no close frame came, never sent. [RFC 6455, 7.4.1]
_CLOSE_CODE_MAX: Final = 4999  # [RFC 6455, 7.4.2]
# Opcodes of frames that come in. [RFC 6455, 5.2]
_OP_TEXT: Final = 1
_OP_BINARY: Final = 2
_OP_CONTROL_MIN: Final = 8


@final
class Frames:
    """Collects what the parser found since the last read; it calls `take` for each frame.

    Whole binary frames, the usual case, stay here. Fragments, compressed and control frames go on
    to the parser's own rules and come back through `Queue`.
    """

    __slots__ = ("_is_whole", "_parse_on", "close_code", "data", "ended", "is_broken", "pings")

    def __init__(self) -> None:
        self._parse_on: Callable[[bool, int, bytes | bytearray, int], None] | None = None
        self._is_whole = True  # no message is incomplete
        self.data: list[bytes | bytearray] = []
        self.pings: list[bytes] = []
        self.close_code = 0  # the close code to answer with
        self.ended = ""
        self.is_broken = False  # the queue has the exception

    def pass_on_to(self, parse_on: Callable[[bool, int, bytes | bytearray, int], None]) -> None:
        """Give every frame that is not whole binary data to `parse_on`."""
        self._parse_on = parse_on

    def take(self, fin: bool, opcode: int, payload: bytes | bytearray, compressed: int) -> None:
        """Keep a whole binary frame; pass any other to the parser."""
        # aiohttp unmasks in place: a masked payload is a bytearray. Only for a frame that came in
        # more than a thousand reads this does not hold.
        if (
            opcode == _OP_BINARY
            and fin
            and self._is_whole
            and not compressed
            and isinstance(payload, bytearray)
        ):
            self.data.append(payload)
        elif not self.ended:
            self._take_other(fin, opcode, payload, compressed)

    def _take_other(
        self, fin: bool, opcode: int, payload: bytes | bytearray, compressed: int
    ) -> None:
        if not isinstance(payload, bytearray):  # [RFC 6455, 5.1]
            raise WebSocketError(WSCloseCode.PROTOCOL_ERROR, "a frame without a mask")
        if opcode == _OP_TEXT:  # [MQTT-6.0.0-1]
            raise WebSocketError(WSCloseCode.UNSUPPORTED_DATA, "a text frame")
        if opcode < _OP_CONTROL_MIN:
            # aiohttp does not notice it after an empty first fragment. [RFC 6455, 5.4]
            if opcode == _OP_BINARY and not self._is_whole:
                raise WebSocketError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
            self._is_whole = fin
        assert self._parse_on is not None
        self._parse_on(fin, opcode, payload, compressed)

    def end(self, code: int) -> None:
        """Note the peer's close frame."""
        if code == _ABNORMAL or code > _CLOSE_CODE_MAX:
            raise WebSocketError(WSCloseCode.PROTOCOL_ERROR, f"a close code of {code}")
        self.close_code = code or _NORMAL
        self.ended = "closed"
        self._is_whole = False  # input after the end is ignored

    def fail(self) -> None:
        """Note that the parser has failed."""
        self.is_broken = True


class WebSocketLayer:
    """The WebSocket layer of a connection: converts between frames and their data."""

    __slots__ = (
        "_deflate",
        "_flush",
        "_frames",
        "_head",
        "_output",
        "_queue",
        "_reader",
        "_rules",
        "_size_max",
        "ended",
        "held_bytes",
        "is_open",
    )

    def __init__(self, rules: WebSocketRules, packet_bytes_max: int) -> None:
        self._rules = rules
        self._size_max = rules.message_bytes_max or packet_bytes_max + FRAME_BYTES_MAX
        self._head = bytearray()  # of the request, until it is whole
        self._output: list[bytes] = []
        self._frames = Frames()
        self._queue: Any = parsing.Queue(self._frames)
        self._reader: Any = None
        self._deflate: Any = None
        self._flush = zlib.Z_SYNC_FLUSH
        self.is_open = False
        self.ended = ""
        self.held_bytes = 0  # estimated, of incomplete messages

    # In.

    def receive(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        if not self.is_open:
            data = self._open(data)
            if not self.is_open:
                return b""
        self._reader.feed_data(data)
        frames = self._frames
        self.held_bytes += len(data)
        if frames.pings or frames.ended or frames.is_broken:
            self._answer(frames)
        found = frames.data
        if not found:
            return b""
        self.held_bytes = 0
        joined = b"".join(found)
        found.clear()
        return joined

    def _answer(self, frames: Frames) -> None:
        if frames.pings:  # only the last needs an answer. [RFC 6455, 5.5.3]
            ping = frames.pings[-1]
            self.held_bytes -= sum([_PING_HEAD_BYTES + len(one) for one in frames.pings])
            frames.pings.clear()
            self._output.append(bytes((_PING_ANSWER, len(ping))) + ping)
        error = self._queue.exception()
        if frames.ended:
            self._end(frames.close_code, frames.ended)
        elif error is not None:
            code = error.code if isinstance(error, WebSocketError) else _PROTOCOL_ERROR
            self._end(int(code), f"WebSocket: {error.args[-1] if error.args else error}")

    def _end(self, code: int, why: str) -> None:
        self.ended = why
        self._output.append(bytes((_CLOSE, 2)) + code.to_bytes(2, "big"))

    # Out.

    def send(self, data: bytes) -> bytes:
        """Make binary frames of MQTT data. [MQTT-6.0.0-1]"""
        if not self.is_open or self.ended:
            return b""
        size = len(data)
        if size <= FRAME_BYTES_MAX:
            return self._frame(data)
        pieces = range(0, size, FRAME_BYTES_MAX)
        return b"".join([self._frame(data[at : at + FRAME_BYTES_MAX]) for at in pieces])

    def _frame(self, data: bytes) -> bytes:
        first = _BINARY
        if self._deflate is not None:
            first |= _RSV1
            data = self._deflate.compress(data) + self._deflate.flush(self._flush)
            data = data.removesuffix(_SYNC_END)
        size = len(data)
        if size < 126:
            return bytes((first, size)) + data
        if size <= 0xFFFF:
            return bytes((first, 126, size >> 8, size & 0xFF)) + data
        return bytes((first, 127)) + size.to_bytes(8, "big") + data  # compressed it may grow

    def pending_output(self, *, may_wait: bool) -> bytes:
        """Return answers to pings and closes. While output waits, pings are not answered."""
        output = self._output
        if not output:
            return b""
        joined = b"" if may_wait and not self.ended else b"".join(output)
        output.clear()
        return joined

    def close(self) -> bytes:
        """Return the close frame, unless the WebSocket has ended."""
        if not self.is_open or self.ended:
            return b""
        self._end(_NORMAL, "closed")
        return self.pending_output(may_wait=False)

    # The opening handshake.

    def _open(self, data: bytes) -> bytes:
        """Collect the request and answer it; return the bytes after it."""
        head = self._head
        searched = max(0, len(head) - 3)
        head += data
        end = head.find(b"\r\n\r\n", searched)
        if end < 0 or end > REQUEST_BYTES_MAX:
            if len(head) > REQUEST_BYTES_MAX:
                self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long")
            return b""
        request, rest = bytes(head[: end + 4]), bytes(head[end + 4 :])
        head.clear()
        self._settle(request)
        return rest

    def _settle(self, head: bytes) -> None:
        """Answer a whole request."""
        if not head.isascii():
            self._refuse(http.HTTPStatus.BAD_REQUEST, "no HTTP request")
            return
        rules = self._rules
        is_open = bool(rules.origins) or not rules.own_pages_only
        handshake = OpeningHandshake(rules.origins if is_open else None)
        handshake.receive_data(head)
        found = handshake.events_received()
        if found:
            request = found[0]
            assert isinstance(request, Request)
            if request.path.partition("?")[0] == self._rules.path:
                self._accept(handshake, request)
            else:
                self._refuse(http.HTTPStatus.NOT_FOUND, "not found")
        elif head.startswith(b"GET "):
            self._refuse(http.HTTPStatus.BAD_REQUEST, "no HTTP request")
        else:
            self._refuse(http.HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        handshake.release()

    def _accept(self, handshake: OpeningHandshake, request: Request) -> None:
        response = handshake.accept(request)
        if response.status_code != http.HTTPStatus.SWITCHING_PROTOCOLS:
            self.ended = f"WebSocket refused: {response.status_code}"
        else:
            window, starts_anew = 0, False
            if self._rules.compression:
                offered = ", ".join(request.headers.get_all("Sec-WebSocket-Extensions"))
                window, starts_anew = ws_ext_parse(offered, isserver=True)
            if window:
                response.headers["Sec-WebSocket-Extensions"] = ws_ext_gen(
                    window, isserver=True, server_notakeover=starts_anew
                )
                self._deflate = zlib.compressobj(wbits=-window)
                self._flush = zlib.Z_FULL_FLUSH if starts_anew else zlib.Z_SYNC_FLUSH
            # aiohttp refuses a message that is as large as its limit.
            self._reader = parsing.Reader(
                self._frames, self._queue, self._size_max + 1, bool(window)
            )
            self.is_open = True
        self._output.append(response.serialize())

    def _refuse(self, status: http.HTTPStatus, why: str) -> None:
        self.ended = f"WebSocket refused: {status.value} {why}"
        handshake = OpeningHandshake(())
        response = handshake.reject(status, f"{why}\n")
        if status == http.HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "GET"
        self._output.append(response.serialize())
        handshake.release()
