"""A client's socket: read once a turn, write at once, buffer what the peer is slow to read.

A link uses the socket directly and the poller tells when it is ready: an isolated message costs
10 us this way and 15 us through an asyncio transport. TLS, WebSocket and the PROXY protocol, which
some listeners have between the socket and MQTT, are in `layered_link`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from mqtt_broker.core import dispatch
from mqtt_broker.core.interfaces.link import ONLY_ACKS
from mqtt_broker.server.net.poller import READ_BYTES, UNREAD_MAX
from sessions.messages.outbox import TURN_BYTES_MAX

if TYPE_CHECKING:
    from mqtt_broker.core.clients.connection import Connection
    from mqtt_broker.core.interfaces.access import PeerCertificate
    from mqtt_broker.core.limits.token_bucket import ListenerLimits
    from mqtt_broker.server.config.endpoints import ListenerRules
    from mqtt_broker.server.net.context import LinkCount, ListenerState, NetContext

_WRITE_BYTES: Final = 1_048_576  # handed to the kernel in one call when a backlog is sent
_CHEAP_BYTES_A_UNIT: Final = 64  # large payloads: reading costs less than copying the bytes
_LINGER_S: Final = 2.0  # how long a closed connection's last bytes may take to be read


class SocketLink:
    """The link over a TCP or unix socket."""

    __slots__ = (
        "_ack_runs",
        "_address",
        "_backlog",
        "_context",
        "_is_admitted",
        "_is_closing",
        "_is_deferred",
        "_linger",
        "_listener",
        "_poller",
        "backlog_bytes",
        "certificate",
        "connection",
        "is_queued",
        "is_reading",
        "lingering_bytes",
        "sock",
    )

    def __init__(
        self, context: NetContext, sock: socket.socket, address: object, listener: ListenerState
    ) -> None:
        self._context = context
        self._listener = listener
        self._poller = context.poller
        self.sock = sock
        self._address = address
        self._backlog: deque[memoryview] | None = None
        self.backlog_bytes = 0
        self._is_closing = False
        self.is_reading = True
        self._ack_runs = 0  # read in a row with nothing else; -1: the client publishes
        self._is_deferred = False  # the poller reads it some milliseconds late
        self._is_admitted = False  # counted by the connection filter
        self._linger: asyncio.TimerHandle | None = None
        self.lingering_bytes = 0  # unread when it was closed
        self.connection: Connection | None = None
        self.certificate: PeerCertificate | None = None  # that the client proved to have
        self.is_queued = False  # in the handshake queue
        listener.add()

    def open(self) -> None:
        """Start MQTT, unless the connection filter refuses the peer."""
        if self._admit():
            self._begin_mqtt()
        else:
            self.abort()

    def _admit(self) -> bool:
        """Ask the connection filter, now that the peer's address is known.

        A refused peer gets no answer.
        """
        context = self._context
        connection_filter = context.connection_filter
        if connection_filter is None:
            return True
        reason = connection_filter.admit(self.peer)
        if reason:
            context.refuse(self.listener, reason, self.peer, "")
            return False
        self._is_admitted = True
        return True

    def _begin_mqtt(self) -> None:
        """Hand the connection over to the broker."""
        context = self._context
        context.track(self)
        now = context.turn.now()
        connection = context.broker.accept(self, now)
        seconds = self.rules.connect_timeout_s
        if seconds:
            connection.expect_connect(seconds, now)
        self.connection = connection
        self._watch_for_connect()

    def _watch_for_connect(self) -> None:
        self._poller.add(self.sock.fileno(), self._on_first_readable)

    @property
    def peer(self) -> str:
        if isinstance(self._address, tuple):
            host, port = self._address[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return "unix"

    @property
    def listener(self) -> str:
        """The name of its listener, for rules and logs."""
        return self._listener.name

    @property
    def link_count(self) -> LinkCount:
        """The count of its listener's links."""
        return self._listener.count

    @property
    def rules(self) -> ListenerRules:
        return self._listener.rules

    @property
    def allowance(self) -> ListenerLimits | None:
        """The limits that its listener sets."""
        return self._listener.limits

    # Reading.

    def _on_first_readable(self) -> None:
        """Read the CONNECT, or queue it: it costs as much as a hundred messages."""
        if self._context.handshakes.has_time():
            self.proceed()
        else:
            self._enqueue()

    def _enqueue(self) -> None:
        self.is_queued = True
        self._context.handshakes.enqueue(self)
        self._watch()

    def proceed(self) -> None:
        """Read and process the input. The link is no longer queued."""
        self.is_queued = False
        if not self._is_closing:
            self._watch()
            self._on_readable()

    def _on_readable(self) -> None:
        size = self._read()
        if size == self._poller.read_bytes and size < READ_BYTES:
            self._read_what_is_cheap(size)
        outboxes = self._context.broker.outboxes
        if outboxes.turn_bytes > TURN_BYTES_MAX and not outboxes.has_left:
            self._context.broker.flush(self._context.turn.clock())

    def _read_what_is_cheap(self, size: int) -> None:
        """Continue reading while many sockets wait, if it is little work, as for large payloads."""
        work = self._context.broker.runtime.work
        left = READ_BYTES - size
        while left > 0 and self.is_reading and not self._is_closing:
            before = work.spent
            size = self._read()
            left -= size
            if size < self._poller.read_bytes or work.spent - before > size // _CHEAP_BYTES_A_UNIT:
                return

    def _read(self) -> int:
        """Read once and process the input; return its size."""
        context = self._context
        try:
            size = self.sock.recv_into(context.read_buffer, self._poller.read_bytes)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            size = 0
        connection = self.connection
        assert connection is not None
        now = context.turn.clock()
        if size:
            try:
                data = context.read_view[:size].tobytes()
                self._ack_runs = dispatch.receive(connection, data, now, self._ack_runs)
            except Exception:  # closing the connection failed, too: close the socket at least
                self._release()
                raise
            if (self._ack_runs >= ONLY_ACKS) is not self._is_deferred and self._backlog is None:
                self._defer_reads(not self._is_deferred)
        else:
            self._release()
            connection.lost(now)
        return size

    def _defer_reads(self, is_deferred: bool) -> None:
        if self.is_reading and not self._is_closing:
            self._is_deferred = is_deferred
            self._poller.set_deferred(self.sock.fileno(), is_deferred)

    def pause_reading(self) -> None:
        if self.is_reading and not self._is_closing:
            self.is_reading = False
            self._watch()

    def resume_reading(self) -> None:
        if not self.is_reading and not self._is_closing:
            self.is_reading = True
            self._watch()

    def _watch(self) -> None:
        """Tell the poller which events this socket waits for now."""
        on_readable = None
        if self._is_closing:
            on_readable = self._discard
        elif self.is_reading and not self.is_queued:
            on_readable = self._on_readable
        on_writable = None if self._backlog is None else self._on_writable
        self._poller.watch(self.sock.fileno(), on_readable, on_writable)

    # Writing.

    def write(self, data: bytes) -> int:
        if self._is_closing:
            return 0
        if self._is_deferred and self.connection is not None:
            self._poller.expect(self.connection.urgency(UNREAD_MAX))
        if self._backlog is not None:
            self._backlog.append(memoryview(data))
            self.backlog_bytes += len(data)
            return self.backlog_bytes
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return 0  # the read side will see the end of the connection
        if sent == len(data):
            return 0
        self._backlog = deque([memoryview(data)[sent:]])
        self.backlog_bytes = len(data) - sent
        self._watch()
        return self.backlog_bytes

    def _on_writable(self) -> None:
        backlog = self._backlog
        assert backlog is not None
        try:
            while backlog:
                sent = self.sock.send(backlog[0][:_WRITE_BYTES])
                self.backlog_bytes -= sent
                if sent == len(backlog[0]):
                    backlog.popleft()
                else:
                    backlog[0] = backlog[0][sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            backlog.clear()
            self.backlog_bytes = 0
        if not backlog:
            self._backlog = None
            self._watch()
            if self._is_closing:
                self._shut()
                return
        if not self._is_closing and self.connection is not None:
            self.connection.on_written(self.backlog_bytes, self._context.turn.now())

    # Closing.

    def close(self) -> None:
        """Send the buffered output, then close, and give the peer a moment to read it.

        Closing a socket with unread input resets the connection, and the peer then loses the
        reason that was sent. So input is read and discarded until the peer closes. The output of
        all links that end this way is limited in bytes; links above the limit close at once.
        """
        if self._is_closing:
            return
        self._is_closing = True
        if self.sock.fileno() < 0:
            return
        if not self._context.may_linger(self.backlog_bytes):
            self._release()
            return
        self.lingering_bytes = self.backlog_bytes
        self._watch()
        self._linger = self._context.loop.call_later(_LINGER_S, self._release)
        if self._backlog is None:
            self._shut()

    def _shut(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._release()

    def _discard(self) -> None:
        try:
            size = self.sock.recv_into(self._context.read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self._release()

    def abort(self) -> None:
        """Close at once; unsent output is lost."""
        self._is_closing = True
        self._release()

    def _release(self) -> None:
        """Close the descriptor and stop counting the link."""
        self._is_closing = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._context.stop_lingering(self.lingering_bytes)
        self.lingering_bytes = 0
        fd = self.sock.fileno()
        if fd < 0:
            return
        context = self._context
        self._poller.remove(fd)
        self._backlog = None
        self.sock.close()
        self._listener.remove()
        context.untrack(self)
        if self._is_admitted and context.connection_filter is not None:
            context.connection_filter.release(self.peer)
