"""Transactions on the table of owners: claim clients, release them, ask others to release theirs.

The table says for each client which number owns it: holds its session, and has its connection.
`tenure` is the turn in which the owner claimed it. So number and tenure name one claim, and what is
asked of an earlier one is recognized, even if the row was deleted meanwhile. An owner that releases
a client offers it: anybody may claim it then, in a transaction of its own. No transaction locks the
rows of two numbers.

Locks are taken in one order: the host's own row, then clients sorted, first those that are new,
then those that exist; then what is asked, sorted. Asks are deleted in other transactions than they
are written in.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqtt_broker.cluster.node_transactions import own_row
from mqtt_broker.cluster.statements import (
    Clock,
    Commit,
    Delete,
    InsertNew,
    PutAll,
    Row,
    Rows,
    Select,
    Statement,
    Transaction,
    Update,
)
from mqtt_broker.cluster.tables import ASKS, OWNERS


class OwnerRow:
    """A row of the table of owners."""

    __slots__ = ("client", "is_offered", "number", "tenure")

    def __init__(self, row: Row) -> None:
        self.client: str = row["client"]
        self.number: int = row["number"]
        self.tenure: int = row["tenure"]
        self.is_offered: bool = row["is_offered"]


class Claimed:
    """The answer to a claim: the rows of the clients, their sessions, the database's clock."""

    __slots__ = ("owners", "sessions", "time")

    def __init__(self, owners: Rows, sessions: list[Rows], time: float) -> None:
        self.owners = {row["client"]: OwnerRow(row) for row in owners}
        self.sessions = sessions
        self.time = time


class OwnerWrites:
    """The transactions of a host on the table of owners, for one number, epoch and turn."""

    __slots__ = ("_epoch", "_number", "_turn")

    def __init__(self, number: int, epoch: str, turn: int) -> None:
        self._number = number
        self._epoch = epoch
        self._turn = turn

    def _own(self) -> Update:
        return own_row(self._number, self._epoch, self._turn)

    def claim(
        self,
        clients: list[str],
        offered: list[str],
        sessions: Sequence[Statement],
        asks: Rows,
    ) -> Transaction[Claimed]:
        """Own the clients that nobody owns or that are offered, and read their sessions.

        Those in `offered` are taken back only if this number offered them and nobody came.
        """
        mine: Row = {"number": self._number, "tenure": self._turn, "is_offered": False}
        anybodys: Row = {"client": clients, "is_offered": True}
        own_offers: Row = {"client": offered, "number": self._number, "is_offered": True}
        batch: list[Statement] = [
            self._own(),
            InsertNew(OWNERS, [{"client": client, **mine} for client in clients]),
            Select(
                OWNERS, {"client": sorted(clients + offered), "is_offered": True}, for_update=True
            ),
            Update(OWNERS, anybodys, mine),
            Update(OWNERS, own_offers, mine),
            Select(OWNERS, {"client": clients + offered}),
            *sessions,
            Clock(),
            PutAll(ASKS, asks),
            Commit(),
        ]
        found = yield batch
        end = 6 + len(sessions)
        return Claimed(found[5], found[6:end], found[end][0]["now"])

    def release(self, offers: list[str], drops: list[str]) -> Transaction[None]:
        """Offer clients to whoever claims them, and delete the rows of those that are over."""
        mine: Row = {"number": self._number}
        yield [
            self._own(),
            Select(OWNERS, {"client": offers + drops, **mine}, for_update=True),
            Update(OWNERS, {"client": offers, **mine}, {"is_offered": True}),
            Delete(OWNERS, {"client": drops, **mine}),
            Commit(),
        ]

    def read_asks(self) -> Transaction[tuple[Rows, float]]:
        """Read which clients others ask for, and the database's clock."""
        found = yield [self._own(), Select(ASKS, {"number": self._number}), Clock(), Commit()]
        return found[1], found[2][0]["now"]

    def delete_asks(self, clients: list[str]) -> Transaction[None]:
        """Delete what was read. Whoever still waits asks again."""
        where: Row = {"number": self._number, "client": clients}
        yield [self._own(), Select(ASKS, where, for_update=True), Delete(ASKS, where), Commit()]
