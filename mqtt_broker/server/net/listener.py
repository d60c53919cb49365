"""Where clients come in: TCP and unix sockets that listen."""

from __future__ import annotations

import errno
import os
import pathlib
import socket
import stat
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mqtt_broker.core.limits.client_limits import ClientLimits as ClientLimits
from mqtt_broker.core.limits.token_bucket import ListenerLimits, TokenBucket
from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules
from mqtt_broker.server.net.link import SocketLink

if TYPE_CHECKING:
    from mqtt_broker.security.protection.throttle import Throttle
    from mqtt_broker.server.net.layered_link import LayerFactory
    from mqtt_broker.server.server import Server

__all__ = ["Endpoint", "Listener", "check_files"]

BACKLOG: Final = 4096
_ACCEPTS_A_TURN: Final = 64
_SHARE_S: Final = 0.001  # of a turn, for accepting
_PAUSE_S: Final = 0.5  # when there are no descriptors left
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """One listening socket. Accepts in small portions, so that a storm starves nobody."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        rules = endpoint.rules
        self._server = server
        # First: a certificate that cannot be read leaves no socket behind.
        self._layers: LayerFactory | None = None
        if not rules.is_plain:  # what only few listeners need is not imported for all
            from mqtt_broker.server.net.layered_link import LayerFactory

            self._layers = LayerFactory(server, endpoint)
        self._sock = _listen(endpoint)
        self._is_prompt = rules.tcp_nodelay and not endpoint.path
        self._max = rules.max_connections
        self._throttle: Throttle | None = None
        if rules.connects_per_s:
            # Not above: most listeners do without.
            from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle

            self._throttle = Throttle(ConnectLimits(connects_per_s=rules.connects_per_s))
        self.allowance: ListenerLimits | None = _allowance(rules)
        self.connections = 0  # that are open, or on the way to it
        self.rules = rules
        self.endpoint = endpoint if endpoint.path else self._bound(endpoint)

    def _bound(self, endpoint: Endpoint) -> Endpoint:
        return replace(endpoint, port=self._sock.getsockname()[1])

    def start(self) -> None:
        self._server.turns.add(self._sock.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        server = self._server
        layers = self._layers
        until = time.perf_counter() + _SHARE_S
        for _ in range(_ACCEPTS_A_TURN):
            if layers is not None and server.openings.is_full:
                self._wait_for_openings()
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause(error)
                    return
                continue  # the peer gave up while it waited to be accepted
            if self._max and self.connections >= self._max:
                server.refuse(self.endpoint.name, "listener full", "", "")
                sock.close()
                continue
            if self._throttle is not None and (why := self._throttle.open(None, server.now())):
                server.refuse(self.endpoint.name, f"listener {why}", "", "")
                sock.close()
                continue
            sock.setblocking(False)
            if self._is_prompt:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            if layers is None:
                link = SocketLink(server, sock, address, self)
                if server.admits(link):
                    server.adopt(link)
                else:
                    link.abort()
            else:
                layers.link(sock, address, self).open()
            if time.perf_counter() >= until:
                return

    def on_released(self) -> None:
        self.connections -= 1

    def _wait_for_openings(self) -> None:
        """Accept nobody until those who are coming in are in; the kernel keeps the others."""
        self._server.turns.remove(self._sock.fileno())
        self._server.openings.when_room(self._resume)

    def _pause(self, error: OSError) -> None:
        """Try again in a moment: the kernel keeps those who wait in its own queue."""
        self._server.log(f"{self.endpoint}: cannot accept, {error.strerror}; trying again")
        self._server.turns.remove(self._sock.fileno())
        self._server.loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self.start()

    def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._server.turns.remove(self._sock.fileno())
        self._sock.close()
        if self._layers is not None:
            self._layers.close()
        if self.endpoint.path:
            pathlib.Path(self.endpoint.path).unlink(missing_ok=True)


def _allowance(rules: ListenerRules) -> ListenerLimits | None:
    """What each of its clients may have, and all of them send together; None: nothing is said."""
    meter = None
    if rules.messages_per_s or rules.bytes_per_s:
        meter = TokenBucket(rules.messages_per_s, rules.bytes_per_s)
    if meter is None and rules.limits is None:
        return None
    return ListenerLimits(rules.limits or ClientLimits(), meter)


def check_files(endpoints: Iterable[Endpoint]) -> None:
    """Read the certificates once, for an operator who wants to know beforehand."""
    for endpoint in endpoints:
        if endpoint.rules.tls is not None:
            from mqtt_broker.server.net.tls import TlsContext

            TlsContext(endpoint.rules.tls, "mqtt", endpoint.name)


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
    """Remove the socket a broker left behind that did not end in order, and nothing else."""
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
