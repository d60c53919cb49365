"""Close connections of the HTTP server whose peers do not read their answers.

Without a limit, a client that asks and never reads keeps its connection and an answer for ever:
the transport waits for the peer, also when it is to be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

_BYTES_PER_S_MIN: Final = 1_024  # that a peer reads while something waits for it


class Timer(Protocol):
    """The handle that `loop.call_later` returns."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class SendWatch(asyncio.Protocol):
    """Passes everything on to `protocol`, and aborts the connection if its peer stops reading.

    The transport calls `pause_writing` as soon as it has to keep a byte, `resume_writing` when all
    are sent.
    """

    def __init__(self, protocol: asyncio.Protocol, send_s: float, call_later: CallLater) -> None:
        self._protocol = protocol
        self._send_s = send_s
        self._call_later = call_later
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._left = 0  # bytes that waited when the timer was set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(0)
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._watch()
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._cancel()
        self._protocol.resume_writing()

    def _watch(self) -> None:
        assert self._transport is not None
        self._left = self._transport.get_write_buffer_size()
        self._timer = self._call_later(self._send_s, self._look)

    def _look(self) -> None:
        """Abort if the peer has read too little since the timer was set; go on watching if not."""
        assert self._transport is not None
        read = self._left - self._transport.get_write_buffer_size()
        if read < self._send_s * _BYTES_PER_S_MIN:
            self._transport.abort()
        else:
            self._watch()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
