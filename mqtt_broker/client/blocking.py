"""A blocking MQTT client: a socket and a clock around `client_protocol`.

Rules of this module: it decides nothing about MQTT. `step` writes what is due, waits once,
and returns what happened; what the caller answers leaves with the next step.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import sys
import time
from types import FrameType
from typing import Final, NamedTuple, Self

from mqtt_broker.cli.errors import TIMED_OUT, Failure
from mqtt_broker.client.protocol import ClientProtocol, Closed, Event
from mqtt_broker.codec.packets import Connect
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties

CONNECT_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0
READ_BYTES: Final = 262_144


class Target(NamedTuple):
    """Where the broker is: a host and port, or the path of a Unix socket."""

    host: str
    port: int
    unix: str | None = None

    def __str__(self) -> str:
        return self.unix if self.unix is not None else f"{self.host}:{self.port}"


class Deadline:
    """When -W runs out; never when it was not given."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        if self.left_s == 0.0:
            raise Failure("timed out", TIMED_OUT)


class Interrupt:
    """Ctrl-C and SIGTERM as a descriptor to wait for, so that no packet is cut in two."""

    def __init__(self) -> None:
        self.came = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno())

    def fileno(self) -> int:
        return self._reader.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = True


class Client:
    """One connection. Leaving its `with` says DISCONNECT, unless the connection is over."""

    def __init__(self, target: Target, connect: Connect, *, debug: bool = False) -> None:
        self.protocol = ClientProtocol(connect, trace=_trace if debug else None)
        self.parting_properties: Properties = NO_PROPERTIES
        self._unsent = b""
        self._write_failed = False
        self._socket = _open_socket(target)
        self._connack_due = time.monotonic() + CONNECT_TIMEOUT_S
        # Not epoll: it refuses regular files, and standard input may be one.
        self._selector = selectors.SelectSelector()
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
        """Write what is due, as far as the socket takes it now."""
        self._unsent += self.protocol.take_output(time.monotonic())
        if self._unsent and not self._write_failed:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                sent = 0
            except OSError:
                # The broker may have said why before it closed: reading finds out.
                self._write_failed = True
                sent = 0
            self._unsent = self._unsent[sent:]
        write = selectors.EVENT_WRITE if self._unsent and not self._write_failed else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | write)

    def step(self, timeout_s: float | None = None) -> tuple[list[Event], bool]:
        """Write, wait once, read: what happened, and whether a watched source is ready."""
        self.flush()
        now = time.monotonic()
        waits = [] if timeout_s is None else [timeout_s]
        due = self.protocol.next_tick
        if due is not None:
            waits.append(max(0.0, due - now))
        if not self.protocol.connected:
            if now >= self._connack_due:
                raise Failure(f"no CONNACK within {CONNECT_TIMEOUT_S:.0f} s")
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
        """DISCONNECT, and wait until the broker has it.

        A socket that is closed with unread bytes in it sends a reset, which may overtake the
        DISCONNECT and make the broker publish the Will: so the rest is read first.
        """
        if self.protocol.connected:
            self.protocol.disconnect(properties=self.parting_properties)
            with contextlib.suppress(OSError):
                self._part()
        self._selector.close()
        self._socket.close()

    def _part(self) -> None:
        stop = time.monotonic() + CLOSE_TIMEOUT_S
        self._socket.settimeout(CLOSE_TIMEOUT_S)
        if not self._write_failed:
            self._socket.sendall(self._unsent + self.protocol.take_output(time.monotonic()))
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(READ_BYTES) and time.monotonic() < stop:
            pass

    def _read(self) -> list[Event]:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            return [Closed(f"the connection broke: {error.strerror or error}")]
        if data:
            return self.protocol.receive(data)
        return [Closed("the broker closed the connection without a word")]


def _open_socket(target: Target) -> socket.socket:
    try:
        if target.unix is None:
            link = socket.create_connection((target.host, target.port), CONNECT_TIMEOUT_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(CONNECT_TIMEOUT_S)
            link.connect(target.unix)
    except socket.gaierror as error:
        raise Failure(f"no address for host {target.host!r}: {error.strerror}") from None
    except OSError as error:
        raise Failure(f"cannot connect to {target}: {error.strerror or error}") from None
    link.setblocking(False)
    return link


def _trace(line: str) -> None:
    sys.stderr.write(f"{line}\n")
