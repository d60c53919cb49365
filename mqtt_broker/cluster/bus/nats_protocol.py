"""The client's half of NATS' protocol: bytes to messages, commands to bytes. No socket, no clock.

    INFO {...}   CONNECT {...}   PING   PONG   +OK   -ERR '...'
    SUB subject sid   UNSUB sid   PUB subject size   MSG subject sid [reply] size

The parser reads into one buffer that never grows. A message is a view of it, which is valid until
the call that got it returns. A message larger than the largest frame is skipped, not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from mqtt_broker.cluster.bus.problems import NatsProtocolError
from mqtt_broker.cluster.frames.layout import FRAME_BYTES_MAX

READ_BYTES: Final = 262_144
LINE_BYTES_MAX: Final = 65_536
_END: Final = b"\r\n"
_END_BYTES: Final = 2
_MSG_WORDS: Final = (4, 5)
_DIGITS_MAX: Final = 12
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


class Handler(Protocol):
    """The receiver of what a server says."""

    def on_info(self, info: Mapping[str, Any]) -> None:
        """Take what the server says about itself."""

    def on_message(self, data: memoryview) -> None:
        """Take a message; the view is valid until this returns."""

    def on_oversized(self) -> None:
        """Note that a message was skipped."""

    def on_ping(self) -> None:
        """Answer."""

    def on_pong(self) -> None:
        """Note that all commands before the PING were executed."""

    def on_error(self, text: str) -> None:
        """Take what the server complains of."""


class NatsParser:
    """The bytes that a server has sent, taken apart into messages."""

    __slots__ = ("_begin", "_buffer", "_end", "_handler", "_is_closed", "_skip", "_view")

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray(LINE_BYTES_MAX + FRAME_BYTES_MAX + _END_BYTES + READ_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = 0
        self._end = 0
        self._skip = 0  # bytes to come of a message that is too large
        self._is_closed = False

    def space(self) -> memoryview:
        """Return where to read up to `READ_BYTES` to."""
        if self._end + READ_BYTES > len(self._buffer):
            size = self._end - self._begin
            self._view[:size] = self._view[self._begin : self._end]
            self._begin, self._end = 0, size
        return self._view[self._end : self._end + READ_BYTES]

    def close(self) -> None:
        """Say nothing more of what has come."""
        self._is_closed = True

    def feed(self, data: bytes) -> None:
        """Take bytes that were not read into `space`."""
        for at in range(0, len(data), READ_BYTES):
            portion = data[at : at + READ_BYTES]
            self.space()[: len(portion)] = portion
            self.take(len(portion))

    def take(self, size: int) -> None:
        """Go through so many bytes that were read into `space`."""
        self._end += size
        while not self._is_closed and self._next():
            pass
        if self._begin == self._end:
            self._begin = self._end = 0

    def _next(self) -> bool:
        """Go through one command; return whether there may be another."""
        if self._skip:
            skipped = min(self._skip, self._end - self._begin)
            self._begin += skipped
            self._skip -= skipped
            if self._skip:
                return False
        begin = self._begin
        eol = self._buffer.find(_END, begin, self._end)
        if eol < 0:
            if self._end - begin > LINE_BYTES_MAX:
                raise NatsProtocolError("a line has no end")
            return False
        if self._buffer.startswith(b"MSG ", begin, eol):
            return self._take_message(begin, eol)
        self._begin = eol + _END_BYTES
        self._take_line(bytes(self._view[begin:eol]))
        return True

    def _take_message(self, begin: int, eol: int) -> bool:
        words = bytes(self._view[begin:eol]).split()
        if len(words) not in _MSG_WORDS or not words[-1].isdigit() or len(words[-1]) > _DIGITS_MAX:
            raise NatsProtocolError("a message has no size")
        size = int(words[-1])
        start = eol + _END_BYTES
        if size > FRAME_BYTES_MAX:
            self._begin = start
            self._skip = size + _END_BYTES
            self._handler.on_oversized()
            return True
        end = start + size
        if end + _END_BYTES > self._end:
            return False
        if not self._buffer.startswith(_END, end, end + _END_BYTES):
            raise NatsProtocolError("a message does not end where it says")
        self._begin = end + _END_BYTES
        self._handler.on_message(self._view[start:end])
        return True

    def _take_line(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        word = word.upper()
        if word == b"PING":
            self._handler.on_ping()
        elif word == b"PONG":
            self._handler.on_pong()
        elif word == b"INFO":
            self._handler.on_info(_decode_info(rest))
        elif word == b"-ERR":
            self._handler.on_error(rest.decode(errors="replace").strip().strip("'"))
        elif word != b"+OK":
            raise NatsProtocolError("no command of NATS")


def _decode_info(text: bytes) -> Mapping[str, Any]:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict):
        raise NatsProtocolError("its INFO cannot be read")
    return info


def encode_connect(options: Mapping[str, Any]) -> bytes:
    """Return CONNECT with these options."""
    return b"CONNECT %b\r\n" % json.dumps(options).encode()


def encode_subscribe(subject: str, sid: int) -> bytes:
    """Return SUB."""
    return b"SUB %b %d\r\n" % (subject.encode(), sid)


def encode_unsubscribe(sid: int) -> bytes:
    """Return UNSUB."""
    return b"UNSUB %d\r\n" % sid


def encode_publish(subject: bytes, data: bytes) -> bytes:
    """Return PUB with this message."""
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(data), data)
