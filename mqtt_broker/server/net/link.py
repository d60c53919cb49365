"""A connection's socket: reads once a turn, writes at once, buffers what the peer is slow to take.

It works on the socket itself, and `turns` tells when it is ready: an isolated message costs
10 us this way and 15 through a transport. What lies between the socket and MQTT on some
listeners (TLS, WebSocket, a balancer's header) is in `server.layered`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from mqtt_broker.core.inbound.publish import TURN_BYTES_MAX

if TYPE_CHECKING:
    from mqtt_broker.core.clients.connection import Connection
    from mqtt_broker.core.interfaces.access import PeerCertificate
    from mqtt_broker.core.limits.token_bucket import ListenerLimits
    from mqtt_broker.server.config.endpoints import ListenerRules
    from mqtt_broker.server.net.listener import Listener
    from mqtt_broker.server.server import Server

# All links read into one buffer of this size and keep a copy of what came. Asking `recv` for
# as much makes the allocator map and unmap memory at each call: three system calls more.
READ_BYTES: Final = 262_144
_WRITE_BYTES: Final = 1_048_576  # handed to the kernel in one call when a backlog is sent
_LINGER_S: Final = 2.0  # how long a closed connection's last bytes may take to be read


class SocketLink:
    """The link over a TCP or unix socket."""

    __slots__ = (
        "_address",
        "_backlog",
        "_backlog_bytes",
        "_is_closing",
        "_is_lazy",
        "_is_reading",
        "_linger",
        "_listener",
        "_loop",
        "_server",
        "_sock",
        "_turns",
        "certificate",
        "connection",
        "is_admitted",
        "is_in_line",
    )

    def __init__(
        self, server: Server, sock: socket.socket, address: object, listener: Listener
    ) -> None:
        self._server = server
        self._listener = listener
        self._loop = server.loop
        self._turns = server.turns
        self._sock = sock
        self._address = address
        self._backlog: deque[memoryview] | None = None
        self._backlog_bytes = 0
        self._is_closing = False
        self._is_reading = True
        self._is_lazy = False
        self._linger: asyncio.TimerHandle | None = None
        self.connection: Connection | None = None
        self.certificate: PeerCertificate | None = None  # that the client proved to have
        self.is_admitted = False  # the access door counts it
        self.is_in_line = False  # of `server.openings`

    def start(self, connection: Connection) -> None:
        self.connection = connection
        self._turns.add(self._sock.fileno(), self._on_first_readable)

    @property
    def peer(self) -> str:
        if isinstance(self._address, tuple):
            host, port = self._address[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return "unix"

    @property
    def listener(self) -> str:
        """Its name, for rules."""
        return self._listener.endpoint.name

    @property
    def rules(self) -> ListenerRules:
        return self._listener.rules

    @property
    def allowance(self) -> ListenerLimits | None:
        """What its listener lets it have."""
        return self._listener.allowance

    # Reading.

    def _on_first_readable(self) -> None:
        """It is a CONNECT, which costs as much as a hundred messages of those who are connected."""
        openings = self._server.openings
        if openings.has_time():
            self.proceed()
        else:
            openings.enqueue(self)
            self._watch()

    def proceed(self) -> None:
        """It is its turn."""
        if not self._is_closing:
            self._watch()
            self._on_readable()

    def _on_readable(self) -> None:
        server = self._server
        try:
            size = self._sock.recv_into(server.read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        connection = self.connection
        assert connection is not None
        now = server.turn_at = server.now()
        if size:
            try:
                connection.receive(server.read_view[:size].tobytes(), now)
            except Exception:  # not even the goodbye came to an end: the socket goes, at least
                self._release()
                raise
            if connection.only_acknowledges is not self._is_lazy and self._backlog is None:
                self._set_lazy(connection.only_acknowledges)
        else:
            self._release()
            connection.lost(now)
        if server.broker.turn_bytes > TURN_BYTES_MAX:
            server.broker.flush(now)

    def _set_lazy(self, is_lazy: bool) -> None:
        if self._is_reading and not self._is_closing:
            self._is_lazy = is_lazy
            self._turns.set_lazy(self._sock.fileno(), is_lazy)

    def pause_reading(self) -> None:
        if self._is_reading and not self._is_closing:
            self._is_reading = False
            self._watch()

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._watch()

    def _watch(self) -> None:
        """Tell the turns what this socket waits for now."""
        on_readable = None
        if self._is_closing:
            on_readable = self._discard
        elif self._is_reading and not self.is_in_line:
            on_readable = self._on_readable
        on_writable = None if self._backlog is None else self._on_writable
        self._turns.watch(self._sock.fileno(), on_readable, on_writable)

    # Writing.

    def write(self, data: bytes) -> int:
        if self._is_closing:
            return 0
        if self._is_lazy and self.connection is not None:
            self._turns.expect(self.connection.urgency)
        if self._backlog is not None:
            self._backlog.append(memoryview(data))
            self._backlog_bytes += len(data)
            return self._backlog_bytes
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return 0  # the read side will see the end of the connection
        if sent == len(data):
            return 0
        self._backlog = deque([memoryview(data)[sent:]])
        self._backlog_bytes = len(data) - sent
        self._watch()
        return self._backlog_bytes

    def _on_writable(self) -> None:
        backlog = self._backlog
        assert backlog is not None
        try:
            while backlog:
                sent = self._sock.send(backlog[0][:_WRITE_BYTES])
                self._backlog_bytes -= sent
                if sent == len(backlog[0]):
                    backlog.popleft()
                else:
                    backlog[0] = backlog[0][sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            backlog.clear()
            self._backlog_bytes = 0
        if not backlog:
            self._backlog = None
            self._watch()
            if self._is_closing:
                self._shut()
                return
        if not self._is_closing and self.connection is not None:
            self.connection.on_written(self._backlog_bytes, self._server.now())

    # Closing.

    def close(self) -> None:
        """Send what is written, say the end, and wait a moment for the peer to read it.

        A socket that is closed with unread input resets the connection, and the peer then
        loses the reason we gave. So input is read and thrown away until the peer closes.
        """
        if self._is_closing:
            return
        self._is_closing = True
        if self._sock.fileno() < 0:
            return
        self._watch()
        self._linger = self._loop.call_later(_LINGER_S, self._release)
        if self._backlog is None:
            self._shut()

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._release()

    def _discard(self) -> None:
        try:
            size = self._sock.recv_into(self._server.read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self._release()

    def abort(self) -> None:
        self._is_closing = True
        self._release()

    def _release(self) -> None:
        """Give the descriptor back."""
        self._is_closing = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        fd = self._sock.fileno()
        if fd < 0:
            return
        self._turns.remove(fd)
        self._backlog = None
        self._sock.close()
        self._listener.on_released()
        self._server.on_released(self)
