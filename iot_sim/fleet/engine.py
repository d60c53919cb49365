"""Sockets and timers for many thousand connections in one thread.

A turn asks the kernel once which sockets are ready, reads each of them once, runs the timers that
are due, and writes once to each connection with new data. A device has no task and no callback
object, so an idle connection costs its socket and a few hundred bytes.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from mqtt_broker.client.websocket import WebSocket

READ: Final = 1
WRITE: Final = 4
EVENTS_MAX: Final = 1024
READ_BYTES: Final = 262_144
WRITE_BYTES: Final = 262_144  # handed to the kernel in one call
RESET: Final = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: close with a reset, and drop unsent data


class Clock:
    """Wall-clock time that never jumps: read once, then advanced by a monotonic clock."""

    def __init__(self, base_us: int | None = None) -> None:
        """`base_us`: wall-clock minus monotonic time, so that processes agree on the time."""
        if base_us is None:
            base_us = (time.time_ns() - time.perf_counter_ns()) // 1000
        self.base_us = base_us

    def now_us(self) -> int:
        return self.base_us + time.perf_counter_ns() // 1000

    def now(self) -> float:
        return time.perf_counter()


class Target(NamedTuple):
    """The address of the broker, with TLS, WebSocket and credentials."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: bytes | None = None
    websocket_url: str = ""  # empty: MQTT without WebSocket

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def websocket(self) -> WebSocket | None:
        """Return the framing of a new connection, if it is a WebSocket."""
        if not self.websocket_url:
            return None
        from mqtt_broker.client.websocket import WebSocket  # a library few need

        return WebSocket(self.websocket_url)


class LinkHandler(Protocol):
    """The owner of a link, called with its events."""

    def on_open(self, link: Link) -> None: ...

    def on_data(self, link: Link, data: bytes) -> None: ...

    def on_end(self, link: Link, why: str) -> None:
        """Act on the end of the connection, by the peer or a failure; the link is closed."""


class _SelectorPoller:
    """The methods of `select.epoll` that are used here, for systems without epoll."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, mask: int) -> None:
        if mask:
            self._selector.register(fd, self._events(mask))

    def modify(self, fd: int, mask: int) -> None:
        self.unregister(fd)
        self.register(fd, mask)

    def unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        if not self._selector.get_map():
            time.sleep(max(0.0, timeout))
            return []
        ready = self._selector.select(timeout)
        return [
            (
                key.fd,
                (READ if events & selectors.EVENT_READ else 0)
                | (WRITE if events & selectors.EVENT_WRITE else 0),
            )
            for key, events in ready
        ]

    def close(self) -> None:
        self._selector.close()

    @staticmethod
    def _events(mask: int) -> int:
        return (selectors.EVENT_READ if mask & READ else 0) | (
            selectors.EVENT_WRITE if mask & WRITE else 0
        )


class Link:
    """A connection from its first packet to its end, with TLS and WebSocket; faults act on it."""

    __slots__ = (
        "_backlog",
        "_engine",
        "_fd",
        "_mask",
        "_out",
        "_rate",
        "_sock",
        "_tls_done",
        "_websocket",
        "discarded_writes",
        "handler",
        "is_closed",
        "is_dirty",
        "is_half_open",
        "is_open",
        "is_stalled",
        "unsent",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        handler: LinkHandler,
        websocket: WebSocket | None = None,
    ) -> None:
        self._engine = engine
        self._websocket = websocket
        self._sock = sock
        self._fd = sock.fileno()
        self._mask = 0
        self._out: list[bytes] = []
        self._backlog = b""
        self._rate = 0  # limit of bytes read per second; 0: no limit
        self._tls_done = not isinstance(sock, ssl.SSLSocket)
        self.handler = handler
        self.is_open = False
        self.is_closed = False
        self.is_dirty = False
        self.is_stalled = False  # no data passes; it waits on both sides
        self.is_half_open = False  # no data passes; what is written is lost
        self.unsent = 0  # bytes that wait to be written
        self.discarded_writes = 0  # writes to a half-open connection

    def write(self, data: bytes) -> None:
        """Queue data to be sent at the end of this turn."""
        if self.is_half_open or self.is_closed:
            self.discarded_writes += 1
            return
        self._out.append(data)
        self.unsent += len(data)
        if not self.is_dirty:
            self.is_dirty = True
            self._engine.dirty.append(self)

    def flush(self) -> None:
        self.is_dirty = False
        if (
            self.is_stalled
            or self.is_closed
            or not self.is_open
            or not (self._out or self._backlog)
        ):
            return
        data = b"".join(self._out) if len(self._out) != 1 else self._out[0]
        self._out.clear()
        if self._websocket is not None and data:
            plain_bytes = len(data)
            data = self._websocket.wrap(data)
            self.unsent += len(data) - plain_bytes
        if self._backlog:
            data = self._backlog + data
            self._backlog = b""
        try:
            sent = self._sock.send(data if len(data) <= WRITE_BYTES else data[:WRITE_BYTES])
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError:
            self.unsent = 0
            return  # the next read reports the error
        self.unsent -= sent
        if sent < len(data):
            self._backlog = data[sent:]
            self._watch(self._mask | WRITE)
        elif self._mask & WRITE:
            self._watch(self._mask & ~WRITE)

    def _watch(self, mask: int) -> None:
        if mask == self._mask or self.is_closed:
            return
        poller = self._engine.poller
        if not self._mask:
            poller.register(self._fd, mask)
        elif mask:
            poller.modify(self._fd, mask)
        else:
            poller.unregister(self._fd)
        self._mask = mask

    # Events of the kernel.

    def start(self) -> None:
        self._engine.links[self._fd] = self
        self._watch(WRITE)

    def on_ready(self, mask: int) -> None:
        if not self.is_open:
            self._on_connecting()
            return
        if mask & ~WRITE:
            self._read()
        if mask & WRITE and not self.is_closed:
            self.flush()

    def _on_connecting(self) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._end(errno.errorcode.get(code, str(code)))
            return
        if not self._tls_done:
            assert isinstance(self._sock, ssl.SSLSocket)
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                self._watch(READ)
                return
            except ssl.SSLWantWriteError:
                self._watch(WRITE)
                return
            except (OSError, ssl.CertificateError) as error:
                self._end(str(error))
                return
            self._tls_done = True
        self.is_open = True
        self._watch(READ)
        if self._websocket is None:
            self.handler.on_open(self)
        else:
            self._write_framed(self._websocket.output())
        self.flush()

    def _write_framed(self, data: bytes) -> None:
        """Queue bytes that the WebSocket has framed: its handshake, PONG and CLOSE."""
        if data and not self.is_half_open and not self.is_closed:
            self._backlog += data
            self.unsent += len(data)

    def _on_data(self, data: bytes) -> None:
        websocket = self._websocket
        if websocket is None:
            self.handler.on_data(self, data)
            return
        was_open = websocket.is_open
        data = websocket.receive(data)
        self._write_framed(websocket.output())
        if not was_open and websocket.is_open:
            self.handler.on_open(self)
        if data and not self.is_closed:
            self.handler.on_data(self, data)
        self.flush()
        if websocket.error:
            self._end(websocket.error)

    def _on_eof(self) -> None:
        websocket = self._websocket
        if websocket is not None and not websocket.is_open:
            websocket.receive_end()
            self._end(websocket.error)
        else:
            self._end("")

    def _read(self) -> None:
        engine = self._engine
        room = min(READ_BYTES, max(1, self._rate // 10)) if self._rate else READ_BYTES
        while True:
            try:
                size = self._sock.recv_into(engine.buffer, room)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError,
                    ssl.SSLWantWriteError):  # fmt: skip
                return
            except OSError as error:
                self._end(error.strerror or str(error))
                return
            if not size:
                self._on_eof()
                return
            self._on_data(engine.view[:size].tobytes())
            if self.is_closed:
                return
            if self._rate:  # ten reads a second, each of a tenth of the rate
                self._watch(self._mask & ~READ)
                engine.after(0.1, self._read_on)
                return
            # TLS may have decrypted bytes that the kernel no longer reports.
            if type(self._sock) is socket.socket or not self._sock.pending():  # type: ignore[attr-defined]
                return

    def _read_on(self) -> None:
        if not self.is_closed and not self.is_stalled and not self.is_half_open:
            self._watch(self._mask | READ)

    # Faults.

    def stall(self) -> None:
        """Let no data pass until `resume`."""
        self.is_stalled = True
        self._watch(0)

    def resume(self) -> None:
        self.is_stalled = False
        if not self.is_closed and not self.is_half_open:
            self._watch(READ | (WRITE if self._backlog or not self.is_open else 0))
            self.flush()

    def make_half_open(self) -> None:
        """Make the connection half-open: it stays open, but no data passes any more."""
        self.is_half_open = True
        self._out.clear()
        self._watch(0)

    def resume_reading(self) -> None:
        """Read from a half-open connection again, to see how the broker ends it."""
        self.is_half_open = False
        self.is_stalled = False
        self._watch(READ)

    def limit_read_rate(self, bytes_per_s: int) -> None:
        """Limit the bytes read per second; 0: no limit."""
        self._rate = bytes_per_s
        if not bytes_per_s:
            self._read_on()

    # Ends.

    def _end(self, why: str) -> None:
        if not self.is_closed:
            self.close()
            self.handler.on_end(self, why)

    def write_last(self, data: bytes) -> None:
        """Write the last bytes and shut down writing; reading continues until the peer closes.

        Closing a socket with unread bytes sends a reset, which may overtake the last bytes and make
        the broker publish the will.
        """
        self.write(data)
        self.flush()
        if self._websocket is not None:
            self._write_framed(self._websocket.close())
            self.flush()
        if not self.is_closed and not self._backlog:
            try:
                if isinstance(self._sock, ssl.SSLSocket):
                    self._sock.unwrap()
                self._sock.shutdown(socket.SHUT_WR)
            except (OSError, ValueError):
                return  # the peer has closed, or ends TLS at the same time

    def reset(self) -> None:
        """Break the connection: data in transit in either direction is lost."""
        if not self.is_closed:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.close()

    def close(self) -> None:
        if not self.is_closed:
            self._watch(0)
            self.is_closed = True
            self._engine.links.pop(self._fd, None)
            self._out.clear()
            self._backlog = b""
            self._sock.close()


class Engine:
    """The links and timers of a process, driven turn by turn."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.poller: Any = select.epoll() if hasattr(select, "epoll") else _SelectorPoller()
        self.links: dict[int, Link] = {}
        self.dirty: list[Link] = []
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def connect(self, target: Target, address: tuple[int, Any], handler: LinkHandler) -> Link:
        """Return a link that is connecting. Raises OSError."""
        family, place = address
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(place)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, errno.errorcode.get(code, str(code)))
            if target.tls is not None:
                sock = target.tls.wrap_socket(
                    sock, server_hostname=target.host, do_handshake_on_connect=False
                )
        except OSError:
            sock.close()
            raise
        link = Link(self, sock, handler, target.websocket())
        link.start()
        return link

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(time.perf_counter() + seconds, act)

    def next_timer(self) -> float:
        return self._timers[0][0] if self._timers else float("inf")

    def turn(self, until: float) -> None:
        """Wait for ready sockets, at most until `until`; serve them and the timers."""
        self.flush()
        wait = min(until, self.next_timer()) - time.perf_counter()
        links = self.links
        for fd, mask in self.poller.poll(max(0.0, wait), EVENTS_MAX):
            link = links.get(fd)
            if link is not None:  # an earlier event of this turn may have closed it
                link.on_ready(mask)
        self.run_timers()
        self.flush()

    def run_timers(self) -> None:
        timers = self._timers
        now = time.perf_counter()
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2]()

    def flush(self) -> None:
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for link in dirty:
                link.flush()

    def close(self) -> None:
        for link in list(self.links.values()):
            link.close()
        self.poller.close()
