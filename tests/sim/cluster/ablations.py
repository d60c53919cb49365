"""Rules of the cluster taken out, each by name, to see that the simulation notices.

    python -m tests.sim.cluster.ablations                      # every rule
    python -m tests.sim.cluster.ablations --only turn --seeds 2000

Those of messages are in `message_ablations`, those of owners in `owner_ablations`,
those of retained messages in `retained_ablations`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mqtt_broker.cluster import hosting, membership, node, node_transactions
from mqtt_broker.cluster.node_row import FREE, NodeRow
from mqtt_broker.cluster.statements import (
    Commit,
    ConnectionLost,
    Delete,
    EndBackends,
    LockTimeout,
    Refused,
    Row,
    Select,
    Transaction,
    TransactionError,
    Update,
)
from mqtt_broker.cluster.tables import NODES, WANTS
from tests.sim.cluster import (
    bus_ablations,
    database,
    hosts,
    message_ablations,
    owner_ablations,
    retained_ablations,
)
from tests.sim.cluster.ablation import ABLATIONS, SEEDS, Replace, ablation, search

# Of nodes that host numbers.


@ablation(hosts.play)
def epoch() -> list[Replace]:
    """Every write is refused unless the host's epoch is still that of the row."""

    def own_row(number: int, epoch: str, turn: int, change: Row | None = None) -> Update:
        return Update(NODES, {"number": number}, {**(change or {}), "turn": turn + 1})

    return [(node_transactions, "own_row", own_row)]


@ablation(hosts.play)
def turn() -> list[Replace]:
    """A write that an earlier connection of the same host left under way is refused."""

    def own_row(number: int, epoch: str, turn: int, change: Row | None = None) -> Update:
        where = {"number": number, "epoch": epoch}
        return Update(NODES, where, {**(change or {}), "turn": turn + 1}, required=True)

    return [(node_transactions, "own_row", own_row)]


@ablation(hosts.play)
def barrier() -> list[Replace]:
    """After an unknown outcome a commit of the host's own proves what it reads."""

    def confirm(number: int, epoch: str, turn: int) -> Transaction[NodeRow]:
        found = yield [
            EndBackends(epoch),
            Select(NODES, {"number": number, "epoch": epoch}),
            Commit(),
        ]
        if not found[1] or found[1][0]["turn"] < turn:
            raise Refused("another epoch")
        return NodeRow(found[1][0])

    return [(hosting, "confirm", confirm)]


@ablation(hosts.play)
def unknown_is_not_done() -> list[Replace]:
    """A commit whose answer was lost is neither taken for done nor sent again unexamined."""

    def on_failed(self: hosting.Hosting, error: TransactionError) -> None:
        if isinstance(error, Refused):
            self.is_fenced = True
        elif isinstance(error, ConnectionLost) and self.is_loaded and self.is_sure:
            self.on_done(None, 0.0)

    return [(hosting.Hosting, "on_failed", on_failed)]


@ablation(hosts.play)
def synchronous_commit() -> list[Replace]:
    """COMMIT is answered when it is as safe as the acknowledgement says."""

    def commit(self: database.Database, backend: Any, writes: Any) -> None:
        was, self.is_synchronous = self.is_synchronous, False
        original(self, backend, writes)
        self.is_synchronous = was

    original = database.Database.commit
    return [(database.Database, "commit", commit)]


@ablation(hosts.play_asynchronous)
def lost_commits() -> list[Replace]:
    """A host whose commits the database has lost starts anew."""

    def confirm(number: int, epoch: str, turn: int) -> Transaction[NodeRow]:
        return original(number, epoch, 0)

    original = node_transactions.confirm
    return [(hosting, "confirm", confirm)]


@ablation(hosts.play)
def lapse_counts_reads() -> list[Replace]:
    """The time in which nobody could read the rows counts against nobody."""
    return [
        (membership.Lapses, "counted_s", lambda self, passed_s: passed_s),
        (membership.Lapses, "was_away", lambda self, passed_s: False),
    ]


@ablation(hosts.play)
def outages_are_forgotten() -> list[Replace]:
    """After an outage everybody is given the whole time anew to show signs of life."""
    return [(membership.Lapses, "was_away", lambda self, passed_s: False)]


@ablation(hosts.play)
def lapse_counts_own_writes() -> list[Replace]:
    """The time in which the taker could not write counts against nobody."""
    return [(membership.Membership, "can_write", lambda self, rows: True)]


@ablation(hosts.play)
def take_what_was_seen() -> list[Replace]:
    """A number is not taken from a host that has come back since it was seen."""

    def take_number(seen: NodeRow, epoch: str) -> Transaction[None]:
        where: Row = {"number": seen.number, "epoch": seen.epoch}
        yield [
            LockTimeout(1.0),
            Update(NODES, where, {"epoch": epoch}, required=True),
            Delete(WANTS, {"number": seen.number}),
            Commit(),
        ]

    return [(node, "take_number", take_number)]


@ablation(hosts.play)
def rows_of_hosts_are_left_alone() -> list[Replace]:
    """A process that waits for a number does not lock the row of its host."""

    def want_number(number: int, epoch: str) -> Transaction[None]:
        yield [Select(NODES, {"number": number}, for_update=True), *next(original(number, epoch))]

    original = node_transactions.want_number
    return [(node, "want_number", want_number)]


@ablation(hosts.play)
def lapse() -> list[Replace]:
    """A number is taken only from a host whose row has not moved for too long."""
    return [(membership.Lapses, "has_lapsed", lambda self, row: True)]


@ablation(hosts.play)
def survivors_inherit() -> list[Replace]:
    """The numbers of a dead process are hosted by those that live."""

    def about(self: membership.Membership, row: NodeRow, wanted: str) -> Any:
        return original(self, row, wanted) if row.number == self.own else None

    original = membership.Membership.about
    return [(membership.Membership, "about", about)]


@ablation(hosts.play)
def own_process_waits() -> list[Replace]:
    """A process that comes back asks for its number, and does not take it from its host."""

    def about(self: membership.Membership, row: NodeRow, wanted: str) -> Any:
        decision = original(self, row, wanted)
        if isinstance(decision, membership.Want):
            return membership.Take(row, decision.epoch)
        return decision

    original = membership.Membership.about
    return [(membership.Membership, "about", about)]


@ablation(hosts.play)
def leftovers_are_ended() -> list[Replace]:
    """A host that connects again ends the connections that it had before."""

    def confirm(number: int, epoch: str, turn: int) -> Transaction[NodeRow]:
        transaction = original(number, epoch, turn)
        batch = next(transaction)
        assert isinstance(batch[0], EndBackends)
        found = yield [EndBackends(FREE), *batch[1:]]
        while True:
            try:
                batch = transaction.send(found)
            except StopIteration as end:
                row: NodeRow = end.value
                return row
            found = yield batch

    original = node_transactions.confirm
    return [(hosting, "confirm", confirm)]


bus_ablations.register()
message_ablations.register()
owner_ablations.register()
retained_ablations.register()


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--only", default="", help=f"rules, of {', '.join(ABLATIONS)}")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    unnoticed = 0
    for name in args.only.split(",") if args.only else ABLATIONS:
        found = search(name, args.seeds)
        unnoticed += found is None
        said = f"nothing in {args.seeds} seeds" if found is None else f"seed {found[0]}: {found[1]}"
        sys.stdout.write(f"{name:28} {said[:150]}\n")
        sys.stdout.flush()
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
