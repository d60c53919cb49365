"""MQTT 5 clients that come back, whatever happens to their connections; many in one process.

`Loop` carries sockets and timers; a `Client` has a session that outlives connections. What
kind of client it is says a subclass, by `on_connected`, `on_packet` and `on_lost`.
"""

from __future__ import annotations

import errno
import heapq
import random
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connack, Connect, Disconnect, Packet, Will
from mqtt_broker.codec.properties import Properties
from tests.fault.ledger import Ledger
from tests.fault.plan import DAY_S

_BACKOFF_S: Final = (0.02, 0.2)
_SHUTTING_DOWN: Final = 0x8B
_RETRY: Final = frozenset({0x88, 0x89, _SHUTTING_DOWN})  # unavailable, busy: it says come again
_HALF_A_PUBLISH: Final = b"\x32\x7f\x00\x07load/p0"


class Loop:
    """One thread, one selector, one heap of timers, one ledger."""

    def __init__(self, ledger: Ledger, port: int) -> None:
        self.ledger = ledger
        self.address = ("127.0.0.1", port)
        self.selector = selectors.DefaultSelector()
        self.dirty: list[Client] = []
        self.is_over = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._serial, act))

    def run(self) -> None:
        timers = self._timers
        while not self.is_over:
            wait_s = max(0.0, timers[0][0] - time.monotonic()) if timers else 1.0
            for key, events in self.selector.select(wait_s):
                key.data(events)
            now = time.monotonic()
            while timers and timers[0][0] <= now:
                heapq.heappop(timers)[2]()
            # First the ledger, then the wire: what is on its way is written down.
            self.ledger.flush()
            dirty, self.dirty = self.dirty, []
            for client in dirty:
                client.flush()


class Client:
    """One client; `come` and `leave` say whether it is to be connected."""

    clean_start = False

    def __init__(
        self, loop: Loop, name: str, rng: random.Random, *, receive_maximum: int = 65_535
    ) -> None:
        self.loop = loop
        self.name = name
        self.rng = rng
        self.receive_maximum = receive_maximum
        self.expiry_s = DAY_S
        self.is_wanted = False
        self.is_online = False  # CONNACK came
        self.is_promised = False  # something came that says that the session is on disk
        self.connection = 0  # which one it is, so that late timers know theirs is gone
        self._sock: socket.socket | None = None
        self._is_dialled = False
        self._out = bytearray()
        self._backoff_s = _BACKOFF_S[0]
        self._left_at = 0.0  # when it noticed that its connection was gone
        self._decoder = Decoder(from_server=True, version=V5)

    # For subclasses.

    def will(self) -> Will | None:
        return None

    def on_connected(self, present: bool, told: Properties) -> None:
        """The session is there: carry on with it, or begin anew."""

    def on_packet(self, packet: Packet) -> None:
        """Anything but CONNACK and DISCONNECT."""

    def on_lost(self) -> None:
        """The connection is gone."""

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that has to come to its end."""
        return False

    def note(self, kind: str, *fields: object) -> None:
        self.loop.ledger.note(kind, *fields)

    def complain(self, text: str) -> None:
        self.note("E", self.name, text)

    # Coming and going.

    def come(self) -> None:
        self.is_wanted = True
        if self._sock is None:
            self._dial()

    def leave(self, how: str = "disconnect") -> None:
        """`disconnect`, `close`, `reset`, or `torn`: in the middle of a packet."""
        self.is_wanted = False
        self._hang_up(how)

    def cut(self) -> None:
        """Lose the connection in one of the rude ways; it will come back."""
        self._hang_up(self.rng.choice(("close", "reset", "torn")))

    def _hang_up(self, how: str) -> None:
        sock = self._sock
        if sock is None:
            return
        if self.is_online and how == "disconnect":
            self.send(encode_from_client(V5, Disconnect(0)))
        elif self.is_online and how == "torn":
            self.send(_HALF_A_PUBLISH)
        if how in ("disconnect", "torn"):
            self.loop.ledger.flush()
            self.flush()
        if self._sock is sock:
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._lost()

    def _dial(self) -> None:
        if not self.is_wanted or self._sock is not None:
            return
        self._sock = sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_dialled = False
        self.connection += 1
        error = sock.connect_ex(self.loop.address)
        self.loop.selector.register(sock, selectors.EVENT_WRITE, self._on_ready)
        if error not in (0, errno.EINPROGRESS):
            self._lost()

    def _on_ready(self, events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        if not self._is_dialled:
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._lost()
                return
            self._is_dialled = True
            self._decoder = Decoder(from_server=True, version=V5)
            self._greet()
            self.flush()
            return
        if events & selectors.EVENT_WRITE:
            self.flush()
        if events & selectors.EVENT_READ and self._sock is sock:
            self._read(sock)

    def _greet(self) -> None:
        found = Properties()
        if self.expiry_s:
            found[prop.SESSION_EXPIRY_INTERVAL] = self.expiry_s
        if self.receive_maximum < 65_535:
            found[prop.RECEIVE_MAXIMUM] = self.receive_maximum
        packet = Connect(V5, self.name, self.clean_start, 0, found, self.will())
        self.send(encode_from_client(V5, packet))
        self.loop.ledger.flush()

    def _lost(self) -> None:
        sock = self._sock
        if sock is None:
            return
        self.loop.selector.unregister(sock)
        sock.close()
        self._sock = None
        self._out.clear()
        was_online, self.is_online = self.is_online, False
        if was_online:
            self._left_at = time.monotonic()
            self.on_lost()
        self._backoff_s = min(2 * self._backoff_s, _BACKOFF_S[1])
        if self.is_wanted:
            self.loop.after(self._backoff_s * self.rng.uniform(0.5, 1.0), self._dial)

    # Bytes.

    def send(self, data: bytes) -> None:
        if self._sock is None:  # cut while it answered: the rest of it never leaves
            return
        if not self._out:
            self.loop.dirty.append(self)
        self._out += data

    def flush(self) -> None:
        sock = self._sock
        if sock is None or not self._is_dialled:
            return
        try:
            while self._out:
                del self._out[: sock.send(self._out)]
        except BlockingIOError:
            self.loop.selector.modify(
                sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self._on_ready
            )
            return
        except OSError:
            self._lost()
            return
        self.loop.selector.modify(sock, selectors.EVENT_READ, self._on_ready)

    def _read(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(262_144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for packet in self._decoder.feed(data):
            self._take(packet)
            if self._sock is not sock:  # cut in the middle: what follows never came
                return

    def _take(self, packet: Packet | Violation) -> None:
        if isinstance(packet, Violation):
            self.complain(f"sent what cannot be read: {packet}")
            self._lost()
        elif isinstance(packet, Disconnect):
            if packet.reason not in _RETRY:
                self.complain(f"disconnected us with 0x{packet.reason:02X} {packet.properties}")
            self._lost()
        elif not isinstance(packet, Connack):
            if self.is_online:
                self.on_packet(packet)
            else:
                self.complain(f"{type(packet).__name__} before CONNACK")
        elif packet.reason:
            if packet.reason not in _RETRY:
                self.complain(f"refused us with 0x{packet.reason:02X} {packet.properties}")
            self._lost()
        else:
            self._on_connack(packet)

    def _on_connack(self, packet: Connack) -> None:
        self.is_online = True
        self._backoff_s = _BACKOFF_S[0]
        present = packet.session_present
        if present and self.clean_start:
            self.complain("Session Present after Clean Start")
        if self.is_promised and not present and not self.clean_start:
            self.note("L", self.name, f"{time.monotonic() - self._left_at:.3f}")
            self.is_promised = False
        self.on_connected(present, packet.properties)
