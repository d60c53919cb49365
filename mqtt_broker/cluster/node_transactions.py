"""Transactions on the row of one number: take it, write under it, hand it over.

Every write of a host begins with `own_row`: it locks the row of its own number, and only that one,
so that hosts never wait for each other in a ring; and it is refused unless epoch and turn are those
that the host knows. A new epoch fences the host. A new turn fences what an earlier connection of
the same host may still have under way: a pipeline can outlive the connection it was sent on, and
be executed after the host has asked, on another connection, what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqtt_broker.cluster.node_row import NodeRow, new_row
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    EndBackends,
    Insert,
    LockTimeout,
    Put,
    Refused,
    Row,
    Rows,
    Select,
    Statement,
    Transaction,
    Update,
)
from mqtt_broker.cluster.tables import GROUPS, NODES, WANTS

TAKE_WAIT_S: Final = 1.0  # for the row of a number whose host has lapsed


def own_row(number: int, epoch: str, turn: int, change: Row | None = None) -> Update:
    """Lock the host's own row, count its turn, and refuse a host that is fenced."""
    where = {"number": number, "epoch": epoch, "turn": turn}
    return Update(NODES, where, {**(change or {}), "turn": turn + 1}, required=True)


def read_nodes() -> Transaction[tuple[list[NodeRow], dict[int, str]]]:
    """Read the rows of all numbers, and with which epochs processes wait for them."""
    found = yield [Select(NODES), Select(WANTS), Commit()]
    wants: dict[int, str] = {row["number"]: row["epoch"] for row in found[1]}
    return [NodeRow(row) for row in found[0]], wants


def create_number(number: int, epoch: str) -> Transaction[None]:
    """Host a number that has no row yet."""
    yield [Insert(NODES, new_row(number, epoch)), Commit()]


def take_number(seen: NodeRow, epoch: str) -> Transaction[None]:
    """Host a number under a new epoch, which fences its old host.

    Its row must still be what was seen. The epoch alone is not enough: whoever decided this may
    have been frozen, or its statement on the way for long, and the host has come back meanwhile.
    """
    where: Row = {"number": seen.number, "epoch": seen.epoch, "turn": seen.turn}
    yield [
        LockTimeout(TAKE_WAIT_S),
        Update(NODES, where, {"epoch": epoch}, required=True),
        Delete(WANTS, {"number": seen.number}),  # of processes that may be gone
        Commit(),
    ]


def end_backends(epoch: str) -> Transaction[None]:
    """End the connections of a host that is being fenced: one of them holds its row."""
    yield [EndBackends(epoch), Commit()]


def confirm(number: int, epoch: str, turn: int) -> Transaction[NodeRow]:
    """Find out what was committed, after an outcome was unknown or the connection was new.

    Connections of this host that are left over are ended. A row that can be read may be lost
    if the database fails over, since a commit is visible before its standby has it; the answer to
    a commit of our own proves what was read before it. A turn below `turn`, which the host has
    seen committed, shows that the database has lost commits: the host is refused.
    """
    found = yield [
        EndBackends(epoch),
        Select(NODES, {"number": number, "epoch": epoch}, for_update=True),
    ]
    if not found[1] or found[1][0]["turn"] < turn:
        raise Refused(f"number {number} is not hosted under epoch {epoch} and turn {turn}")
    row = NodeRow(found[1][0])
    found = yield [own_row(number, epoch, row.turn), Commit()]
    return NodeRow(found[0][0])


def want_number(number: int, epoch: str) -> Transaction[None]:
    """Ask the host of a number to hand it over to its own process, which waits with `epoch`.

    The host's row is left alone: a connection that is lost in between would keep it locked, and
    the host could show no sign of life.
    """
    yield [Put(WANTS, {"number": number, "epoch": epoch}), Commit()]


class Writes:
    """The transactions of a host that write, for one number, epoch and turn."""

    __slots__ = ("_number", "epoch", "turn")

    def __init__(self, number: int, epoch: str, turn: int) -> None:
        self._number = number
        self.epoch = epoch
        self.turn = turn

    def _own(self, change: Row | None = None) -> Update:
        return own_row(self._number, self.epoch, self.turn, change)

    def beat(self) -> Transaction[None]:
        """Show that the host is alive."""
        yield [self._own(), Commit()]

    def commit_group(
        self, group: int, blob: bytes, also: Sequence[Statement] = ()
    ) -> Transaction[list[Rows]]:
        """Append a group to the journal, with what else belongs to its transaction.

        Return the rows of these other statements.
        """
        row: Row = {"number": self._number, "group": group, "blob": blob}
        found = yield [self._own({"group": group}), Insert(GROUPS, row), *also, Commit()]
        return found[2:-1]

    def fold(self, group: int, changes: list[Statement]) -> Transaction[None]:
        """Apply what the groups up to this one changed, and delete them."""
        yield [
            self._own({"folded": group}),
            *changes,
            Delete(GROUPS, {"number": self._number}, up_to=("group", group)),
            Commit(),
        ]

    def hand_over(self, epoch: str) -> Transaction[None]:
        """Let another process host the number, under the epoch with which it waits, or any."""
        yield [self._own({"epoch": epoch}), Commit()]
