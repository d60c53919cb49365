"""Queue connections whose handshake is incomplete: limit their number, choose which is next.

A TLS handshake costs the broker 0.1 to 2 ms, a CONNECT 0.05 ms, and thousands of clients may come
at once. So they wait in a queue that gets a small share of each turn, and connected clients are
served in between. When too many are opening, the one that has been silent longest is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from mqtt_broker.server.net.poller import Poller

SHARE_S: Final = 0.003  # of a turn; one handshake at least
QUEUE_MAX: Final = 256  # links in the queue; while it is full nothing is accepted
OPENING_MAX: Final = 2_048  # links whose layers are not open yet


class QueuedLink(Protocol):
    """A link with input that waits for its share of a turn."""

    def proceed(self) -> None:
        """Read the input and act on it. The link is no longer queued."""
        ...

    def abort(self) -> None: ...


class OpeningLink(QueuedLink, Protocol):
    """A link whose layers (TLS, WebSocket, a balancer's header) are not open yet."""

    @property
    def is_queued(self) -> bool: ...

    def give_up(self, reason: str, detail: str = "") -> None: ...


class HandshakeQueue:
    """Serve opening connections in the order of their input, a share of each turn."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poller: Poller, end_turn: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._end_turn = end_turn
        self._queue: deque[QueuedLink] = deque()
        self._opening: dict[QueuedLink, OpeningLink] = {}  # silent longest first
        self._on_space: list[Callable[[], None]] = []
        self._is_scheduled = False
        self._until = 0.0  # when this turn's share ends

    def __len__(self) -> int:
        """Return the number of links that are opening."""
        return len(self._opening)

    @property
    def is_full(self) -> bool:
        """Tell whether listeners have to stop accepting."""
        return len(self._queue) >= QUEUE_MAX

    def call_on_space(self, act: Callable[[], None]) -> None:
        """Call `act` once when half of the queue is free again."""
        self._on_space.append(act)

    def add(self, link: OpeningLink) -> None:
        """Count a link as opening; above the limit close the one that is silent longest."""
        self._opening[link] = link
        if len(self._opening) > OPENING_MAX:
            silent = next((one for one in self._opening.values() if not one.is_queued), None)
            if silent is not None:
                silent.give_up("too many handshakes")

    def remove(self, link: OpeningLink) -> None:
        """Stop counting a link that is open or closed."""
        self._opening.pop(link, None)

    def has_time(self) -> bool:
        """Tell whether a CONNECT may be read now, without waiting in the queue."""
        if self._queue:
            return False
        now = time.perf_counter()
        if not self._is_scheduled:
            self._until = now + SHARE_S
            self._schedule()  # the share ends with the turn
        return now < self._until

    def enqueue(self, link: QueuedLink) -> None:
        """Queue a link that has input; its `proceed` is called when it is next."""
        opening = self._opening.pop(link, None)
        if opening is not None:  # to the end: it is not silent any more
            self._opening[link] = opening
        self._queue.append(link)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Serve some of the queue. The sockets have a turn before the next call."""
        self._is_scheduled = False
        queue = self._queue
        until = time.perf_counter() + SHARE_S
        while queue:
            link = queue.popleft()
            try:
                link.proceed()
            except Exception as error:  # a bug: the other links are served nevertheless
                link.abort()
                self._poller.on_error(error)
            if time.perf_counter() >= until:
                break
        if queue:
            self._schedule()
        if self._on_space and len(queue) < QUEUE_MAX // 2:
            waiting, self._on_space = self._on_space, []
            for act in waiting:
                act()
        self._end_turn()
