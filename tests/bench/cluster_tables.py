"""What the transactions on owners, filters and outboxes cost, in tables that are full.

    python tests/bench/cluster_tables.py [--owners 1000000] [--fsync]

A PostgreSQL of the script's own has this many rows of owners, and a tenth of that of parcels in one
lane. Each line is a kind of transaction: how many rows it is about, its round trips, and its time,
CPU time of this process and of the server, for all of it. Without `--fsync` the disk is not
measured.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from sqlalchemy import make_url

from mqtt_broker.cluster.digest import Digest, learn
from mqtt_broker.cluster.inbox import READ_ROWS, Inbox, read_parcels
from mqtt_broker.cluster.node_row import new_row
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel, write_parcels
from mqtt_broker.cluster.own_filters import OwnFilters
from mqtt_broker.cluster.owner_transactions import OwnerWrites
from mqtt_broker.cluster.statements import Commit, Delete, Insert, Select, Statement, Transaction
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from mqtt_broker.cluster.store.schema import TABLES, prepare
from mqtt_broker.cluster.tables import NODES, OUTBOX, WANTS
from tests.bench.cluster_commit import server_cpu_s
from tests.fault.postgres import PostgreSQL

FILTERS_COUNT: Final = 100_000
SENDER, RECEIVER, READER = 1, 2, 3
# A digest of another kind is as long.
FILL: Final = """
INSERT INTO cluster_owners
SELECT 'device-' || i, decode(md5(i::text), 'hex'), 100 + i % 20, i, false
FROM generate_series(1, {owners}) AS i;
INSERT INTO cluster_outbox SELECT {receiver}, {sender}, i, i, 'e', 1, 1, '\\x0000000131'
FROM generate_series(1, {owners} / 10) AS i;
ANALYZE;
"""


class Bench:
    """One connection, which hosts three numbers."""

    def __init__(self, connection: StoreConnection) -> None:
        self.connection = connection
        self.turns = dict.fromkeys((SENDER, RECEIVER, READER), 0)
        self.execute([*(Insert(NODES, new_row(number, "e")) for number in self.turns), Commit()])

    def execute(self, batch: list[Statement]) -> Any:
        return self.connection.execute(batch)

    def run(self, transaction: Transaction[Any]) -> int:
        """Execute a transaction; return its round trips."""
        batch, trips = next(transaction), 0
        while True:
            trips += 1
            found = self.execute(batch)
            try:
                batch = transaction.send(found)
            except StopIteration:
                return trips

    def owners(self) -> OwnerWrites:
        return OwnerWrites(SENDER, "e", self._turn(SENDER))

    def writes(self, number: int) -> Writes:
        return Writes(number, "e", self._turn(number))

    def _turn(self, number: int) -> int:
        self.turns[number] += 1
        return self.turns[number] - 1

    def measure(self, name: str, rows: int, act: Callable[[], int], *, repeats: int = 1) -> None:
        """Print what a transaction costs."""
        server, trips = server_cpu_s(), 0
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            trips += act()
        spent = (
            time.perf_counter() - wall, time.process_time() - cpu, server_cpu_s() - server
        )  # fmt: skip
        figures = "".join(f"{seconds / repeats * 1e3:>12.2f}" for seconds in spent)
        print(f"{name:34}{rows:>9}{trips / repeats:>8.0f}{figures}")


def measure_owners(bench: Bench, count: int, repeats: int) -> None:
    """Claim new clients, offer them, claim what is offered, and delete their rows."""
    rounds = [[f"new-{at}-{n}" for n in range(count)] for at in range(repeats)]
    for clients in rounds:
        clients.sort()
    sessions = [Select(WANTS, {"number": 1})]

    def each(act: Callable[[list[str]], Transaction[Any]]) -> Callable[[], int]:
        left = iter(rounds)
        return lambda: bench.run(act(next(left)))

    def claim(clients: list[str]) -> Transaction[Any]:
        return bench.owners().claim(clients, [], sessions, [])

    kinds: dict[str, Callable[[list[str]], Transaction[Any]]] = {
        "claim, new clients": claim,
        "offer": lambda clients: bench.owners().release(clients, []),
        "claim, offered clients": claim,
        "claim, owned clients, and ask": lambda clients: bench.owners().claim(
            clients, [], sessions, [{"client": one, "number": 9, "tenure": 0} for one in clients]
        ),
        "end": lambda clients: bench.owners().release([], clients),
    }
    for name, act in kinds.items():
        bench.measure(name, count, each(act), repeats=repeats)


def measure_filters(bench: Bench) -> None:
    """Write filters, learn them as a new node, and learn one that is added."""
    filters = OwnFilters(SENDER, "e")

    def write(group: int) -> int:
        trips = bench.run(bench.writes(SENDER).commit_group(group, b"", filters.write(group)))
        filters.on_committed(group)
        return trips

    for at in range(FILTERS_COUNT):
        filters.set(f"plant/{at % 300}/line/{at}/+/state", 1)
    bench.measure("write filters", FILTERS_COUNT, lambda: write(1))
    digest = Digest(RECEIVER)
    bench.measure("learn filters", FILTERS_COUNT, lambda: bench.run(learn(digest)))
    assert digest.count == FILTERS_COUNT
    filters.set("one/more", 1)
    write(2)
    bench.measure("learn one more", 1, lambda: bench.run(learn(digest)))
    assert digest.count == FILTERS_COUNT + 1
    compares: list[Statement] = [digest.expectation(), Commit()]

    def compare() -> int:
        bench.execute(compares)
        return 1

    bench.measure("compare", 1, compare, repeats=500)


def measure_parcels(bench: Bench, waiting: int) -> None:
    """Commit groups with parcels, and receive what waits in a long lane."""
    message = os.urandom(128)
    group = 2
    for count, repeats in ((0, 200), (1, 200), (20, 50), (1_000, 3)):

        def commit(count: int = count) -> int:
            nonlocal group
            group += 1
            parcels = [Parcel(SENDER, 1_000 + at, group, 1, [message]) for at in range(count)]
            also = write_parcels(parcels)
            return bench.run(bench.writes(SENDER).commit_group(group, message, also))

        bench.measure("group with parcels", count, commit, repeats=repeats)
    inbox, received = Inbox(RECEIVER), 0

    def receive() -> int:
        nonlocal received
        received += 1
        trips = bench.run(read_parcels(inbox, RECEIVER, [SENDER]))
        parcels = inbox.take()
        assert len(parcels) == READ_ROWS
        writes = inbox.write(parcels)
        return trips + bench.run(bench.writes(RECEIVER).commit_group(received, b"", writes))

    bench.measure(f"receive some of {waiting} parcels", READ_ROWS, receive, repeats=20)
    bench.execute([Delete(OUTBOX, {"sender": SENDER}), Commit()])


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--owners", type=int, default=1_000_000)
    parser.add_argument("--fsync", action="store_true")
    args = parser.parse_args()
    with PostgreSQL() as server:
        if not args.fsync:
            server.psql("postgres", "ALTER SYSTEM SET fsync = off")
            server.psql("postgres", "SELECT pg_reload_conf()")
        url = server.database("bench")
        prepare(url, "bench", os.urandom(32))
        server.psql("bench", FILL.format(owners=args.owners, sender=SENDER, receiver=RECEIVER))
        bench = Bench(Connector(make_url(url), "bench", TABLES).connect("e"))
        print(f"{'':34}{'rows':>9}{'trips':>8}{'wall ms':>12}{'CPU ms':>12}{'server ms':>12}")
        for count, repeats in ((1, 300), (100, 30), (1_000, 5)):
            measure_owners(bench, count, repeats)
        measure_filters(bench)
        measure_parcels(bench, args.owners // 10)
        bench.connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
