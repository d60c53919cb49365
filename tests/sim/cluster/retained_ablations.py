"""Rules for retained messages, taken out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mqtt_broker.cluster import retained as retained_part
from mqtt_broker.cluster import retained_follower, retained_rows
from mqtt_broker.cluster.exchange import Batch, Exchange
from mqtt_broker.cluster.node_transactions import Writes, own_row
from mqtt_broker.cluster.retained import Retained
from mqtt_broker.cluster.retained_follower import Cut, Follower
from mqtt_broker.cluster.retained_rows import OwnRows, RetainedMessage, Sweep
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    LockTimeout,
    Put,
    Rows,
    Select,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import RETAINED
from tests.sim.cluster import retained
from tests.sim.cluster.ablation import Replace, ablation


def register() -> None:
    """Import this module, and the rules are registered."""


# Writing.


@ablation(retained.play)
def retained_in_the_group() -> list[Replace]:
    """What a group retains is committed with it."""

    def commit(self: Exchange, writes: Writes, group: int, batch: Batch) -> Transaction[None]:
        statements = next(original(self, writes, group, batch))
        yield [one for one in statements if not _is_row(one)]
        if any(_is_row(one) for one in statements):
            yield [*filter(_is_row, statements), Commit()]

    original = Exchange.commit
    return [(Exchange, "commit", commit)]


def _is_row(statement: Statement) -> bool:
    return isinstance(statement, Put) and statement.table == RETAINED


@ablation(retained.play)
def rows_are_locked_in_order() -> list[Replace]:
    """A group writes its rows in the order of the topics."""

    def write(self: Retained, group: int, messages: Iterable[RetainedMessage]) -> list[Statement]:
        statements = original(self, group, messages)
        return statements if group % 2 else [*statements[:1], *reversed(statements[1:])]

    original = Retained.write
    return [(Retained, "write", write)]


@ablation(retained.play)
def waits_for_rows_end() -> list[Replace]:
    """Who waits for a row gives up soon, and shows a sign of life."""
    return [(retained_rows, "LockTimeout", lambda seconds: LockTimeout(60.0))]


@ablation(retained.play)
def groups_are_bounded() -> list[Replace]:
    """A group retains no more messages than can be read at once."""
    return [(retained_part.RetainedBudget, "admits", lambda self, publisher, is_retained: True)]


@ablation(retained.play)
def publishers_wait_in_order() -> list[Replace]:
    """Who waits for the next group does so with all that it has sent behind."""

    def admits(self: Any, publisher: str, *, is_retained: bool) -> bool:
        self._waiting.clear()
        return original(self, publisher, is_retained=is_retained)

    original = retained_part.RetainedBudget.admits
    return [(retained_part.RetainedBudget, "admits", admits)]


# Removed messages.


@ablation(retained.play)
def tombstones_are_deleted() -> list[Replace]:
    """Rows of removed messages are deleted when others have read them."""
    return [(OwnRows, "_is_generation_over", lambda self, now: False)]


@ablation(retained.play)
def expired_rows_are_deleted() -> list[Replace]:
    """Rows of messages that have expired are deleted."""
    return [(OwnRows, "_steps_over", lambda self, server_now: [])]


@ablation(retained.play)
def sweeps_are_told() -> list[Replace]:
    """Who may have missed a row that was deleted reads all."""
    return [(Follower, "_is_missed", lambda self, sweeps: False)]


@ablation(retained.play)
def only_own_rows_are_deleted() -> list[Replace]:
    """A number deletes only rows that nobody else has written since."""

    def delete_rows(number: int, epoch: str, turn: int, sweep: Sweep) -> Transaction[None]:
        statements = next(original(number, epoch, turn, sweep))
        rest = [one for one in statements if not isinstance(one, Delete)]
        yield [*rest[:-1], Delete(RETAINED, {"topic": sweep.topics}), Commit()]

    original = retained_rows.delete_rows
    return [(retained_part, "delete_rows", delete_rows)]


@ablation(retained.play)
def what_is_gone_is_removed() -> list[Replace]:
    """Who reads all removes what is not there any more."""

    def apply(self: Follower, cut: Cut) -> None:
        cut.is_whole = None
        original(self, cut)

    original = Follower.apply
    return [(Follower, "apply", apply)]


# Reading.


@ablation(retained.play)
def reads_are_proven() -> list[Replace]:
    """What is read counts when a write of the host's own is committed with it."""

    def next_errand(self: Retained, number: int, epoch: str, turn: int, now: float) -> Any:
        asked_at[number] = now
        cut = self.follower.take()
        if cut is not None:
            self.follower.apply(cut)
        return original_next(self, number, epoch, turn, now)

    def _follow(self: Retained, epoch: str, turn: int) -> Transaction[None]:
        found = yield [own_row(self._number, epoch, turn), *self.reads()]
        self.on_rows(found[1:], asked_at[self._number])
        yield [Commit()]

    def on_done(self: Retained, result: Any, now: float) -> None:
        if result is not None or self._errand is not None:
            original_on_done(self, result, now)

    asked_at: dict[int, float] = {}
    original_next, original_on_done = Retained.next, Retained.on_done
    return [
        (Retained, "next", next_errand),
        (Retained, "_follow", _follow),
        (Retained, "on_done", on_done),
    ]


@ablation(retained.play)
def all_is_read_first() -> list[Replace]:
    """SUBSCRIBE waits for a read that was sent after it came."""

    def want(self: Follower, request: retained_follower.Request) -> None:
        request.begin(set())

    return [(Follower, "want", want)]


@ablation(retained.play)
def pages_end_with_a_group() -> list[Replace]:
    """Of the last group of a page there may be more rows: it is read again."""

    def without(rows: Rows) -> Rows:
        return rows

    return [(retained_follower, "_without_the_last_group", without)]


@ablation(retained.play)
def requests_stay_open() -> list[Replace]:
    """A SUBSCRIBE is given what changes until each host has had another transaction."""
    return [(retained_follower.OpenRequest, "is_over", lambda self, marks, now: True)]


@ablation(retained.play)
def messages_before_the_cut() -> list[Replace]:
    """Retained messages come behind the messages that were committed before them."""

    def take_all(self: Retained) -> None:
        cut = self.follower.take()
        if cut is not None:
            self.follower.apply(cut)

    return [(Retained, "apply_alone", take_all)]


@ablation(retained.play)
def rows_are_read_again() -> list[Replace]:
    """A topic that changes while messages are read is left to the next cut."""
    return [(retained_follower, "_topics_that_differ", lambda rows, again: set())]


@ablation(retained.play)
def own_rows_wait_for_the_cut() -> list[Replace]:
    """What this host has written is in memory with the next cut, not before."""

    def on_committed(self: Follower, group: int, messages: Iterable[RetainedMessage]) -> None:
        messages = list(messages)
        original(self, group, messages)
        cut = Cut({}, {message.topic: message for message in messages})
        self.apply(cut)

    original = Follower.on_committed
    return [(Follower, "on_committed", on_committed)]


@ablation(retained.play)
def numbers_are_read_first() -> list[Replace]:
    """Rows are known up to the groups that were committed before they were read."""

    def reads_late(self: Follower, messages: list[Statement], group: int | None) -> list[Statement]:
        statements = original(self, messages, group)
        return [*statements[1:4], *statements[4:], Select(statements[0].table)]  # type: ignore[attr-defined]

    def part_on_rows(self: Retained, found: list[Rows], now: float) -> None:
        original_part(self, [found[-2], *found[:-2], found[-1]], now)

    original, original_part = Follower.reads, Retained.on_rows
    return [(Follower, "reads", reads_late), (Retained, "on_rows", part_on_rows)]
