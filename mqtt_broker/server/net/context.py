"""The state that all sockets of a broker share: poller, turn, read buffer, open links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.limits.token_bucket import ListenerLimits
from mqtt_broker.server.config.endpoints import ListenerRules
from mqtt_broker.server.net.handshake_queue import HandshakeQueue
from mqtt_broker.server.net.poller import READ_BYTES, Poller
from mqtt_broker.server.process.descriptors import Descriptors
from mqtt_broker.server.process.reload import Reload
from mqtt_broker.server.process.turn import Turn

_LINGERING_SMALL: Final = 4096  # the last bytes of a link up to this size are always sent


class ConnectionFilter(Protocol):
    """Decides by a peer's address whether it may connect: bans and connection limits."""

    def admit(self, peer: str) -> str:
        """Count a connection, or return the reason why it is refused."""
        ...

    def release(self, peer: str) -> None:
        """Stop counting a connection that was admitted."""
        ...


class LinkCount:
    """The number of links of a listener and of those that it took the place of."""

    __slots__ = ("links",)

    def __init__(self) -> None:
        self.links = 0  # open, or opening

    def add(self) -> None:
        """Count a link."""
        self.links += 1

    def remove(self) -> None:
        """Stop counting a link that has closed."""
        self.links -= 1


class OpenLink(Protocol):
    """The part of a link that the server uses."""

    @property
    def listener(self) -> str:
        """The name of its listener."""
        ...

    @property
    def link_count(self) -> LinkCount:
        """The count that it is part of."""
        ...

    @property
    def connection(self) -> Connection | None:
        """Its MQTT connection; None while its layers are opening."""
        ...

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...


class ListenerState:
    """The state that a listener's links share: name, rules, limits, number of links."""

    def __init__(
        self,
        name: str,
        rules: ListenerRules,
        limits: ListenerLimits | None,
        count: LinkCount | None = None,
    ) -> None:
        """`count`: that of the listener whose place this one takes."""
        self.name: Final = name
        self.rules: Final = rules
        self.limits: Final = limits
        self.count: Final = LinkCount() if count is None else count

    @property
    def connections(self) -> int:
        return self.count.links

    def add(self) -> None:
        """Count a connection that was accepted."""
        self.count.add()

    def remove(self) -> None:
        """Stop counting a connection that has closed."""
        self.count.remove()


class NetContext:
    """The server's objects that links, listeners and the handshake queue use."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        turn: Turn,
        broker: Broker,
        *,
        connection_filter: ConnectionFilter | None,
        reload: Reload,
        log: Callable[[str], None],
        descriptors: Descriptors,
    ) -> None:
        self.loop: Final = loop
        self.poller: Final = poller
        self.turn: Final = turn
        self.broker: Final = broker
        poller.bound(broker.runtime.work)
        self.reload: Final = reload
        self.log: Final = log
        self.descriptors: Final = descriptors
        self.connection_filter = connection_filter  # None: everybody may connect
        self.read_buffer: Final = bytearray(READ_BYTES)
        self.read_view: Final = memoryview(self.read_buffer)
        self.handshakes: Final = HandshakeQueue(loop, poller, turn.end_now)
        self.links: set[OpenLink] = set()
        self.idle: Final = asyncio.Event()  # set while no link is open
        self.idle.set()
        self.lingering_bytes = 0  # unread by the peers of links that are closing
        self._lingering_bytes_max = broker.settings.outbox_total_bytes_max >> 3

    def may_linger(self, size: int) -> bool:
        """Count the bytes of a closing link. Return False if it must close at once: too many."""
        if self.lingering_bytes + size > self._lingering_bytes_max and size > _LINGERING_SMALL:
            return False
        self.lingering_bytes += size
        return True

    def stop_lingering(self, size: int) -> None:
        """Stop counting a closing link, whose socket is closed now."""
        self.lingering_bytes -= size

    def track(self, link: OpenLink) -> None:
        """Count a link as open until it is untracked."""
        self.links.add(link)
        self.idle.clear()

    def untrack(self, link: OpenLink) -> None:
        """Forget a link whose socket is closed."""
        self.links.discard(link)
        if not self.links:
            self.idle.set()

    def disconnect(self, count: LinkCount) -> None:
        """Disconnect every client of a listener."""
        now = self.turn.now()
        for link in [link for link in self.links if link.link_count is count]:
            if link.connection is None:  # its layers are still opening
                link.abort()
            else:
                link.connection.end(now, reasons.ADMINISTRATIVE_ACTION, why="listener closed")

    def refuse(self, listener: str, reason: str, peer: str, detail: str) -> None:
        """Count and log a connection that is refused, or whose layers failed."""
        self.broker.counters.refuse("connection", reason)
        source = f"{listener}: {peer}" if peer else listener
        text = f"{source}: refused, {reason}"
        self.log(f"{text}: {detail}" if detail else text)
