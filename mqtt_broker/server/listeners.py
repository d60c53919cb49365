"""Where clients come in: TCP and unix sockets that listen."""

from __future__ import annotations

import errno
import os
import pathlib
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqtt_broker.server.links import SocketLink

if TYPE_CHECKING:
    from mqtt_broker.server.app import Server

BACKLOG: Final = 4096
_ACCEPTS_A_TURN: Final = 64
_PAUSE_S: Final = 0.5  # when there are no descriptors left
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to listen on: `path` for a unix socket, else host and port."""

    host: str = "127.0.0.1"
    port: int = 1883
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listener:
    """One listening socket. Accepts in small portions, so that a storm starves nobody."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        self._server = server
        self._sock = _listen(endpoint)
        self._is_tcp = not endpoint.path
        self.endpoint = endpoint if endpoint.path else self._bound(endpoint)

    def _bound(self, endpoint: Endpoint) -> Endpoint:
        return Endpoint(endpoint.host, self._sock.getsockname()[1])

    def start(self) -> None:
        self._server.turns.add(self._sock.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        server = self._server
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause(error)
                    return
                continue  # the peer gave up while it waited to be accepted
            sock.setblocking(False)
            if self._is_tcp:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.adopt(SocketLink(server, sock, address))

    def _pause(self, error: OSError) -> None:
        """Try again in a moment: the kernel keeps those who wait in its own queue."""
        self._server.log(f"{self.endpoint}: cannot accept, {error.strerror}; trying again")
        self._server.turns.remove(self._sock.fileno())
        self._server.loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self.start()

    def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._server.turns.remove(self._sock.fileno())
        self._sock.close()
        if self.endpoint.path:
            pathlib.Path(self.endpoint.path).unlink(missing_ok=True)


def _listen(endpoint: Endpoint) -> socket.socket:
    if endpoint.path:
        _remove_stale(endpoint.path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: object = endpoint.path
    else:
        family, kind, protocol, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket a broker left behind that did not end in order, and nothing else."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
