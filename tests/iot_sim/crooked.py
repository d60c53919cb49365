"""A proxy in front of a broker that plants the bugs a verdict has to find.

It passes every packet on as it came, but for the PUBLISHes of one message flow direction
(broker to subscriber), which a `Crook` may drop, repeat, swap or change. The first `cuts`
connections end when the client sends SUBSCRIBE, and the broker never sees that.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Self

PUBLISH = 3
SUBSCRIBE = b"\x82"
Crook = Callable[[bytes], list[bytes]]


def packets(buffer: bytearray) -> list[bytes]:
    """Cut every whole packet off the front of the buffer."""
    found: list[bytes] = []
    while len(buffer) >= 2:
        length, shift, at = 0, 0, 1
        while at < len(buffer):
            length |= (buffer[at] & 0x7F) << shift
            shift += 7
            at += 1
            if buffer[at - 1] < 0x80:
                break
        else:
            return found
        if len(buffer) < at + length:
            return found
        found.append(bytes(buffer[: at + length]))
        del buffer[: at + length]
    return found


def with_packet_id(packet: bytes, change: int) -> bytes:
    """The same PUBLISH under another packet id."""
    at = 1
    while packet[at] >= 0x80:
        at += 1
    at += 1
    at += 2 + int.from_bytes(packet[at : at + 2], "big")
    packet_id = (int.from_bytes(packet[at : at + 2], "big") + change) % 0xFFFF or 1
    return packet[:at] + packet_id.to_bytes(2, "big") + packet[at + 2 :]


class Proxy:
    """`with Proxy(port, crook) as proxy:` listens on `proxy.port`."""

    def __init__(self, broker_port: int, crook: Crook, *, cuts: int = 0) -> None:
        self._broker_port = broker_port
        self.cuts = cuts
        self._crook = crook
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._waker, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._buffers: dict[socket.socket, bytearray] = {}  # of sockets towards the broker
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waker.send(b"x")
        self._thread.join()
        for one in [*self._peers, self._listener, self._waker, self._wakened]:
            one.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._wakened:
                    return
                if one is self._listener:
                    self._accept()
                elif one in self._peers:
                    self._pass_on(one)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        broker = socket.create_connection(("127.0.0.1", self._broker_port))
        for here, there in ((client, broker), (broker, client)):
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[here] = there
            self._selector.register(here, selectors.EVENT_READ)
        self._buffers[broker] = bytearray()

    def _pass_on(self, one: socket.socket) -> None:
        try:
            data = one.recv(262_144)
        except OSError:
            data = b""
        other = self._peers[one]
        buffer = self._buffers.get(one)
        if self.cuts and buffer is None and data[:1] == SUBSCRIBE:
            self.cuts -= 1
            data = b""
        if data and buffer is not None:
            buffer += data
            data = b"".join(
                changed
                for packet in packets(buffer)
                for changed in (self._crook(packet) if packet[0] >> 4 == PUBLISH else [packet])
            )
            if not data:
                return
        if data:
            with contextlib.suppress(OSError):
                other.sendall(data)
            return
        for end in (one, other):
            self._selector.unregister(end)
            del self._peers[end]
            self._buffers.pop(end, None)
            end.close()
