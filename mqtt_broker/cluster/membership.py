"""Which numbers a process hosts: its own, and those of hosts that have lapsed.

`Lapses` says whose row has not moved for too long. Clocks of other machines do not matter, nor does
the database's. Time counts only while this process reads the rows, and finds that its own have
moved: a database that takes no writes lets nobody show a sign of life. After an outage, or a pause
of this process, everybody is given the whole time anew: what was counted says nothing of now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.cluster.node_row import FREE, NodeRow

LAPSE_S: Final = 2.0
READ_GAP_S_MAX: Final = 0.75  # of the time between two reads that count, how much does


class _Sign:
    __slots__ = ("epoch", "quiet_s", "turn")

    def __init__(self, row: NodeRow) -> None:
        self.epoch = row.epoch
        self.turn = row.turn
        self.quiet_s = 0.0

    def wait(self, seconds: float) -> None:
        """Add to the time for which it has not moved."""
        self.quiet_s += seconds


class Lapses:
    """The time for which the row of each number has not moved."""

    __slots__ = ("_read_at", "_signs")

    def __init__(self) -> None:
        self._signs: dict[int, _Sign] = {}
        self._read_at = 0.0

    def on_rows(self, rows: list[NodeRow], now: float) -> None:
        """Compare with the rows of the last read."""
        passed_s = self.counted_s(now - self._read_at)
        if self.was_away(now - self._read_at):
            self._signs.clear()
        self._read_at = now
        signs: dict[int, _Sign] = {}
        for row in rows:
            sign = self._signs.get(row.number)
            if sign is None or sign.epoch != row.epoch or sign.turn != row.turn:
                sign = _Sign(row)
            else:
                sign.wait(passed_s)
            signs[row.number] = sign
        self._signs = signs

    def counted_s(self, passed_s: float) -> float:
        """Return how much of the time between two reads counts."""
        return min(passed_s, READ_GAP_S_MAX)

    def was_away(self, passed_s: float) -> bool:
        """Tell whether so much time between two reads means that nobody could write, or read."""
        return passed_s > LAPSE_S

    def has_lapsed(self, row: NodeRow) -> bool:
        """Tell whether the host of this number has shown no sign of life for too long."""
        sign = self._signs.get(row.number)
        if sign is None or sign.epoch != row.epoch or sign.turn != row.turn:
            return False
        return sign.quiet_s >= LAPSE_S


class Decision:
    """Something to do about one number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Create(Decision):
    """Host a number that has no row yet."""

    __slots__ = ("epoch",)

    def __init__(self, number: int, epoch: str) -> None:
        super().__init__(number)
        self.epoch = epoch


class Take(Decision):
    """Host a number whose host has lapsed or left, and whose row was `seen` last."""

    __slots__ = ("epoch", "seen")

    def __init__(self, seen: NodeRow, epoch: str) -> None:
        super().__init__(seen.number)
        self.seen = seen
        self.epoch = epoch


class Want(Decision):
    """Ask the host of this process's own number for it; wait under `epoch`."""

    __slots__ = ("epoch",)

    def __init__(self, number: int, epoch: str) -> None:
        super().__init__(number)
        self.epoch = epoch


class Accept(Decision):
    """Host a number whose row has an epoch of this process.

    Another process handed it over, or it was taken with an outcome that was unknown.
    """

    __slots__ = ("epoch",)

    def __init__(self, number: int, epoch: str) -> None:
        super().__init__(number)
        self.epoch = epoch


class HandOver(Decision):
    """Hand an inherited number over to its own process, which waits with `epoch`."""

    __slots__ = ("epoch",)

    def __init__(self, number: int, epoch: str) -> None:
        super().__init__(number)
        self.epoch = epoch


class Membership:
    """The numbers that one process hosts, and what to do about all others."""

    __slots__ = ("_attempts", "_given_up", "_lapses", "_new_epoch", "_turns", "hosted", "own")

    def __init__(self, own: int, new_epoch: Callable[[], str]) -> None:
        self.own = own
        self._new_epoch = new_epoch
        self._attempts: dict[int, str] = {}  # the epoch with which a number is taken or wanted
        self._lapses = Lapses()
        self._turns: dict[int, int] = {}  # of the numbers that are hosted here, when last counted
        self._given_up: dict[int, str] = {}  # the epoch under which a number was hosted here
        self.hosted: dict[int, str] = {}  # by number, its epoch

    def on_hosted(self, number: int, epoch: str) -> None:
        """Note that this process hosts a number."""
        self.hosted[number] = epoch
        self._attempts.pop(number, None)

    def on_lost(self, number: int) -> None:
        """Note that this process no longer hosts a number."""
        self._given_up[number] = self.hosted.pop(number)

    def decide(self, rows: list[NodeRow], wants: dict[int, str], now: float) -> list[Decision]:
        """Decide what to do, from a read of all rows and of who waits for which number."""
        if self.can_write(rows):
            self._lapses.on_rows(rows, now)
        decisions: list[Decision] = []
        if all(row.number != self.own for row in rows):
            decisions.append(Create(self.own, self._epoch_for(self.own)))
        for row in rows:
            decision = self.about(row, wants.get(row.number, FREE))
            if decision is not None:
                decisions.append(decision)
        return decisions

    def can_write(self, rows: list[NodeRow]) -> bool:
        """Tell whether a row of this process has moved since a read that counted.

        A process that hosts nothing yet cannot tell, and counts every read.
        """
        turns = {row.number: row.turn for row in rows if self.hosted.get(row.number) == row.epoch}
        if turns and turns == self._turns:
            return False
        self._turns = turns
        return True

    def about(self, row: NodeRow, wanted: str) -> Decision | None:
        """Decide what to do about one number, for which somebody may wait."""
        number = row.number
        is_own = number == self.own
        hosted = self.hosted.get(number)
        if hosted is not None:
            # A host under another epoch is fenced, and learns it from its next transaction.
            is_asked = hosted == row.epoch and wanted not in (FREE, hosted) and not is_own
            return HandOver(number, wanted) if is_asked else None
        if row.epoch == self._attempts.get(number, FREE) != FREE:
            return Accept(number, row.epoch)
        is_over = row.epoch == self._given_up.get(number)  # a fail-over lost what came after it
        if row.epoch == FREE or is_over or self._lapses.has_lapsed(row):
            is_needed = is_own or not row.is_empty
            return Take(row, self._epoch_for(number)) if is_needed else None
        if is_own and wanted != self._epoch_for(number):
            return Want(number, self._epoch_for(number))
        return None

    def _epoch_for(self, number: int) -> str:
        """Return the epoch under which this process tries to host a number."""
        if number not in self._attempts:
            self._attempts[number] = self._new_epoch()
        return self._attempts[number]
