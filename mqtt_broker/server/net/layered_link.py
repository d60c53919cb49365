"""A connection with layers between its socket and MQTT: a balancer's header, TLS, WebSocket.

The socket, the backlog and the closing are a plain link's. What comes in climbs through the
layers, what goes out descends through them, and MQTT begins when all of them are open. Until
then the link is in `server.openings`, under a time limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, Final, Protocol

from mqtt_broker.core.inbound.publish import TURN_BYTES_MAX
from mqtt_broker.server.config.endpoints import Endpoint, Network, ProxyRules
from mqtt_broker.server.net.link import SocketLink
from mqtt_broker.server.net.proxy_protocol import ProxyError, read_header
from mqtt_broker.server.net.tls import PORTION_BYTES, TlsContext, TlsLayer

if TYPE_CHECKING:
    from mqtt_broker.core.clients.connection import Connection
    from mqtt_broker.server.net.listener import Listener
    from mqtt_broker.server.server import Server

_ALPN: Final = {False: "mqtt", True: "http/1.1"}


CLOSED: Final = "closed"  # what `Layer.ended` says when the peer ended it in order


class Layer(Protocol):
    """One protocol between the socket and MQTT, without sockets."""

    @property
    def is_open(self) -> bool:
        """Whether it lets through what is above."""

    @property
    def ended(self) -> str:
        """Why nothing more comes in, as `reason: detail`; empty as long as something may."""

    def receive(self, data: bytes) -> bytes:
        """From below: what it held for the layer above."""

    def send(self, data: bytes) -> bytes:
        """From above: what goes below for it."""

    def say(self, *, may_wait: bool) -> bytes:
        """What the layer itself has to say below. `may_wait`: the peer is slow to read."""

    def farewell(self) -> bytes:
        """Its last words."""


class LayerFactory:
    """What a listener puts between its sockets and MQTT."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        rules = endpoint.rules
        self._server = server
        self.proxy = rules.proxy
        self._websocket = rules.websocket
        self._packet_bytes_max = server.config.settings.packet_bytes_max
        if rules.limits is not None:
            self._packet_bytes_max = min(self._packet_bytes_max, rules.limits.packet_bytes_max)
        self._tls: TlsContext | None = None
        self._name = endpoint.name
        if rules.tls is not None:
            self._tls = TlsContext(rules.tls, _ALPN[rules.websocket is not None], self._name)
            server.reload.add(f"TLS of {self._name}", rules.tls.paths, self._tls.reload)

    def close(self) -> None:
        if self._tls is not None:
            self._server.reload.remove(f"TLS of {self._name}")

    def link(self, sock: socket.socket, address: object, listener: Listener) -> LayeredLink:
        return LayeredLink(self._server, sock, address, listener, self)

    def make(self) -> tuple[TlsLayer | None, list[Layer]]:
        """Those of one connection, from the socket up; its TLS among them."""
        found: list[Layer] = []
        tls = None
        if self._tls is not None:
            tls = self._tls.layer()
            found.append(tls)
        if self._websocket is not None:
            # Not above: who speaks no WebSocket does without two libraries.
            from mqtt_broker.server.net.websocket import WebSocketLayer

            found.append(WebSocketLayer(self._websocket, self._packet_bytes_max))
        return tls, found


class LayeredLink(SocketLink):
    """The link over a socket that speaks something else before MQTT, and around it."""

    __slots__ = (
        "_early",
        "_header",
        "_is_open",
        "_layers",
        "_opening",
        "_proxy",
        "_tls",
    )

    def __init__(
        self,
        server: Server,
        sock: socket.socket,
        address: object,
        listener: Listener,
        layers: LayerFactory,
    ) -> None:
        super().__init__(server, sock, address, listener)
        self._proxy: ProxyRules | None = layers.proxy
        self._tls, self._layers = layers.make()
        self._header = b""  # of the balancer, as far as it has come
        self._early = b""  # came behind it, and waits for its turn
        self._is_open = False
        self._opening: asyncio.TimerHandle | None = None

    # Opening.

    def open(self) -> None:
        server = self._server
        server.track(self)
        if self._proxy is not None and not _is_trusted(self._address, self._proxy.trusted):
            self.give_up("PROXY source", "not trusted to say who the client is")
            return
        if self._proxy is None and not server.admits(self):
            self.abort()
            return
        seconds = self.rules.handshake_timeout_s
        self._opening = self._loop.call_later(seconds, self._on_opening_timeout)
        self._turns.add(self._sock.fileno(), self._on_opening)
        server.openings.add(self)

    def _on_opening(self) -> None:
        """Something came. What costs little is done now, a TLS handshake when it is its turn."""
        if self._tls is None or self._proxy is not None:
            self.proceed()
        else:
            self._stand_in_line()

    def _stand_in_line(self) -> None:
        self._server.openings.enqueue(self)
        self._watch()

    def proceed(self) -> None:
        """Go on with the opening, as far as what has come allows."""
        if self._is_closing:
            return
        data, self._early = self._early, b""
        self._watch()
        if not data:
            data = self._receive()
            if not data:
                return
        if self._proxy is not None:
            if not self._take_header(data):
                return
            data, self._early = self._early, b""
            if data and self._tls is not None:
                self._early = data
                self._stand_in_line()
                return
        data = self._climb(data)
        for layer in self._layers:
            if not layer.is_open:
                if layer.ended:
                    self._refuse(layer.ended)
                return
        self._on_open(data)

    def _receive(self) -> bytes:
        server = self._server
        try:
            size = self._sock.recv_into(server.read_buffer, PORTION_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            size = 0
        if not size:
            self.give_up("lost in the handshake")
        return server.read_view[:size].tobytes()

    def _take_header(self, data: bytes) -> bool:
        """The balancer's header; whether it is whole. What follows it waits in `_early`."""
        self._header += data
        try:
            header = read_header(self._header)
        except ProxyError as error:
            self.give_up("PROXY header", str(error))
            return False
        if header is None:
            return False
        self._early, self._header = self._header[header.size :], b""
        self._proxy = None
        if header.source is not None:
            self._address = header.source
        if not self._server.admits(self):
            self.abort()
            return False
        return True

    def _on_open(self, data: bytes) -> None:
        server = self._server
        self._end_opening()
        self._is_open = True
        if self._tls is not None:
            self.certificate = self._tls.certificate()
        now = server.turn_at = server.now()
        server.adopt(self)
        if data and self.connection is not None:
            self.connection.receive(data, now)
        self._check_layers(now)  # all of it, and the end, may have come in one piece

    def start(self, connection: Connection) -> None:
        self.connection = connection
        self._watch()

    def _watch(self) -> None:
        if self._is_open or self._is_closing:
            super()._watch()
            return
        on_readable = None if self.is_in_line else self._on_opening
        on_writable = None if self._backlog is None else self._on_writable
        self._turns.watch(self._sock.fileno(), on_readable, on_writable)

    def _end_opening(self) -> None:
        self._server.openings.remove(self)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _on_opening_timeout(self) -> None:
        self._opening = None
        self.give_up("handshake timeout")

    def give_up(self, reason: str, detail: str = "") -> None:
        """It does not come in."""
        self._server.refuse(self.listener, reason, self.peer, detail)
        self.abort()

    def _refuse(self, ended: str) -> None:
        """It does not come in, and its peer is told: an alert or an HTTP status has been said."""
        self._count(ended)
        self._end_opening()
        super().close()

    def _count(self, ended: str) -> None:
        reason, _, detail = ended.partition(": ")
        self._server.refuse(self.listener, reason, self.peer, detail)

    # Reading.

    def _climb(self, data: bytes) -> bytes:
        """What the bytes of the socket hold for MQTT; the layers answer what is theirs."""
        layers = self._layers
        for level in range(len(layers)):
            layer = layers[level]
            data = layer.receive(data)
            said = layer.say(may_wait=self._backlog is not None)
            if said:
                self._descend(said, level)
                if self._backlog_bytes and self.connection is not None:
                    # Who makes a layer speak and does not read is a slow reader like another.
                    self.connection.on_written(self._backlog_bytes, self._server.now())
            if not data:
                break
        return data

    def _on_readable(self) -> None:
        server = self._server
        try:
            size = self._sock.recv_into(server.read_buffer, PORTION_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        connection = self.connection
        assert connection is not None
        now = server.turn_at = server.now()
        if size:
            data = self._climb(server.read_view[:size].tobytes())
            if data:
                connection.receive(data, now)
            self._check_layers(now)
            if connection.only_acknowledges is not self._is_lazy and self._backlog is None:
                self._set_lazy(connection.only_acknowledges)
        else:
            self._release()
            connection.lost(now)
        if server.broker.turn_bytes > TURN_BYTES_MAX:
            server.broker.flush(now)

    def _check_layers(self, now: float) -> None:
        """Whether one of them has come to its end, and the connection with it."""
        for layer in self._layers:
            if layer.ended:
                if not self._is_closing and layer.ended != CLOSED:
                    self._count(layer.ended)
                assert self.connection is not None
                self.connection.lost(now)
                return

    # Writing.

    def write(self, data: bytes) -> int:
        if self._is_closing:
            return 0
        layers = self._layers
        for level in range(len(layers) - 1, -1, -1):
            data = layers[level].send(data)
        return super().write(data) if data else self._backlog_bytes

    def _descend(self, data: bytes, level: int) -> None:
        """Send what the layer at `level` said."""
        for below in range(level - 1, -1, -1):
            data = self._layers[below].send(data)
        super().write(data)

    # Closing.

    def close(self) -> None:
        if not self._is_closing and self._is_open:
            for level in range(len(self._layers) - 1, -1, -1):
                said = self._layers[level].farewell()
                if said:
                    self._descend(said, level)
        super().close()

    def _release(self) -> None:
        self._end_opening()
        super()._release()


def _is_trusted(address: object, trusted: tuple[Network, ...]) -> bool:
    """Whether who connects may say who the client is. On a unix socket its mode decides."""
    if not trusted or not isinstance(address, tuple):
        return True
    source = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(source, ipaddress.IPv6Address) and source.ipv4_mapped is not None:
        source = source.ipv4_mapped
    return any(source in network for network in trusted)
