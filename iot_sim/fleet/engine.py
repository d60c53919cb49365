"""Sockets and timers for many thousand connections in one thread.

A turn is: ask the kernel once which sockets are ready, read each of them once, run the timers
that are due, then write once to each connection that got something. There is no task and no
callback object for a device: an idle connection costs its socket and a few hundred bytes.
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
from typing import Any, Final, NamedTuple, Protocol

READ: Final = 1
WRITE: Final = 4
EVENTS_MAX: Final = 1024
READ_BYTES: Final = 262_144
WRITE_BYTES: Final = 262_144  # handed to the kernel in one call
RESET: Final = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: close with a reset, what is unsent is gone


class Clock:
    """Wall-clock time of the run that never jumps: read once, then carried on by a steady one."""

    def __init__(self, base_us: int | None = None) -> None:
        """`base_us`: wall-clock minus steady time, so that processes agree to the microsecond."""
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

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Talker(Protocol):
    """The owner of a link, called with its events."""

    def on_open(self, link: Link) -> None: ...

    def on_data(self, link: Link, data: bytes) -> None: ...

    def on_end(self, link: Link, why: str) -> None:
        """Act on the end of the connection, by the peer or a failure; the link is closed."""


class _SelectorPoller:
    """The calls of `select.epoll` that are used here, for systems that have another poller."""

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
    """A TCP connection from its first packet to its end; faults act on it."""

    __slots__ = ("_backlog", "_engine", "_fd", "_mask", "_out", "_rate", "_sock", "_tls_done",
                 "is_closed", "is_deaf", "is_dirty", "is_held", "is_open", "swallowed",
                 "talker", "unsent")  # fmt: skip

    def __init__(self, engine: Engine, sock: socket.socket, talker: Talker) -> None:
        self._engine = engine
        self._sock = sock
        self._fd = sock.fileno()
        self._mask = 0
        self._out: list[bytes] = []
        self._backlog = b""
        self._rate = 0  # bytes a second it may read; 0: as they come
        self._tls_done = not isinstance(sock, ssl.SSLSocket)
        self.talker = talker
        self.is_open = False
        self.is_closed = False
        self.is_dirty = False
        self.is_held = False  # a stall: nothing passes, everything waits
        self.is_deaf = False  # half-open: nothing passes, and what is written is gone
        self.unsent = 0  # bytes that wait to be written
        self.swallowed = 0  # writes that a half-open connection took

    def write(self, data: bytes) -> None:
        """Queue data that is sent at the end of this turn."""
        if self.is_deaf or self.is_closed:
            self.swallowed += 1
            return
        self._out.append(data)
        self.unsent += len(data)
        if not self.is_dirty:
            self.is_dirty = True
            self._engine.dirty.append(self)

    def flush(self) -> None:
        self.is_dirty = False
        if self.is_held or self.is_closed or not self.is_open or not (self._out or self._backlog):
            return
        data = b"".join(self._out) if len(self._out) != 1 else self._out[0]
        self._out.clear()
        if self._backlog:
            data = self._backlog + data
            self._backlog = b""
        try:
            sent = self._sock.send(data if len(data) <= WRITE_BYTES else data[:WRITE_BYTES])
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError:
            self.unsent = 0
            return  # the read side learns why
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

    # What the kernel says.

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
        self.talker.on_open(self)
        self.flush()

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
                self._end("")
                return
            self.talker.on_data(self, engine.view[:size].tobytes())
            if self.is_closed:
                return
            if self._rate:  # ten reads a second, each of a tenth of the rate
                self._watch(self._mask & ~READ)
                engine.after(0.1, self._read_on)
                return
            # TLS keeps bytes of its own, which the kernel does not tell of.
            if type(self._sock) is socket.socket or not self._sock.pending():  # type: ignore[attr-defined]
                return

    def _read_on(self) -> None:
        if not self.is_closed and not self.is_held and not self.is_deaf:
            self._watch(self._mask | READ)

    # Faults.

    def hold(self) -> None:
        """Let nothing pass until `release`."""
        self.is_held = True
        self._watch(0)

    def release(self) -> None:
        self.is_held = False
        if not self.is_closed and not self.is_deaf:
            self._watch(READ | (WRITE if self._backlog or not self.is_open else 0))
            self.flush()

    def deafen(self) -> None:
        """Make the connection half-open: it stands, and nothing passes any more."""
        self.is_deaf = True
        self._out.clear()
        self._watch(0)

    def listen_again(self) -> None:
        """Look at a half-open connection once more, to see how the broker ends it."""
        self.is_deaf = False
        self.is_held = False
        self._watch(READ)

    def slow(self, bytes_per_s: int) -> None:
        """Read so much at most; 0: everything again."""
        self._rate = bytes_per_s
        if not bytes_per_s:
            self._read_on()

    # Ends.

    def _end(self, why: str) -> None:
        if not self.is_closed:
            self.close()
            self.talker.on_end(self, why)

    def say_last(self, data: bytes) -> None:
        """Write the last bytes and the end; reading goes on until the peer closes too.

        A socket that is closed with unread bytes in it sends a reset, which may overtake what was
        said last and make the broker publish the will.
        """
        self.write(data)
        self.flush()
        if not self.is_closed and not self._backlog:
            try:
                if isinstance(self._sock, ssl.SSLSocket):
                    self._sock.unwrap()
                self._sock.shutdown(socket.SHUT_WR)
            except (OSError, ValueError):
                return  # the peer was faster, or answers to the end of TLS with its own

    def reset(self) -> None:
        """Break the connection: what is under way in either direction is gone."""
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

    def connect(self, target: Target, address: tuple[int, Any], talker: Talker) -> Link:
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
        link = Link(self, sock, talker)
        link.start()
        return link

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(time.perf_counter() + seconds, act)

    def next_timer(self) -> float:
        return self._timers[0][0] if self._timers else float("inf")

    def turn(self, until: float) -> None:
        """Serve what is ready; wait for it no longer than `until`."""
        self.flush()
        wait = min(until, self.next_timer()) - time.perf_counter()
        links = self.links
        for fd, mask in self.poller.poll(max(0.0, wait), EVENTS_MAX):
            link = links.get(fd)
            if link is not None:  # another one of this turn may have closed it
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
