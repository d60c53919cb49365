"""A connection to a NATS server, from its TCP handshake to its end.

It says hello, upgrades to TLS where that is asked for, proves who it is, subscribes, and is ready
when the server answers the PING behind all that. What waits for the socket is bounded in bytes; a
server that is slow or stopped costs frames, never memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, Protocol

from mqtt_broker.cluster.bus.nats_protocol import (
    PING,
    PONG,
    NatsParser,
    encode_connect,
    encode_publish,
)
from mqtt_broker.cluster.bus.problems import NatsProtocolError
from mqtt_broker.cluster.bus.settings import NatsServer, NatsSettings
from mqtt_broker.cluster.bus.tls_stream import TlsStream
from mqtt_broker.cluster.frames.layout import FRAME_BYTES_MAX
from mqtt_broker.version import __version__

SEND_BYTES_MAX: Final = 8_388_608  # that wait for the socket
_FLUSH_BYTES: Final = 262_144  # that wait for the end of the turn
_CHUNKS: Final = 64  # handed to the kernel in one call
_COMPLAINT_CHARS: Final = 200
Act = Callable[[], None]
Address = tuple[int, Any]  # the family and what `connect` takes


class Sockets(Protocol):
    """The poller, as far as a link needs it."""

    def add(self, fd: int, on_readable: Act) -> None:
        """Call `on_readable` in every turn in which the socket has input."""

    def watch(self, fd: int, on_readable: Act | None, on_writable: Act | None) -> None:
        """Change the callbacks of a socket that was added."""

    def remove(self, fd: int) -> None:
        """Forget a socket."""


class Owner(Protocol):
    """The bus, as far as a link needs it."""

    def subscriptions(self) -> bytes:
        """Return the commands that subscribe to all that is wanted now."""

    def on_ready(self) -> None:
        """Note that the server has executed all of them."""

    def on_message(self, data: memoryview) -> None:
        """Take a message; the view is valid until this returns."""

    def on_oversized(self) -> None:
        """Note that a message was skipped."""

    def on_complaint(self, text: str) -> None:
        """Take a complaint of the server that does not end the connection."""

    def on_lost(self, reason: str) -> None:
        """Note that the connection has ended."""


class NatsLink:
    """A connection that is being made, ready, or closed: a closed one is done with."""

    def __init__(
        self,
        sockets: Sockets,
        owner: Owner,
        settings: NatsSettings,
        server: NatsServer,
        address: Address,
    ) -> None:
        self._sockets = sockets
        self._owner = owner
        self._settings = settings
        self._server = server
        self._parser = NatsParser(self)
        self._tls: TlsStream | None = None
        self._info: Mapping[str, Any] | None = None
        self._has_said_hello = False
        self._is_connecting = True
        self._is_closed = False
        self._is_blocked = False  # the kernel takes no more at present
        self._chunks: deque[bytes | memoryview] = deque()
        self._complaint = ""
        self.queued_bytes = 0
        self.is_ready = False
        self._has_heard = True  # since somebody asked last
        self.payload_bytes_max = FRAME_BYTES_MAX
        self._address = address
        self._sock = socket.socket(address[0], socket.SOCK_STREAM)
        self._sock.setblocking(False)

    def open(self) -> None:
        """Begin to connect."""
        found = self._sock.connect_ex(self._address[1])
        self._sockets.add(self._sock.fileno(), self._on_readable)
        if found in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._watch()
        else:
            self._lose(os.strerror(found))

    @property
    def is_open(self) -> bool:
        """Tell whether the server takes commands."""
        return self._has_said_hello and not self._is_closed

    def take_heard(self) -> bool:
        """Tell whether any byte has come since this was asked last."""
        found, self._has_heard = self._has_heard, False
        return found

    # To the server.

    def publish(self, subject: bytes, data: bytes) -> bool:
        """Send a message when the turn ends; False: too many bytes wait already."""
        if self.queued_bytes + len(data) > SEND_BYTES_MAX:
            return False
        self._queue(encode_publish(subject, data))
        if self.queued_bytes >= _FLUSH_BYTES:
            self.flush()
        return True

    def command(self, data: bytes) -> None:
        """Send commands at once."""
        self._queue(data)
        self.flush()

    @property
    def queued(self) -> int:
        """Count the messages and commands that the kernel has not taken."""
        return len(self._chunks)

    def flush(self) -> None:
        """Hand to the kernel what waits, as far as it takes it."""
        chunks = self._chunks
        if self._is_blocked or not chunks or self._is_closed:
            return
        try:
            while chunks:
                self._on_sent(self._sock.sendmsg(islice(chunks, _CHUNKS)))
        except (BlockingIOError, InterruptedError):
            self._is_blocked = True
            self._watch()
        except OSError as error:
            self._lose(_said(error))

    def _queue(self, data: bytes) -> None:
        if self._is_closed:
            return
        if self._tls is not None:
            try:
                data = self._tls.encrypt(data)
            except ssl.SSLError as error:
                self._lose(f"TLS failed: {error.reason or error}")
                return
        self._chunks.append(data)
        self.queued_bytes += len(data)

    def _on_sent(self, size: int) -> None:
        chunks = self._chunks
        self.queued_bytes -= size
        while size:
            first = chunks.popleft()
            if size < len(first):
                chunks.appendleft(memoryview(first)[size:])
                return
            size -= len(first)

    def _on_writable(self) -> None:
        if self._is_connecting:
            self._on_connected()
        else:
            self._is_blocked = False
            self.flush()
            if not self._is_blocked and not self._is_closed:
                self._watch()

    def _watch(self) -> None:
        on_writable = self._on_writable if self._is_blocked or self._is_connecting else None
        on_readable = None if self._is_connecting else self._on_readable
        self._sockets.watch(self._sock.fileno(), on_readable, on_writable)

    def _on_connected(self) -> None:
        found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if found:
            self._lose(os.strerror(found))
            return
        self._is_connecting = False
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    # From the server.

    def _on_readable(self) -> None:
        try:
            self._read()
        except (BlockingIOError, InterruptedError):
            return
        except ssl.SSLCertVerificationError as error:
            self._lose(f"its certificate is not accepted: {error.verify_message}")
        except ssl.SSLError as error:
            self._lose(f"TLS failed: {error.reason or error}")
        except OSError as error:
            self._lose(_said(error))
        except NatsProtocolError as error:
            self._lose(f"it does not speak the protocol of NATS: {error}")

    def _read(self) -> None:
        space = self._parser.space()
        size = self._sock.recv_into(space)
        self._has_heard = True
        if not size:
            self._lose(self._complaint or "it has closed the connection")
        elif self._tls is None:
            self._parser.take(size)
        else:
            self._receive_tls(space[:size].tobytes())

    def _receive_tls(self, data: bytes) -> None:
        assert self._tls is not None
        was_open = self._tls.is_open
        try:
            plain = self._tls.receive(data)
        finally:  # an alert says why
            self._send_raw(self._tls.pending())
        if self._tls.is_open and not was_open:
            self._say_hello()
        self._parser.feed(plain)

    def _send_raw(self, data: bytes) -> None:
        if data and not self._is_closed:
            self._chunks.append(data)
            self.queued_bytes += len(data)
            self.flush()

    def on_info(self, info: Mapping[str, Any]) -> None:
        """Take what the server says about itself: at first, and when it changes."""
        payload = info.get("max_payload")
        if isinstance(payload, int) and payload > 0:
            self.payload_bytes_max = min(payload, FRAME_BYTES_MAX)
        if self._info is not None:
            return
        self._info = info
        if self._server.needs_tls or info.get("tls_required"):
            self._begin_tls(info)
        else:
            self._say_hello()

    def _begin_tls(self, info: Mapping[str, Any]) -> None:
        if not (info.get("tls_required") or info.get("tls_available")):
            self._lose("it offers no TLS, and its URL says tls://")
            return
        self._tls = TlsStream(self._settings.tls, self._server.host)
        self._receive_tls(b"")

    def _say_hello(self) -> None:
        self._has_said_hello = True
        self.command(encode_connect(self._hello()) + self._owner.subscriptions() + PING)

    def _hello(self) -> dict[str, Any]:
        """Return the options of CONNECT."""
        settings, server = self._settings, self._server
        options: dict[str, Any] = {
            "name": f"fleetmq {settings.cluster} {settings.name}".strip(),
            "lang": "python",
            "version": __version__,
            "protocol": 1,
            "verbose": False,
            "pedantic": False,
            "echo": False,
            "tls_required": self._tls is not None,
        }
        if server.user:
            options |= {"user": server.user, "pass": server.password}
        if server.token:
            options["auth_token"] = server.token
        credentials = settings.credentials
        nonce = (self._info or {}).get("nonce")
        if credentials is not None and isinstance(nonce, str):
            options["sig"] = credentials.sign(nonce)
            if credentials.jwt:
                options["jwt"] = credentials.jwt
            else:
                options["nkey"] = credentials.public_key
        return options

    def on_message(self, data: memoryview) -> None:
        """Hand a message over."""
        self._owner.on_message(data)

    def on_oversized(self) -> None:
        """Hand over that a message was skipped."""
        self._owner.on_oversized()

    def on_ping(self) -> None:
        """Answer."""
        self.command(PONG)

    def on_pong(self) -> None:
        """Be ready, at the first."""
        if self._has_said_hello and not self.is_ready:
            self.is_ready = True
            self._owner.on_ready()

    def on_error(self, text: str) -> None:
        """Keep what the server says: it may be why it closes the connection."""
        text = "".join(one if one.isprintable() else "?" for one in text[:_COMPLAINT_CHARS])
        self._complaint = f"it says: {text}"
        self._owner.on_complaint(text)

    # The end.

    def close(self, reason: str) -> None:
        """End the connection for a reason of our own."""
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.is_ready = False
        self._parser.close()
        self._sockets.remove(self._sock.fileno())
        self._sock.close()
        self._owner.on_lost(reason)
        self._chunks.clear()
        self.queued_bytes = 0


def _said(error: OSError) -> str:
    return error.strerror or str(error)
