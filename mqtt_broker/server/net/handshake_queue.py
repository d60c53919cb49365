"""Connections that are not open yet: whose turn it is, and how many there may be.

A TLS handshake costs the broker a tenth of a millisecond to two, a CONNECT a twentieth, and
thousands of clients may come at once. So they wait in line and get a small share of each turn:
those who are connected already are served in between. Whoever is on the way in and says nothing
is the first to go when too many are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqtt_broker.server.net.layered_link import LayeredLink
    from mqtt_broker.server.net.link import SocketLink
    from mqtt_broker.server.server import Server

SHARE_S: Final = 0.003  # of a turn; one handshake at least
LINE_MAX: Final = 256  # that wait for us: then nobody else is accepted for the moment
OPENINGS_MAX: Final = 2_048  # that are on the way in


class HandshakeQueue:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._line: deque[SocketLink] = deque()
        self._under_way: dict[LayeredLink, None] = {}  # who was quiet for longest, first
        self._waiters: list[Callable[[], None]] = []
        self._is_scheduled = False
        self._until = 0.0  # when this turn's share is used up

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        return len(self._line) >= LINE_MAX

    def when_room(self, act: Callable[[], None]) -> None:
        self._waiters.append(act)

    def add(self, link: LayeredLink) -> None:
        self._under_way[link] = None
        if len(self._under_way) > OPENINGS_MAX:
            quiet = next((one for one in self._under_way if not one.is_in_line), None)
            if quiet is not None:
                quiet.give_up("too many handshakes")

    def remove(self, link: LayeredLink) -> None:
        self._under_way.pop(link, None)

    def has_time(self) -> bool:
        """Whether what costs little may be done now, without the line."""
        if self._line:
            return False
        now = time.perf_counter()
        if not self._is_scheduled:
            self._until = now + SHARE_S
            self._schedule()  # the share ends with the turn
        return now < self._until

    def enqueue(self, link: SocketLink) -> None:
        """It has something to say; it is called to `proceed` when it is its turn."""
        link.is_in_line = True
        if link in self._under_way:  # to the end: it is not quiet now
            del self._under_way[link]
            self._under_way[link] = None
        self._line.append(link)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Some of the line; the sockets have a turn before the next."""
        self._is_scheduled = False
        line = self._line
        until = time.perf_counter() + SHARE_S
        while line:
            link = line.popleft()
            link.is_in_line = False
            try:
                link.proceed()
            except Exception as error:  # ours; it may not cost the others their turn
                link.abort()
                self._server.turns.on_error(error)
            if time.perf_counter() >= until:
                break
        if line:
            self._schedule()
        if self._waiters and len(line) < LINE_MAX // 2:
            waiters, self._waiters = self._waiters, []
            for act in waiters:
                act()
        self._server.end_turn()
