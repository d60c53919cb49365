"""Accept connections for the HTTP server.

When the process has no file descriptors left, asyncio retries once per entry of the backlog and
logs a traceback each time. This acceptor pauses instead and logs one line, which all listeners
share. Meanwhile it serves one connection at a time with a spare descriptor, so that health checks
are still answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from mqtt_broker.server.process.descriptors import OUT_OF_DESCRIPTORS, PAUSE_S, Descriptors

_ACCEPTS_A_TURN: Final = 64
_ON_SPARE_S: Final = 2.0  # that a connection may hold the spare descriptor

MakeProtocol = Callable[[], asyncio.Protocol]


class Acceptor:
    """Accepts on one socket, from `start` to `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        serve: MakeProtocol,
        refuse: MakeProtocol,
        descriptors: Descriptors,
    ) -> None:
        self._loop = loop
        self._socket = listening
        self._serve = serve
        self._refuse = refuse
        self._descriptors = descriptors
        self._where = "http"
        self._opening: set[asyncio.Task[None]] = set()
        self._spare = _open_spare()
        self._is_closed = False

    def start(self) -> None:
        """Start accepting connections."""
        self._where = "http://{}:{}".format(*self._socket.getsockname()[:2])
        self._loop.add_reader(self._socket, self._on_acceptable)

    def close(self) -> None:
        """Stop accepting connections."""
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._drop_spare()

    def _on_acceptable(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._accept_one()
                    self._pause(error)
                    return
                continue  # the peer gave up while it waited to be accepted
            is_last = accepted.fileno() >= self._descriptors.http_end
            self._open(accepted, self._refuse if is_last else self._serve)

    def _accept_one(self) -> None:
        """Serve one more connection with the spare descriptor."""
        if self._spare < 0:
            return
        self._drop_spare()
        try:
            accepted, _ = self._socket.accept()
        except OSError:  # another thread was faster
            return
        self._open(_OnSpare(accepted.detach(), self._take_back), self._serve, _ON_SPARE_S)

    def _take_back(self, fd: int) -> None:
        """Close a connection and reopen the spare descriptor before anybody else takes it."""
        if self._is_closed or self._spare >= 0:
            os.close(fd)
            return
        os.dup2(self._socket.fileno(), fd, inheritable=False)
        self._spare = fd

    def _open(
        self, accepted: socket.socket, make: MakeProtocol, seconds: float | None = None
    ) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(accepted, make, seconds))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(
        self, accepted: socket.socket, make: MakeProtocol, seconds: float | None
    ) -> None:
        try:
            transport, _ = await self._loop.connect_accepted_socket(make, accepted)
        except OSError:  # the peer has gone
            accepted.close()
            return
        if seconds is not None:
            self._loop.call_later(seconds, transport.close)

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a moment. Connections wait in the kernel's backlog meanwhile."""
        self._descriptors.report(self._where, error)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._is_closed:
            return
        if self._spare < 0:
            self._spare = _open_spare()
        self.start()

    def _drop_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


class _OnSpare(socket.socket):
    """A connection that gives its descriptor back when it is closed."""

    def __init__(self, fd: int, give_back: Callable[[int], None]) -> None:
        super().__init__(fileno=fd)
        self._give_back = give_back

    def close(self) -> None:
        fd = self.detach()
        if fd >= 0:
            self._give_back(fd)


def _open_spare() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
