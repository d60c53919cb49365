"""Listening sockets, TCP and unix: accept connections and make links of them."""

from __future__ import annotations

import os
import pathlib
import socket
import stat
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.core.limits.token_bucket import ListenerLimits, TokenBucket
from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules
from mqtt_broker.server.net.context import ListenerState, NetContext
from mqtt_broker.server.net.link import SocketLink
from mqtt_broker.server.process.descriptors import OUT_OF_DESCRIPTORS, PAUSE_S

if TYPE_CHECKING:
    from mqtt_broker.security.protection.throttle import Throttle
    from mqtt_broker.server.net.layered_link import LayerFactory

BACKLOG: Final = 4096
_ACCEPTS_A_TURN: Final = 64
_SHARE_S: Final = 0.001  # of a turn, for accepting


class Listener:
    """A listening socket. Accepts a few connections a turn, so that a storm delays no client."""

    def __init__(
        self,
        context: NetContext,
        endpoint: Endpoint,
        *,
        take_over: Listener | None = None,
        before: Listener | None = None,
    ) -> None:
        """`take_over`: an open listener, whose socket this one goes on with; `before`: the one that
        had this one's place at another address.
        """
        rules = endpoint.rules
        self._context = context
        # First: a certificate that cannot be read leaves no socket behind.
        self.layers: LayerFactory | None = None
        if not rules.is_plain:  # what only few listeners need is not imported for all
            from mqtt_broker.server.net.layered_link import LayerFactory

            packet_bytes_max = context.broker.settings.packet_bytes_max
            self.layers = LayerFactory(endpoint, packet_bytes_max, context.reload)
        if take_over is None:
            self._sock = _listen(endpoint)
        else:
            self._sock = take_over.hand_over()
            self.watch_files()
        self._is_prompt = rules.tcp_nodelay and not endpoint.path
        self._max = rules.max_connections
        self._throttle: Throttle | None = None
        if rules.connects_per_s:
            # Not above: most listeners do without.
            from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle

            self._throttle = Throttle()
            self._connect_limits = ConnectLimits(connects_per_s=rules.connects_per_s)
        # With the port that the socket got.
        self.endpoint = endpoint if endpoint.path else self._bound(endpoint)
        place = before or take_over
        count = place.state.count if place is not None else None
        self.state: ListenerState = ListenerState(
            self.endpoint.name, rules, _limits_of(rules), count
        )

    def _bound(self, endpoint: Endpoint) -> Endpoint:
        return replace(endpoint, port=self._sock.getsockname()[1])

    def start(self) -> None:
        """Start accepting connections."""
        self._context.poller.add(self._sock.fileno(), self._on_acceptable)

    def watch_files(self) -> None:
        """Watch certificates again: a listener that closed watched others under the same name."""
        if self.layers is not None:
            self.layers.watch()

    def _on_acceptable(self) -> None:
        layers = self.layers
        descriptors = self._context.descriptors
        until = time.perf_counter() + _SHARE_S
        for _ in range(_ACCEPTS_A_TURN):
            if layers is not None and self._context.handshakes.is_full:
                self._wait_for_handshakes()
                return
            if descriptors.is_short and not descriptors.has_room():
                self._pause(None)
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._pause(error)
                    return
                continue  # the peer gave up while it waited to be accepted
            descriptors.count(sock.fileno())
            reason = self._refusal()
            if reason:
                self._context.refuse(self.state.name, reason, "", "")
                sock.close()
                continue
            self._open(sock, address)
            if time.perf_counter() >= until:
                return

    def _refusal(self) -> str:
        """Return the reason why this listener refuses connections now, or ""."""
        if self._max and self.state.connections >= self._max:
            return "listener full"
        if self._throttle is not None:
            now = self._context.turn.now()
            reason = self._throttle.admit(self._connect_limits, None, now)
            if reason:
                return f"listener {reason}"
        return ""

    def _open(self, sock: socket.socket, address: object) -> None:
        link = None
        try:
            sock.setblocking(False)
            if self._is_prompt:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = self.make_link(sock, address)
            link.open()
        except Exception as error:  # a bug: it may cost this connection only, not the listener
            self._context.poller.on_error(error)
            if link is None:
                sock.close()
            else:
                link.abort()

    def make_link(self, sock: socket.socket, address: object) -> SocketLink:
        if self.layers is None:
            return SocketLink(self._context, sock, address, self.state)
        return self.layers.link(self._context, sock, address, self.state)

    def _wait_for_handshakes(self) -> None:
        """Stop accepting until the handshake queue has space; the kernel queues connections."""
        self._context.poller.remove(self._sock.fileno())
        self._context.handshakes.call_on_space(self._resume)

    def _pause(self, error: OSError | None) -> None:
        """Stop accepting for a moment; the kernel queues connections meanwhile."""
        self._context.descriptors.report(self.endpoint.name, error)
        self._context.poller.remove(self._sock.fileno())
        self._context.loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self.start()

    def hand_over(self) -> socket.socket:
        """Give the listening socket to another listener; this one accepts no more."""
        self._context.poller.remove(self._sock.fileno())
        sock, self._sock = self._sock, socket.socket()
        self._sock.close()
        if self.layers is not None:
            self.layers.close()
        return sock

    def close(self) -> None:
        """Stop listening; links that are open stay."""
        if self._sock.fileno() < 0:
            return
        self._context.poller.remove(self._sock.fileno())
        self._sock.close()
        if self.layers is not None:
            self.layers.close()
        if self.endpoint.path:
            pathlib.Path(self.endpoint.path).unlink(missing_ok=True)


def _limits_of(rules: ListenerRules) -> ListenerLimits | None:
    """Return the limits of each client and of all together, or None if none is configured."""
    bucket = None
    if rules.messages_per_s or rules.bytes_per_s:
        bucket = TokenBucket(rules.messages_per_s, rules.bytes_per_s)
    if bucket is None and rules.limits is None:
        return None
    return ListenerLimits(rules.limits or ClientLimits(), bucket)


def check_files(endpoints: Iterable[Endpoint]) -> None:
    """Read every certificate once, for `fleetmq broker --check`. Raises ConfigError."""
    for endpoint in endpoints:
        if endpoint.rules.tls is not None:
            from mqtt_broker.server.net.tls import TlsContext

            TlsContext(endpoint.rules.tls, "mqtt", endpoint.place or endpoint.name)


def _listen(endpoint: Endpoint) -> socket.socket:
    if endpoint.path:
        _remove_stale(endpoint.path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: object = endpoint.path
    else:
        family, kind, protocol, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket of a broker that was killed; keep any other file, and one in use."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
