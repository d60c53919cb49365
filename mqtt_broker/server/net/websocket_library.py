"""What inherits from the classes of the WebSocket libraries: it is not compiled.

Which subprotocols `websockets` grants, and how aiohttp's parser is tied to `websocket.Frames`. Two
names of aiohttp are used that it keeps for itself, `WebSocketDataQueue` and
`WebSocketReader._handle_frame`; tests/server/test_websocket_library.py holds what is relied on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.http import WebSocketReader
from aiohttp.http_websocket import WSMsgType
from websockets.exceptions import NegotiationError
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

if TYPE_CHECKING:
    from mqtt_broker.server.net.websocket import Frames

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


class Reader(WebSocketReader):
    """aiohttp's parser, with what it does with a frame put in place of its own.

    A compiled method in the place of its own costs 20 ns a frame, a method of this class 90, and a
    message in a queue 250.
    """

    __slots__ = ("_handle_frame",)

    def __init__(self, frames: Frames, queue: Queue, size_max: int, compress: bool) -> None:
        super().__init__(queue, size_max, compress, False)
        frames.settle_with(functools.partial(_parse_on, weakref.ref(self)))
        self._handle_frame = frames.take  # type: ignore[method-assign]


def _parse_on(reader: weakref.ref[Reader], *frame: Any) -> None:
    """What aiohttp itself would have done. Not a bound method: that would be a cycle."""
    found = reader()
    assert found is not None
    WebSocketReader._handle_frame(found, *frame)


class _NoPressure:
    """The queue would stop a transport; ours keeps nothing and never fills."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


_NO_PRESSURE: Final[Any] = _NoPressure()
_NO_LOOP: Final[Any] = None  # nobody waits for it


class Queue(WebSocketDataQueue):
    """Where the parser puts what is more than one whole frame of data."""

    def __init__(self, frames: Frames) -> None:
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
        self._frames.is_broken = True
