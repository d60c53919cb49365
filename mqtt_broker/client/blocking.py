"""A blocking MQTT client: a socket and a clock around `protocol`.

Rules of this module: it decides nothing about MQTT. `step` writes what is due, waits once,
and returns what happened; what the caller answers leaves with the next step.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from mqtt_broker.client.errors import ClientError, TimedOut
from mqtt_broker.client.protocol import ClientProtocol, ClientSession, Closed, Event
from mqtt_broker.codec.packets import Connect
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties

if TYPE_CHECKING:
    from mqtt_broker.client.websocket import WebSocket

CONNECT_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0
READ_BYTES: Final = 262_144
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Address(NamedTuple):
    """The address of a broker: TCP or a Unix socket, with TLS and WebSocket if they are used."""

    host: str
    port: int
    unix_path: str | None = None  # in place of host and port
    tls: ssl.SSLContext | None = None
    websocket_path: str | None = None  # None: MQTT without WebSocket
    bind_host: str | None = None  # the address that the client connects from

    def __str__(self) -> str:
        if self.unix_path is not None:
            return self.unix_path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def tls_context(
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    *,
    ca_path: str | None = None,
    checks_host: bool = True,
) -> ssl.SSLContext:
    """Make a client's TLS context; it trusts the system's CAs if none are given.

    Raises OSError (ssl.SSLError is one) for a file that cannot be used.
    """
    context = ssl.create_default_context(cafile=ca_file, capath=ca_path)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    context.check_hostname = checks_host
    return context


class Deadline:
    """A time limit, or none."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        """Raise TimedOut when the time is over."""
        if self.left_s == 0.0:
            raise TimedOut("timed out")


class Client:
    """A connection. Leaving its `with` block sends DISCONNECT if the connection is still open."""

    def __init__(
        self,
        address: Address,
        connect: Connect,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        enforces_receive_maximum: bool = True,
        debug: bool = False,
        session: ClientSession | None = None,
        disconnect_properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Connect the socket and queue CONNECT; go on with the session of an earlier connection.

        Raises ClientError.
        """
        self.protocol = ClientProtocol(
            connect,
            _trace if debug else None,
            enforces_receive_maximum=enforces_receive_maximum,
            session=session,
        )
        self._disconnect_properties = disconnect_properties
        self._unsent = b""
        self._write_failed = False
        self._connect_timeout_s = connect_timeout_s
        self._other_transport = "wants TLS" if address.tls is None else "is not one of MQTT"
        self._connack_due = time.monotonic() + connect_timeout_s
        self._socket, self._websocket = _open(address, connect_timeout_s)
        # poll and not epoll: epoll refuses regular files, and standard input may be one.
        self._selector = selectors.PollSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent) + self.protocol.output_bytes

    def watch(self, descriptor: int) -> None:
        """Let `step` return early when this descriptor can be read, too."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def flush(self) -> None:
        """Write what is due, as far as the socket accepts it now."""
        self._take_output()
        if self._unsent and not self._write_failed:
            try:
                sent = self._socket.send(self._unsent)
            except _NOT_NOW:
                sent = 0
            except OSError:
                # The broker may have sent a reason before it closed: reading finds it.
                self._write_failed = True
                sent = 0
            self._unsent = self._unsent[sent:]
        write = selectors.EVENT_WRITE if self._unsent and not self._write_failed else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | write)

    def step(self, timeout_s: float | None = None) -> tuple[list[Event], bool]:
        """Write, wait once, read; return what happened, and whether a watched source is ready.

        Raises ClientError when no CONNACK comes in time.
        """
        self.flush()
        now = time.monotonic()
        waits = [] if timeout_s is None else [timeout_s]
        due = self.protocol.next_tick
        if due is not None:
            waits.append(max(0.0, due - now))
        if not self.protocol.connected:
            if now >= self._connack_due:
                raise ClientError(f"no CONNACK within {self._connect_timeout_s:g} s")
            waits.append(self._connack_due - now)
        ready = self._selector.select(min(waits, default=None))
        events: list[Event] = []
        others = False
        for key, mask in ready:
            if key.fileobj is not self._socket:
                others = True
            elif mask & selectors.EVENT_READ:
                events += self._read()
        events += self.protocol.tick(time.monotonic())
        return events, others

    def close(self) -> None:
        """Send DISCONNECT and wait until the broker has closed.

        A socket that is closed with unread bytes in it sends a reset, which may overtake the
        DISCONNECT and make the broker publish the Will: so the rest is read first.
        """
        if self.protocol.connected:
            self.protocol.disconnect(properties=self._disconnect_properties)
            with contextlib.suppress(OSError):
                self._finish()
        self._selector.close()
        self._socket.close()

    def _finish(self) -> None:
        stop = time.monotonic() + CLOSE_TIMEOUT_S
        self._socket.settimeout(CLOSE_TIMEOUT_S)
        self._take_output()
        if self._websocket is not None:
            self._unsent += self._websocket.close()
        if not self._write_failed:
            self._socket.sendall(self._unsent)
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(READ_BYTES) and time.monotonic() < stop:
            pass

    def _take_output(self) -> None:
        output = self.protocol.take_output(time.monotonic())
        if self._websocket is not None and output:
            output = self._websocket.wrap(output)
        self._unsent += output

    def _read(self) -> list[Event]:
        try:
            data = self._socket.recv(READ_BYTES)
        except _NOT_NOW:
            return []
        except OSError as error:
            why = _tls_problem(error) if isinstance(error, ssl.SSLError) else error.strerror
            return [Closed(f"the connection broke: {why or error}")]
        if not data:
            return [Closed(self._why_closed())]
        websocket = self._websocket
        if websocket is None:
            return self.protocol.receive(data)
        events = self.protocol.receive(websocket.receive(data))
        self._unsent += websocket.output()
        if websocket.error and not self.protocol.closed:
            events.append(Closed(f"the broker broke the WebSocket protocol: {websocket.error}"))
        return events

    def _why_closed(self) -> str:
        why = "the broker closed the connection without a reason"
        if self.protocol.connected:
            return why
        return f"{why}, before CONNACK; perhaps its port {self._other_transport}"


def _open(address: Address, timeout_s: float) -> tuple[socket.socket, WebSocket | None]:
    """Connect, with TLS and WebSocket where the address has them. Raises ClientError."""
    try:
        link = _connected_socket(address, timeout_s)
        try:
            if address.tls is not None:
                link = address.tls.wrap_socket(link, server_hostname=address.host)
            websocket = None
            if address.websocket_path is not None:
                scheme = "ws" if address.tls is None else "wss"
                websocket = _open_websocket(link, f"{scheme}://{address}{address.websocket_path}")
            link.setblocking(False)
        except BaseException:
            link.close()
            raise
    except socket.gaierror as error:
        raise ClientError(f"no address for host {address.host!r}: {error.strerror}") from None
    except ssl.SSLError as error:
        raise ClientError(f"cannot connect to {address}: {_tls_problem(error)}") from None
    except ConnectionRefusedError as error:
        raise ClientError(
            f"cannot connect to {address}: {error.strerror}; is a broker listening there?"
        ) from None
    except OSError as error:
        raise ClientError(f"cannot connect to {address}: {error.strerror or error}") from None
    return link, websocket


def _open_websocket(link: socket.socket, url: str) -> WebSocket:
    """Open a WebSocket; the broker sends nothing more before CONNECT. Raises ClientError."""
    from mqtt_broker.client.websocket import WebSocket  # a library few need

    websocket = WebSocket(url)
    link.sendall(websocket.output())
    while not websocket.is_open:
        data = link.recv(READ_BYTES)
        if data:
            websocket.receive(data)
        else:
            websocket.receive_end()
        if websocket.error:
            raise ClientError(f"{url} is {websocket.error}")
    return websocket


def _tls_problem(error: ssl.SSLError) -> str:
    """Describe why a TLS handshake failed: who is not trusted, and what may be done."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    said = error.reason or ""
    if said in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return "it does not speak TLS"
    if said == "UNEXPECTED_EOF_WHILE_READING":
        return "it closed the connection during the TLS handshake; perhaps it does not speak TLS"
    alert = said.partition("_ALERT_")[2]  # SSLV3_ALERT_BAD_CERTIFICATE, for one
    if alert:
        return f"it refuses the TLS handshake: {alert.replace('_', ' ').lower()}"
    return f"the TLS handshake failed: {said.replace('_', ' ').lower() or error.strerror}"


def _connected_socket(address: Address, timeout_s: float) -> socket.socket:
    if address.unix_path is None:
        source = None if address.bind_host is None else (address.bind_host, 0)
        link = socket.create_connection((address.host, address.port), timeout_s, source)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(timeout_s)
        link.connect(address.unix_path)
    except BaseException:
        link.close()
        raise
    return link


def _trace(line: str) -> None:
    sys.stderr.write(f"{line}\n")
