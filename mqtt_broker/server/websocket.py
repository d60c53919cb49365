"""WebSocket without sockets: the opening handshake, and frames in and out.

`websockets` reads and answers the HTTP request; aiohttp's compiled reader parses all frames
that come in. Measured for frames of 70 bytes, 100 in a chunk: 0.1 us a frame, where
`websockets` takes 1.7 and `wsproto` 5.4, and a PUBLISH costs the broker 0.1 to 0.4. Frames
that go out are ours: two to four bytes before what a turn has for the peer. Sockets and
timing are for `server.layered`.
"""

from __future__ import annotations

import http
import zlib
from typing import Any, Final

from aiohttp.http import WebSocketError
from aiohttp.http_websocket import ws_ext_gen, ws_ext_parse
from websockets.http11 import Request

from mqtt_broker.server.endpoints import WebSocketRules
from mqtt_broker.server.websocket_inherited import (
    NORMAL,
    Frames,
    OpeningHandshake,
    Queue,
    Reader,
)

REQUEST_BYTES_MAX: Final = 16_384
# Larger ones are cut: clients limit what a message may have, and MQTT does not ask that
# frames and packets begin together. Up to here a frame's head has four bytes.
FRAME_BYTES_MAX: Final = 65_535
_BINARY: Final = 0x82
_PING_ANSWER: Final = 0x8A
_CLOSE: Final = 0x88
_RSV1: Final = 0x40
_SYNC_END: Final = b"\x00\x00\xff\xff"  # the sender leaves it out. [RFC 7692, 7.2.1]
_PROTOCOL_ERROR: Final = 1002


class WebSocketLayer:
    """One client's WebSocket: the bytes of a stream in, what its frames held out, and back."""

    __slots__ = (
        "_deflate",
        "_flush",
        "_frames",
        "_has_first",
        "_head",
        "_queue",
        "_reader",
        "_rules",
        "_said",
        "_size_max",
        "ended",
        "is_open",
    )

    def __init__(self, rules: WebSocketRules, packet_bytes_max: int) -> None:
        self._rules = rules
        self._size_max = rules.message_bytes_max or packet_bytes_max + FRAME_BYTES_MAX
        self._head = bytearray()  # of the request, until it is whole
        self._said: list[bytes] = []
        self._frames = Frames()
        self._queue = Queue(self._frames)
        self._reader: Any = None
        self._deflate: Any = None
        self._flush = zlib.Z_SYNC_FLUSH
        self._has_first = False
        self.is_open = False
        self.ended = ""

    # In.

    def receive(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        if not self.is_open:
            data = self._open(data)
            if not self.is_open:
                return b""
        if not self._has_first and data and not self._is_masked(data):
            return b""
        self._reader.feed_data(data)
        frames = self._frames
        if frames.pings or frames.ended or frames.is_broken:
            self._answer(frames)
        found = frames.data
        if not found:
            return b""
        joined = b"".join(found)
        found.clear()
        return joined

    def _is_masked(self, data: bytes) -> bool:
        """Whether the client masks [RFC 6455, 5.1]: it does so from its first frame, or not."""
        self._head += data[:2]
        if len(self._head) < 2:
            return True  # the reader waits for the second byte too
        self._has_first = True
        is_masked = bool(self._head[1] & 0x80)
        self._head.clear()
        if not is_masked:
            self._end(_PROTOCOL_ERROR, "WebSocket: a frame without a mask")
        return is_masked

    def _answer(self, frames: Frames) -> None:
        if frames.pings:  # only the last needs an answer. [RFC 6455, 5.5.3]
            ping = frames.pings[-1]
            frames.pings.clear()
            self._said.append(bytes((_PING_ANSWER, len(ping))) + ping)
        error = self._queue.exception()
        if frames.ended:
            self._end(frames.close_code, frames.ended)
        elif error is not None:
            code = error.code if isinstance(error, WebSocketError) else _PROTOCOL_ERROR
            self._end(int(code), f"WebSocket: {error.args[-1] if error.args else error}")

    def _end(self, code: int, why: str) -> None:
        self.ended = why
        self._said.append(bytes((_CLOSE, 2)) + code.to_bytes(2, "big"))

    # Out.

    def send(self, data: bytes) -> bytes:
        """Binary frames. [MQTT-6.0.0-1]"""
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

    def say(self, *, may_wait: bool) -> bytes:
        """Answers to pings and closes. While much waits to be sent, pings go unanswered."""
        said = self._said
        if not said:
            return b""
        joined = b"" if may_wait and not self.ended else b"".join(said)
        said.clear()
        return joined

    def farewell(self) -> bytes:
        if not self.is_open or self.ended:
            return b""
        self._end(NORMAL, "closed")
        return self.say(may_wait=False)

    # The opening handshake.

    def _open(self, data: bytes) -> bytes:
        """Collect the request and answer it; what follows it."""
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
        if not head.isascii():  # nothing that is asked for here is written so
            self._refuse(http.HTTPStatus.BAD_REQUEST, "no HTTP request")
            return
        handshake = OpeningHandshake(self._rules.origins)
        handshake.receive_data(head)
        found = handshake.events_received()
        if found:
            request = found[0]
            assert isinstance(request, Request)
            if request.path.partition("?")[0] == self._rules.path:
                self._accept(handshake, request)
            else:
                self._refuse(http.HTTPStatus.NOT_FOUND, "nothing there")
        elif head.startswith(b"GET "):
            self._refuse(http.HTTPStatus.BAD_REQUEST, "no HTTP request")
        else:
            self._refuse(http.HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        handshake.let_go()

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
            self._reader = Reader(self._frames, self._queue, self._size_max, bool(window))
            self.is_open = True
        self._said.append(response.serialize())

    def _refuse(self, status: http.HTTPStatus, why: str) -> None:
        self.ended = f"WebSocket refused: {status.value} {why}"
        handshake = OpeningHandshake(())
        response = handshake.reject(status, f"{why}\n")
        if status == http.HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "GET"
        self._said.append(response.serialize())
        handshake.let_go()
