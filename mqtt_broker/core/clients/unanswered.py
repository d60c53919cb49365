"""How long the oldest acknowledgement has waited for the store.

It is asked of the connections, not of the journal: an answer that the journal has lost is still
owed to its client. Nothing is noted for a message but the first that a connection waits for.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqtt_broker.core.clients.ack_queue import PendingAck
    from mqtt_broker.core.clients.connection import Connection

CHECKED_MAX: Final = 4_096  # connections looked at in one check: at most a millisecond


class Unanswered:
    __slots__ = ("_first", "since")

    def __init__(self) -> None:
        self.since = 0.0  # the oldest answer that waits was seen first then; 0: none waits
        # The answer that each connection waited for at its last check, and since when, in the
        # order of those times: whatever has not changed by the next check is the oldest.
        self._first: dict[Connection, tuple[PendingAck | None, float]] = {}

    def add(self, connection: Connection) -> None:
        """Note that it waits for an answer, from now on."""
        if connection not in self._first:
            self._first[connection] = (None, 0.0)

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is closed: nothing is owed to it."""
        self._first.pop(connection, None)

    def check(self, now: float) -> None:
        """Find the oldest. Called about once a second, which is how exact the times are."""
        first = self._first
        for connection in list(islice(first, CHECKED_MAX)):
            answer, since = first[connection]
            held = connection.held
            if held and held[0] is answer:
                self.since = since
                return
            del first[connection]
            if held:
                first[connection] = (held[0], now)
        self.since = 0.0
