"""Measure how long the oldest acknowledgement has waited for the store.

The queues of the connections are asked, not the journal: an acknowledgement that the journal has
lost is still owed to its client. Only the first of each queue is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol

from sessions.journal.transaction import PendingCommit

CHECKED_MAX: Final = 4_096  # queues looked at in one check: at most a millisecond


class WaitingAcks(Protocol):
    """The acknowledgements of one connection that wait."""

    @property
    def waiting(self) -> Sequence[PendingCommit]: ...


class Unanswered:
    __slots__ = ("_first", "since")

    def __init__(self) -> None:
        self.since = 0.0  # the oldest that waits was seen first then; 0: none waits
        # The acknowledgement at the front of each queue at its last check, and since when, in the
        # order of those times: whatever has not changed by the next check is the oldest.
        self._first: dict[WaitingAcks, tuple[PendingCommit | None, float]] = {}

    def add(self, acks: WaitingAcks) -> None:
        """Note that one waits from now on."""
        if acks not in self._first:
            self._first[acks] = (None, 0.0)

    def forget(self, acks: WaitingAcks) -> None:
        """Drop the queue of a connection that is closed: nothing is owed to it."""
        self._first.pop(acks, None)

    def check(self, now: float) -> None:
        """Find the oldest. Called about once a second, which is how exact the times are."""
        first = self._first
        for acks in list(islice(first, CHECKED_MAX)):
            ack, since = first[acks]
            waiting = acks.waiting
            if waiting and waiting[0] is ack:
                self.since = since
                return
            del first[acks]
            if waiting:
                first[acks] = (waiting[0], now)
        self.since = 0.0
