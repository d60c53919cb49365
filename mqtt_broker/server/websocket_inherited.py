"""What inherits from the classes of the WebSocket libraries: it is not compiled.

What aiohttp's parser does with the frames it finds, and which subprotocols `websockets` grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.http import WebSocketReader
from aiohttp.http_websocket import WSMsgType
from websockets.exceptions import NegotiationError
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

NORMAL: Final = 1000
_UNSUPPORTED: Final = 1003
_BINARY: Final = 0x2
SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))


class OpeningHandshake(ServerProtocol):
    """The HTTP request and its answer; frames are parsed elsewhere."""

    def __init__(self, origins: Sequence[str]) -> None:
        super().__init__(
            origins=[Origin(text) for text in origins] or None, subprotocols=SUBPROTOCOLS
        )

    def let_go(self) -> None:
        """Its parser is a generator of its own method: a cycle that the collector would have to
        find, one for each client.
        """
        self.parser.close()

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        """The client's first choice that is ours. [MQTT-6.0.0-3], [MQTT-6.0.0-4]"""
        for name in subprotocols:
            if name in SUBPROTOCOLS:
                return name
        raise NegotiationError("the subprotocol is mqtt or mqttv3.1")


class Frames:
    """What the reader found since the last time."""

    __slots__ = ("close_code", "data", "ended", "is_broken", "pings")

    def __init__(self) -> None:
        self.data: list[bytes | bytearray] = []
        self.pings: list[bytes] = []
        self.close_code = 0  # the answer to what ended it
        self.ended = ""
        self.is_broken = False  # the queue has the exception


class Reader(WebSocketReader):
    """aiohttp's parser. Whole binary frames, the usual thing, leave it at once: such a frame
    costs 0.09 us this way, and 0.25 as a message in a queue.
    """

    def __init__(self, frames: Frames, queue: Queue, size_max: int, compress: bool) -> None:
        super().__init__(queue, size_max, compress, False)
        self._frames = frames
        self._append = frames.data.append
        self._is_whole = True  # no message has begun that has not ended

    def _handle_frame(
        self, fin: bool, opcode: int, payload: bytes | bytearray, compressed: int
    ) -> None:
        if opcode == _BINARY and fin and self._is_whole and not compressed:
            self._append(payload)
            return
        if opcode <= _BINARY:
            self._is_whole = fin
        super()._handle_frame(fin, opcode, payload, compressed)
        if self._frames.close_code:  # what follows the end is for the queue to drop
            self._is_whole = False


class _NoPressure:
    """The queue would stop a transport; ours keeps nothing and never fills."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


_NO_PRESSURE: Final[Any] = _NoPressure()
_NO_LOOP: Final[Any] = None  # nobody waits for it


class Queue(WebSocketDataQueue):
    """Where the parser puts everything else."""

    def __init__(self, frames: Frames) -> None:
        super().__init__(_NO_PRESSURE, 0xFFFF, loop=_NO_LOOP)
        self._frames = frames

    def feed_data(self, data: Any, size: int) -> None:
        frames = self._frames
        kind = data[0]
        if frames.close_code:
            return
        if kind is WSMsgType.BINARY:
            frames.data.append(data[1])
        elif kind is WSMsgType.PING:
            frames.pings.append(bytes(data[1]))
        elif kind is WSMsgType.CLOSE:
            frames.close_code = data[1] or NORMAL
            frames.ended = "closed"
        elif kind is WSMsgType.TEXT:  # [MQTT-6.0.0-1]
            frames.close_code = _UNSUPPORTED
            frames.ended = "WebSocket: a text frame"

    def set_exception(self, *args: Any) -> None:
        super().set_exception(*args)
        self._frames.is_broken = True
