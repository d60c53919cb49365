"""Disconnect clients that acknowledge nothing, when too much is under way to all of them.

What a client has read and not acknowledged stays with the broker: see `sessions.window`. Usually
that is the client's own affair. While all windows together have more than half of
`inflight_total_bytes_max`, a client with much under way has to acknowledge the oldest of it within
`stalled_reader_s`. A session that ends with its connection then gives back what it had.
"""

from __future__ import annotations

from typing import Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.messages.backlog import Backlog
from sessions.session import Session
from sessions.window import FREE_BYTES, Window

ACKNOWLEDGES_NOTHING: Final = "acknowledges nothing"
_CHECKS: Final = 4  # in `stalled_reader_s`
_AT_ONCE: Final = 2_000  # looked at until others have their turn
_PAUSE_S: Final = 0.002


class Receiver(Protocol):
    """A connected client with a session."""

    session: Session

    @property
    def name(self) -> str: ...

    @property
    def is_paused(self) -> bool:
        """Tell whether it is not read, so that its acknowledgements are not seen."""

    def end(
        self,
        now: float,
        reason: int = 0,
        *,
        say: bool = True,
        why: str = "",
        counted_as: str = "",
    ) -> None: ...


class UnacknowledgedWatch:
    """Looks at the oldest message under way to each client, and since when it has been that."""

    __slots__ = (
        "_backlog",
        "_is_watching",
        "_left",
        "_marks",
        "_receivers",
        "_stalled_s",
        "_timers",
        "log",
    )

    def __init__(
        self, settings: Settings, runtime: Runtime, backlog: Backlog, receivers: dict[str, Receiver]
    ) -> None:
        self._backlog = backlog
        self._receivers = receivers  # every client that is connected, by its id
        self._timers = runtime.timers
        self.log = runtime.log
        self._stalled_s = settings.stalled_reader_s
        self._is_watching = False
        self._left: list[str] = []
        self._marks: dict[str, tuple[int, float]] = {}  # packet id and time, by client id

    @property
    def is_pressed(self) -> bool:
        """Tell whether all windows together have more than half of what they may have."""
        return self._backlog.inflight_bytes * 2 > self._backlog.inflight_total_bytes_max

    def watch(self, now: float) -> None:
        """Look at the windows from now on, as long as there is need."""
        if not self._is_watching:
            self._is_watching = True
            self._timers.at(now + self._stalled_s / _CHECKS, self._on_check)

    def _on_check(self, now: float) -> None:
        self._left = list(self._receivers)
        self._check_some(now)

    def _check_some(self, now: float) -> None:
        left = self._left
        for _ in range(min(_AT_ONCE, len(left))):
            client_id = left.pop()
            client = self._receivers.get(client_id)
            if client is None:
                self._marks.pop(client_id, None)
            elif self.is_pressed:
                self._check(client_id, client, now)
        if left:
            self._timers.at(now + _PAUSE_S, self._check_some)
        elif self.is_pressed:
            self._timers.at(now + self._stalled_s / _CHECKS, self._on_check)
        else:
            self._is_watching = False
            self._marks.clear()

    def _check(self, client_id: str, client: Receiver, now: float) -> None:
        window = client.session.outbound.window
        oldest = _oldest(window)
        if client.is_paused or window.bytes <= FREE_BYTES or not oldest:
            self._marks.pop(client_id, None)
            return
        mark = self._marks.get(client_id)
        if mark is None or mark[0] != oldest:
            self._marks[client_id] = (oldest, now)
        elif now - mark[1] >= self._stalled_s:
            del self._marks[client_id]
            elapsed = int(now - mark[1])
            self.log(
                f"{client.name}: has acknowledged nothing of {window.bytes} bytes for "
                f"{elapsed} s, of {self._backlog.inflight_bytes} under way to all, closed"
            )
            counted_as = ACKNOWLEDGES_NOTHING
            client.end(now, reasons.QUOTA_EXCEEDED, why=counted_as, counted_as=counted_as)


def _oldest(window: Window) -> int:
    """Return the packet id that has been under way for longest; 0: none is."""
    for packet_id in window.unacked:
        return packet_id
    for packet_id in window.releasing:
        return packet_id
    return 0
