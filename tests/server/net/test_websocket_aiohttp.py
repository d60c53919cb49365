"""What we rely on in aiohttp's frame parser beyond what it promises.

`server.net.websocket_aiohttp` uses two names that aiohttp keeps for itself. A failure here is news
of a new aiohttp, not of our own code: read its `_websocket/reader_py.py` again, and mend the tie.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import aiohttp
import pytest
from aiohttp.http import WebSocketReader

from mqtt_broker.server.net.websocket import Frames
from mqtt_broker.server.net.websocket_aiohttp import Queue, Reader
from tests.server.transports import masked

NEWS: Final = f"aiohttp {aiohttp.__version__} is not as server/net/websocket_aiohttp.py needs it:"


def relied_on(holds: object, what: str) -> None:
    if not holds:
        pytest.fail(f"{NEWS} {what}", pytrace=False)


class Seen(WebSocketReader):
    """A parser that tells which frames it was to act on."""

    __slots__ = ("_handle_frame", "frames", "messages")

    def __init__(self) -> None:
        self.frames: list[tuple[Any, ...]] = []
        self.messages: list[tuple[Any, int]] = []
        super().__init__(_queue(self.messages), 1_000_000, False, False)
        self._handle_frame = lambda *frame: self.frames.append(frame)  # type: ignore[method-assign]


def _queue(messages: list[tuple[Any, int]]) -> Any:
    module = importlib.import_module("aiohttp._websocket.reader")
    relied_on(hasattr(module, "WebSocketDataQueue"), "_websocket.reader.WebSocketDataQueue is gone")

    class Queue(module.WebSocketDataQueue):  # type: ignore[misc, name-defined]
        def feed_data(self, data: Any, size: int) -> None:
            messages.append((data, size))

    class Protocol:
        _reading_paused = False

    return Queue(Protocol(), 0xFFFF, loop=None)


def test_the_parser_asks_its_instance_what_to_do_with_a_frame() -> None:
    seen = Seen()
    seen.feed_data(masked(2, b"ab") + masked(0, b"", fin=False) + masked(9, b"ping"))
    found = [
        (opcode < 8 and bool(fin), opcode, bytes(data), more)  # of a control frame it says nothing
        for fin, opcode, data, *more in seen.frames
    ]
    relied_on(
        found == [(True, 2, b"ab", [0]), (False, 0, b"", [0]), (False, 9, b"ping", [0])],
        f"_handle_frame(fin, opcode, payload, compressed) of an instance got {found}",
    )
    relied_on(not seen.messages, "a frame that was acted on came as a message, too")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_masked_frame_is_a_bytearray_and_a_bare_one_is_not(size: int) -> None:
    """It is how a frame without a mask is told."""
    data = masked(2, bytes(size))
    head = len(data) - size - 4
    bare = data[:1] + bytes((data[1] & 0x7F,)) + data[2:head] + bytes(size)
    for frame, kind in ((data, bytearray), (bare, bytes)):
        for step in (len(frame), 1 if size < 1000 else 1000):
            seen = Seen()
            for at in range(0, len(frame), step):
                seen.feed_data(frame[at : at + step])
            relied_on(
                [type(one[2]) for one in seen.frames] == [kind],
                f"a payload is {seen.frames[0][2]!r:.40}, not of {kind}",
            )


def test_what_the_parser_itself_does_with_a_frame_goes_to_the_queue() -> None:
    seen = Seen()
    act = WebSocketReader._handle_frame
    relied_on(callable(act), "_handle_frame is gone")
    act(seen, False, 2, bytearray(b"a"), 0)
    act(seen, True, 0, bytearray(b"b"), 0)
    act(seen, True, 9, bytearray(b"ping"), 0)
    act(seen, True, 8, bytearray(b"\x03\xe9why"), 0)
    kinds = [(message[0].name, bytes(message[1]) if message[0].value != 8 else message[1])
             for message, _ in seen.messages]  # fmt: skip
    relied_on(
        kinds == [("BINARY", b"ab"), ("PING", b"ping"), ("CLOSE", 1001)],
        f"messages come as {seen.messages}",
    )


def test_an_error_is_put_into_the_queue() -> None:
    seen = Seen()

    def refuse(*frame: Any) -> None:
        raise aiohttp.WebSocketError(1003, "no")

    seen._handle_frame = refuse  # type: ignore[assignment, method-assign]
    queue = _queue([])
    relied_on(callable(getattr(queue, "set_exception", None)), "no set_exception of the queue")
    ended, _ = seen.feed_data(masked(2, b"a"))
    relied_on(ended is True, "feed_data does not say that it failed")
    ended, _ = seen.feed_data(masked(2, b"b"))
    relied_on(ended is True, "a parser that failed goes on")


def test_our_own_tie() -> None:
    frames = Frames()
    queue = Queue(frames)
    reader = Reader(frames, queue, 1000, False)
    reader.feed_data(masked(2, b"ab") + masked(1, b"text"))
    relied_on(frames.data == [b"ab"], f"a frame came as {frames.data}")
    relied_on(frames.is_broken and queue.exception() is not None, "an error did not get to us")
