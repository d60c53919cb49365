"""The part of one number in the retained messages of the cluster.

Every host has all of them in memory. A group writes what it retains in its own transaction
(`retained_rows`), and every host reads what has changed (`retained_follower`): with a group, if one
is committed, or in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mqtt_broker.cluster.inbox import Inbox, read_waiting
from mqtt_broker.cluster.node_transactions import own_row
from mqtt_broker.cluster.retained_follower import Copies, Cut, Follower, Request
from mqtt_broker.cluster.retained_rows import (
    OwnRows,
    RetainedLimits,
    RetainedMessage,
    Sweep,
    delete_rows,
    write_retained,
)
from mqtt_broker.cluster.statements import Clock, Commit, Rows, Statement, Transaction

FOLLOW_S: Final = 0.9  # between reads; a host writes every second anyway


class Retained:
    """The retained messages, for one number under one epoch."""

    __slots__ = ("_errand", "_follow_at", "_inbox", "_number", "_own", "_time_offset_s", "follower")

    def __init__(
        self, number: int, copies: Copies, inbox: Inbox, limits: RetainedLimits | None = None
    ) -> None:
        limits = limits or RetainedLimits()
        self._number = number
        self._inbox = inbox
        self._own = OwnRows(limits)
        self.follower = Follower(number, copies, self._own, limits)
        self._follow_at = 0.0
        self._time_offset_s: float | None = None  # of the database's clock
        self._errand: Sweep | None = None  # None: it reads

    @property
    def tombstones(self) -> int:
        """The number of topics with a tombstone of this number."""
        return self._own.tombstones

    @property
    def has_time(self) -> bool:
        """Tell whether the database's time is known, in which messages expire."""
        return self._time_offset_s is not None

    def server_now(self, now: float) -> float:
        """Return the database's time, as far as it is known."""
        return now + (self._time_offset_s or 0.0)

    def want(self, request: Request) -> None:
        """Serve a SUBSCRIBE when all is known that was committed by now."""
        self.follower.want(request)

    # With a group.

    def write(self, group: int, messages: Iterable[RetainedMessage]) -> list[Statement]:
        """Return what a group writes, the last locks that it takes."""
        return write_retained(messages, self._number, group)

    def reads(self, group: int | None = None) -> list[Statement]:
        """Return what a transaction reads, at its end, if it is time."""
        waiting = read_waiting(self._number, self.follower.numbers)
        return [*self.follower.reads(waiting, group), Clock()]

    def is_due(self, now: float) -> bool:
        """Tell whether it is time to read."""
        return self.follower.is_wanted or now >= self._follow_at

    def on_committed(self, group: int, messages: Iterable[RetainedMessage]) -> None:
        """Note that a group of this host is committed."""
        self.follower.on_committed(group, messages)

    def on_rows(self, found: list[Rows], now: float) -> None:
        """Take in what a transaction has read that is committed."""
        self._follow_at = now + FOLLOW_S
        self._time_offset_s = found[-1][0]["now"] - now
        ends: dict[int, int] = {}
        for sender, rows in zip(self.follower.numbers, found[4:-2], strict=True):
            self._inbox.on_rows(sender, rows)
            ends[sender] = rows[-1]["last"] if rows else 0
        rest = [*found[:4], found[-2]]
        self.follower.on_rows(rest, ends, now, has_all=not self._inbox.missing)

    def take(self) -> Cut | None:
        """Return what was read, to be applied behind the messages that were read with it."""
        return self.follower.take()

    def apply_alone(self) -> None:
        """Apply what was read if no message has to be delivered before it."""
        cut = self.follower.cut
        if cut is not None and not self._inbox.waits_for(cut.ends):
            self.follower.take()
            self.follower.apply(cut)

    def apply(self, cut: Cut) -> None:
        """Change what is in memory, and serve those who waited for it."""
        self.follower.apply(cut)

    # Alone: see `hosting.Errands`. It is asked between batches.

    def next(self, number: int, epoch: str, turn: int, now: float) -> Transaction[Any] | None:
        """Return a transaction that reads or deletes rows, if it is time for one."""
        self._errand = None
        if self.is_due(now):
            return self._follow(epoch, turn)
        if self.follower.is_loaded:
            self._errand = self._own.sweep(now, self.server_now(now))
        if self._errand is not None:
            return delete_rows(number, epoch, turn, self._errand)
        return None

    def _follow(self, epoch: str, turn: int) -> Transaction[list[Rows]]:
        found = yield [own_row(self._number, epoch, turn), *self.reads(), Commit()]
        return found[1:-1]

    def on_done(self, result: Any, now: float) -> None:
        """Note that the transaction is committed."""
        if self._errand is None:
            self.on_rows(result, now)
        else:
            self._own.on_swept(self._errand)


class RetainedBudget:
    """Which messages go into the next group.

    A group retains a bounded number of messages: their rows are locked until it is committed. Who
    publishes more waits for the next group, with all that it has sent behind, and nobody else.
    """

    __slots__ = ("_left", "_waiting")

    def __init__(self, limits: RetainedLimits) -> None:
        self._left = limits.group_rows
        self._waiting: set[str] = set()  # publishers of messages that wait

    def admits(self, publisher: str, *, is_retained: bool) -> bool:
        """Tell whether the next message goes into this group; they are asked for in their order."""
        if publisher in self._waiting:
            return False
        if is_retained and not self._left:
            self._waiting.add(publisher)
            return False
        self._left -= is_retained
        return True
