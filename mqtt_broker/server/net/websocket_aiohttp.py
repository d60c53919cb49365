"""Adapt aiohttp's frame parser, so that it hands its frames to a `FrameSink`. Not compiled.

Two private names of aiohttp are used, `WebSocketDataQueue` and `WebSocketReader._handle_frame`;
tests/server/net/test_websocket_aiohttp.py checks the behaviour that this relies on. With a version
that lacks them this module cannot be imported, and `websocket_library` uses `websocket_fallback`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from aiohttp import WSMsgType
from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.http import WebSocketReader

if not hasattr(WebSocketReader, "_handle_frame"):
    raise ImportError("this aiohttp has no WebSocketReader._handle_frame")


class FrameSink(Protocol):
    """Receives the frames of one client from the parser."""

    data: list[bytes | bytearray]
    pings: list[bytes]

    def pass_on_to(self, parse_on: Callable[[bool, int, bytes | bytearray, int], None]) -> None:
        """Give every frame that is not whole binary data to `parse_on`."""
        ...

    def take(self, fin: bool, opcode: int, payload: bytes | bytearray, compressed: int) -> None:
        """Take one frame."""
        ...

    def end(self, code: int) -> None:
        """Take the peer's close frame."""
        ...

    def fail(self) -> None:
        """Note that the parser has failed: the queue has the exception."""
        ...


class Reader(WebSocketReader):
    """aiohttp's parser with its frame handler replaced by `FrameSink.take`.

    A compiled method as the handler costs 20 ns a frame, a method of this class 90, and a message
    in a queue 250.
    """

    __slots__ = ("_handle_frame",)

    def __init__(self, frames: FrameSink, queue: Queue, size_max: int, compress: bool) -> None:
        super().__init__(queue, size_max, compress, False)
        frames.pass_on_to(functools.partial(_parse_on, weakref.ref(self)))
        self._handle_frame = frames.take  # type: ignore[method-assign]


def _parse_on(reader: weakref.ref[Reader], *frame: Any) -> None:
    """Call aiohttp's own handler. Not a bound method, which would be a reference cycle."""
    found = reader()
    assert found is not None
    WebSocketReader._handle_frame(found, *frame)


class _NoPressure:
    """Replaces the transport that aiohttp's queue pauses; this queue never fills."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


_NO_PRESSURE: Final[Any] = _NoPressure()
_NO_LOOP: Final[Any] = None  # nothing waits for the queue


class Queue(WebSocketDataQueue):
    """Receives from the parser everything that is not one whole frame of data."""

    def __init__(self, frames: FrameSink) -> None:
        super().__init__(_NO_PRESSURE, 0xFFFF, loop=_NO_LOOP)
        self._frames = frames

    def feed_data(self, data: Any, size: int) -> None:
        frames = self._frames
        kind = data[0]
        if kind is WSMsgType.BINARY:
            frames.data.append(data[1])
        elif kind is WSMsgType.PING:
            frames.pings.append(bytes(data[1]))
        elif kind is WSMsgType.CLOSE:
            frames.end(data[1])

    def set_exception(self, *args: Any) -> None:
        super().set_exception(*args)
        self._frames.fail()
