"""A link with layers between its socket and MQTT: PROXY protocol, TLS, WebSocket.

It extends the plain link, which handles the socket, the backlog and closing. Input passes up
through the layers, output down, and MQTT begins when all layers are open. Until then the handshake
queue counts the link, and it has a time limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from mqtt_broker.core import dispatch
from mqtt_broker.core.interfaces.link import ONLY_ACKS
from mqtt_broker.server.config.endpoints import Endpoint, Network, ProxyRules, WebSocketRules
from mqtt_broker.server.net.link import SocketLink
from mqtt_broker.server.net.proxy_protocol import ProxyError, read_header
from mqtt_broker.server.net.tls import PORTION_BYTES, TlsContext, TlsLayer
from sessions.messages.outbox import TURN_BYTES_MAX

if TYPE_CHECKING:
    from mqtt_broker.server.net.context import ListenerState, NetContext
    from mqtt_broker.server.process.reload import Reload

_ALPN: Final = {False: "mqtt", True: "http/1.1"}
CLOSED: Final = "closed"  # value of `Layer.ended` after an orderly end


class Layer(Protocol):
    """A protocol between the socket and MQTT: bytes in, bytes out, no socket of its own."""

    @property
    def is_open(self) -> bool:
        """Tell whether the handshake is complete, so that data of the layer above can pass."""

    @property
    def ended(self) -> str:
        """Why no more input will come, as `reason: detail`; empty while the peer may send."""

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of incomplete messages it holds."""

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the layer below; return those for the layer above."""

    def send(self, data: bytes) -> bytes:
        """Take bytes from the layer above; return those for the layer below."""

    def pending_output(self, *, may_wait: bool) -> bytes:
        """Return the layer's own output. `may_wait`: the peer is slow to read."""

    def close(self) -> bytes:
        """Return the bytes that end the layer's protocol properly."""


class LayerFactory:
    """Makes the layers between a listener's sockets and MQTT."""

    def __init__(self, endpoint: Endpoint, packet_bytes_max: int, reload: Reload) -> None:
        rules = endpoint.rules
        self._reload = reload
        self.proxy = rules.proxy
        self._websocket = rules.websocket
        self._make_websocket: Callable[[WebSocketRules, int], Layer] | None = None
        if rules.websocket is not None:
            # Imported here: only WebSocket needs these two libraries. The first connection would be
            # too late: there may be no descriptors, or the HTTP thread imports one of them as well.
            from mqtt_broker.server.net.websocket import WebSocketLayer

            self._make_websocket = WebSocketLayer
        self.packet_bytes_max = packet_bytes_max
        if rules.limits is not None:
            self.packet_bytes_max = min(self.packet_bytes_max, rules.limits.packet_bytes_max)
        self._tls: TlsContext | None = None
        self._name = endpoint.name
        if rules.tls is not None:
            self._tls = TlsContext(rules.tls, _ALPN[rules.websocket is not None], self._name)
            self.watch()

    def watch(self) -> None:
        """Read the certificate files again when they change."""
        tls = self._tls
        if tls is not None:
            self._reload.add(f"TLS of {self._name}", tls.rules.paths, tls.reload)

    @property
    def tls(self) -> TlsContext | None:
        """The certificates, if clients speak TLS."""
        return self._tls

    def close(self) -> None:
        """Stop watching the certificate files."""
        if self._tls is not None:
            self._reload.remove(f"TLS of {self._name}")

    def link(
        self, context: NetContext, sock: socket.socket, address: object, listener: ListenerState
    ) -> LayeredLink:
        """Make the link of an accepted connection."""
        return LayeredLink(context, sock, address, listener, self)

    def make(self) -> tuple[TlsLayer | None, list[Layer]]:
        """Return one connection's TLS layer, if any, and all its layers from the socket up."""
        found: list[Layer] = []
        tls = None
        if self._tls is not None:
            tls = self._tls.layer()
            found.append(tls)
        if self._websocket is not None and self._make_websocket is not None:
            found.append(self._make_websocket(self._websocket, self.packet_bytes_max))
        return tls, found


class LayeredLink(SocketLink):
    """A link whose socket carries other protocols below MQTT."""

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
        context: NetContext,
        sock: socket.socket,
        address: object,
        listener: ListenerState,
        layers: LayerFactory,
    ) -> None:
        super().__init__(context, sock, address, listener)
        self._proxy: ProxyRules | None = layers.proxy
        self._tls, self._layers = layers.make()
        self._header = b""  # the received part of the PROXY header
        self._early = b""  # input after the header, while the link is queued
        self._is_open = False
        self._opening: asyncio.TimerHandle | None = None

    # Opening.

    def open(self) -> None:
        """Start opening the layers. MQTT begins when all are open."""
        context = self._context
        context.track(self)
        if self._proxy is not None and not _is_trusted(self._address, self._proxy.trusted):
            self.give_up("PROXY source", "not in the listener's trusted networks")
            return
        if self._proxy is None and not self._admit():
            self.abort()
            return
        seconds = self.rules.handshake_timeout_s
        self._opening = context.loop.call_later(seconds, self._on_opening_timeout)
        self._poller.add(self.sock.fileno(), self._on_opening)
        context.handshakes.add(self)

    def _on_opening(self) -> None:
        """Process input: at once if that is cheap, through the queue for a TLS handshake."""
        if self._tls is None or self._proxy is not None:
            self.proceed()
        else:
            self._enqueue()

    def proceed(self) -> None:
        """Open the layers as far as the input allows. The link is no longer queued."""
        self.is_queued = False
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
                self._enqueue()
                return
        data = self._pass_up(data)
        for layer in self._layers:
            if not layer.is_open:
                if layer.ended:
                    self._refuse(layer.ended)
                return
        self._on_open(data)

    def _receive(self) -> bytes:
        context = self._context
        try:
            size = self.sock.recv_into(context.read_buffer, PORTION_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            size = 0
        if not size:
            self.give_up("lost in the handshake")
        return context.read_view[:size].tobytes()

    def _take_header(self, data: bytes) -> bool:
        """Collect the PROXY header; return True when it is complete. The rest goes to `_early`."""
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
        if not self._admit():
            self.abort()
            return False
        return True

    def _on_open(self, data: bytes) -> None:
        self._end_opening()
        self._is_open = True
        if self._tls is not None:
            self.certificate = self._tls.certificate()
        now = self._context.turn.clock()
        self._begin_mqtt()
        if data and self.connection is not None:
            self._ack_runs = dispatch.receive(self.connection, data, now, self._ack_runs)
        elif self.connection is not None:
            dispatch.hold(self.connection, sum([one.held_bytes for one in self._layers]), now)
        self._check_layers(now)  # everything, and the end, may have come in one piece

    def _watch_for_connect(self) -> None:
        self._watch()  # a CONNECT that follows a handshake has waited in the queue

    def _watch(self) -> None:
        if self._is_open or self._is_closing:
            super()._watch()
            return
        on_readable = None if self.is_queued else self._on_opening
        on_writable = None if self._backlog is None else self._on_writable
        self._poller.watch(self.sock.fileno(), on_readable, on_writable)

    def _end_opening(self) -> None:
        self._context.handshakes.remove(self)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _on_opening_timeout(self) -> None:
        self._opening = None
        self.give_up("handshake timeout")

    def give_up(self, reason: str, detail: str = "") -> None:
        """Refuse the connection and close it without an answer."""
        self._context.refuse(self.listener, reason, self.peer, detail)
        self.abort()

    def _refuse(self, ended: str) -> None:
        """Refuse the connection after its layer sent the reason: a TLS alert, an HTTP status."""
        self._count(ended)
        self._end_opening()
        super().close()

    def _count(self, ended: str) -> None:
        reason, _, detail = ended.partition(": ")
        self._context.refuse(self.listener, reason, self.peer, detail)

    # Reading.

    def _pass_up(self, data: bytes) -> bytes:
        """Pass input up the layers and return the data for MQTT; layers send their answers."""
        layers = self._layers
        for level in range(len(layers)):
            layer = layers[level]
            data = layer.receive(data)
            output = layer.pending_output(may_wait=self._backlog is not None)
            if output:
                self._pass_down(output, level)
                if self.backlog_bytes and self.connection is not None:
                    # A peer that causes such output and does not read it is a slow reader as well.
                    self.connection.on_written(self.backlog_bytes, self._context.turn.now())
            if not data:
                break
        return data

    def _on_readable(self) -> None:
        context = self._context
        try:
            size = self.sock.recv_into(context.read_buffer, PORTION_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        connection = self.connection
        assert connection is not None
        now = context.turn.clock()
        if size:
            data = self._pass_up(context.read_view[:size].tobytes())
            if data:
                self._ack_runs = dispatch.receive(connection, data, now, self._ack_runs)
            else:
                dispatch.hold(connection, sum([one.held_bytes for one in self._layers]), now)
            self._check_layers(now)
            if (self._ack_runs >= ONLY_ACKS) is not self._is_deferred and self._backlog is None:
                self._defer_reads(not self._is_deferred)
        else:
            self._release()
            connection.lost(now)
        outboxes = context.broker.outboxes
        if outboxes.turn_bytes > TURN_BYTES_MAX and not outboxes.has_left:
            context.broker.flush(now)

    def _check_layers(self, now: float) -> None:
        """End the connection when one of its layers has ended."""
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
        return super().write(data) if data else self.backlog_bytes

    def _pass_down(self, data: bytes, level: int) -> None:
        """Send the own output of the layer at `level`."""
        for below in range(level - 1, -1, -1):
            data = self._layers[below].send(data)
        super().write(data)

    # Closing.

    def close(self) -> None:
        if not self._is_closing and self._is_open:
            for level in range(len(self._layers) - 1, -1, -1):
                output = self._layers[level].close()
                if output:
                    self._pass_down(output, level)
        super().close()

    def _release(self) -> None:
        self._end_opening()
        super()._release()


def _is_trusted(address: object, trusted: tuple[Network, ...]) -> bool:
    """Tell whether this peer may name the client's address; a unix socket's mode decides that."""
    if not trusted or not isinstance(address, tuple):
        return True
    source = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(source, ipaddress.IPv6Address) and source.ipv4_mapped is not None:
        source = source.ipv4_mapped
    return any(source in network for network in trusted)
