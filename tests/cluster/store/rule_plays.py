"""Transactions of the rules on PostgreSQL and on the model of it, cut into batches at random.

Each session hosts a number, and carries out what the rules do to the tables of owners and messages.
A transaction is sent in several batches, so that others come in between. None of them waits in a
ring, on either database.
"""

from __future__ import annotations

from typing import Any, Final

from mqtt_broker.cluster.digest import COLUMNS, NOBODY, STORED
from mqtt_broker.cluster.inbox import Inbox
from mqtt_broker.cluster.node_row import new_row
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel, write_parcels
from mqtt_broker.cluster.owner_transactions import OwnerWrites
from mqtt_broker.cluster.retained_rows import (
    RetainedMessage,
    Sweep,
    delete_rows,
    write_retained,
)
from mqtt_broker.cluster.statements import (
    Aborted,
    Clock,
    Commit,
    Delete,
    Expect,
    Insert,
    LockTimeout,
    Put,
    PutAll,
    Row,
    Rows,
    Select,
    SelectNewer,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import (
    FILTERS,
    GROUPS,
    NODES,
    OUTBOX,
    OWNERS,
    PLACES,
    RETAINED,
    SWEEPS,
    VERSIONS,
)
from tests.cluster.store.differential import Play, Real, play

LONG: Final = "x" * 65_534
# The order of their digests is another than theirs.
CLIENTS: Final = ["", "a", "Z", "é", LONG + "a", LONG + "b"]
TEXTS: Final = ["a", "+/#", "é", "y/" * 32_767]


class RulePlay(Play):
    """One play of a seed on both."""

    def __init__(self, real: Real, seed: int, sessions: int = 3) -> None:
        super().__init__(real, seed, sessions)
        self._left: list[list[Statement]] = [[] for _ in range(sessions)]  # of the transactions
        self._messages = 0
        rows: list[Statement] = [
            Insert(NODES, new_row(number, "e")) for number in range(1, sessions + 1)
        ]
        self.follow([(0, [*rows, Commit()])])

    def _batch(self, at: int) -> list[Statement]:
        if not self.is_open[at]:
            self._left[at] = self._transaction(at)
        left = self._left[at]
        size = self.rng.choice([1, 1, 2, 3, len(left)])
        self._left[at] = left[size:]
        return left[:size]

    def _settle(self) -> None:
        super()._settle()
        assert not self.database.deadlocks, self._said("a ring on the model")
        for real in self.reals:
            assert not isinstance(real.answer, Aborted), self._said(f"{real.answer}")

    def _row(self, table: str, number: int) -> Row | None:
        rows = [row for row in self.database.rows(table) if row["number"] == number]
        return rows[0] if rows else None

    def _transaction(self, at: int) -> list[Statement]:
        """Return the statements of a transaction of the rules."""
        rng = self.rng
        number = at + 1 if rng.random() < 0.95 else rng.randint(1, len(self.reals))
        node = self._row(NODES, number)
        assert node is not None
        turn: int = node["turn"] + (rng.random() < 0.03)
        owners = OwnerWrites(number, "e", turn)
        kind = rng.randrange(12)
        if kind < 3:
            return _first(self._claim(owners))
        if kind == 3:
            some = self._some()
            cut = rng.randint(0, len(some))
            return _first(owners.release(some[:cut], some[cut:]))
        if kind == 4:
            return _first(owners.read_asks())
        if kind == 5:
            return _first(owners.delete_asks(self._some()))
        if kind == 6:
            return self._learn(number)
        if kind == 7:
            return [self._expectation(), Commit()]
        if kind == 8:
            return self._follow()
        if kind == 9:
            sweep = Sweep(sorted(rng.sample(TEXTS, rng.randint(1, 3))), rng.randint(0, 1))
            return _first(delete_rows(number, "e", turn, sweep))
        writes = Writes(number, "e", turn)
        if kind == 10 and rng.random() < 0.3:
            return _first(writes.fold(node["group"], [Delete(GROUPS, {"number": number})]))
        group: int = node["group"] + 1
        return _first(writes.commit_group(group, b"blob", self._with_group(number, group)))

    def _some(self) -> list[str]:
        return self.rng.sample(CLIENTS, self.rng.randint(0, 4))

    def _claim(self, owners: OwnerWrites) -> Transaction[Any]:
        some = self._some()
        cut = self.rng.randint(0, len(some))
        asks: Rows = [
            {"client": one, "number": self.rng.randint(1, 3), "tenure": self.rng.randint(0, 3)}
            for one in sorted(self._some())
        ]
        sessions = [Select(OWNERS, {"client": some})]
        return owners.claim(sorted(some[:cut]), some[cut:], sessions, asks)

    def _learn(self, number: int) -> list[Statement]:
        others = [one for one in range(1, len(self.reals) + 1) if one != number]
        than = {one: self.rng.randint(-1, 3) for one in others}
        reads = SelectNewer(FILTERS, "group", than)
        lanes: list[Statement] = [
            Select(OUTBOX, {"receiver": number, "sender": one}, limit=2) for one in others
        ]
        return [Select(VERSIONS), reads, Select(VERSIONS), *lanes, Commit()]

    def _expectation(self) -> Expect:
        rows = [tuple(row[name] for name in COLUMNS) for row in self.database.rows(VERSIONS)]
        if rows and self.rng.random() < 0.2:
            rows.pop()
        return Expect(VERSIONS, COLUMNS, rows)

    def _with_group(self, number: int, group: int) -> list[Statement]:
        rng, also = self.rng, list[Statement]()
        if rng.random() < 0.5:
            also.append(self._expectation())
        if rng.random() < 0.5:
            also += Inbox(number).write(self._received(number))
        if rng.random() < 0.5:
            also += self._filters(number, group)
        if rng.random() < 0.7:
            also += write_parcels(self._parcels(number, group))
        if rng.random() < 0.5:
            topics = rng.sample(TEXTS, rng.randint(1, 3))
            blobs = [b"", b"blob", b"x" * 10_000]
            retained = [RetainedMessage(topic, rng.choice(blobs), group) for topic in topics]
            also += [*write_retained(retained, number, group), *self._follow()[:-1]]
        return also

    def _follow(self) -> list[Statement]:
        """Read a page of retained messages."""
        than = {one: self.rng.randint(-1, 3) for one in range(1, len(self.reals) + 1)}
        newer = SelectNewer(RETAINED, "group", than, limit=self.rng.randint(1, 4))
        return [Select(SWEEPS), newer, Select(SWEEPS), Commit()]

    def _received(self, number: int) -> list[Parcel]:
        """Return what waits for a number, or a part of it."""
        parcels: list[Parcel] = []
        for row in self.database.rows(OUTBOX):
            if row["receiver"] == number and self.rng.random() < 0.7:
                count = row["last"] - row["first"] + 1
                parcels.append(Parcel(row["sender"], number, row["first"], 1, [b""] * count))
        return parcels

    def _filters(self, number: int, group: int) -> list[Statement]:
        rng = self.rng
        statements: list[Statement] = []
        rows: Rows = []
        for text in rng.sample(TEXTS, rng.randint(1, 3)):
            reach = rng.choice([NOBODY, STORED])
            rows.append({"number": number, "filter": text, "reach": reach, "group": group})
        statements.append(PutAll(FILTERS, rows))
        since = 0
        if rng.random() < 0.3:
            since = group
            statements.append(Delete(FILTERS, {"number": number, "reach": NOBODY}))
        version = {"number": number, "epoch": "e", "filters": group, "filters_from": since}
        return [*statements, Put(VERSIONS, version)]

    def _parcels(self, number: int, group: int) -> list[Parcel]:
        parcels: list[Parcel] = []
        for receiver in range(1, len(self.reals) + 1):
            if receiver != number and self.rng.random() < 0.6:
                lane = {"sender": number, "receiver": receiver}
                last = max(
                    [0, *self._ends(OUTBOX, lane, "last"), *self._ends(PLACES, lane, "place")]
                )
                first = last + (self.rng.random() < 0.97)  # or one that is given already
                parcels.append(Parcel(number, receiver, first, group, [b"message"] * 2))
        return parcels

    def _ends(self, table: str, lane: Row, column: str) -> list[int]:
        rows = self.database.rows(table)
        return [row[column] for row in rows if lane.items() <= row.items()]


def _first(transaction: Transaction[Any]) -> list[Statement]:
    """Return the only batch of a transaction, without a look at the clock."""
    return [one for one in next(transaction) if not isinstance(one, Clock | LockTimeout)]


def play_rules(real: Real, seed: int, turns: int = 60) -> Play:
    """Play a seed of the rules' transactions on both."""
    return play(real, seed, turns, RulePlay)
