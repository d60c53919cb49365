"""What a group commit of a cluster's host costs, beside the journal's commit of one broker.

    python tests/bench/cluster_commit.py [--commits 2000] [--bytes 4096] [--fsync]

Both commit groups of the same size into one PostgreSQL of the script's own, in turns: the host
under the row of its number, in one pipeline; the journal as its writer does. Without `--fsync` the
disk is not measured. CPU is that of this process, and of the server's processes by /proc.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from sqlalchemy import Connection, make_url

from mqtt_broker.cluster.node_row import new_row
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.statements import Commit, Delete, Insert
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from mqtt_broker.cluster.store.schema import TABLES, prepare
from mqtt_broker.cluster.tables import GROUPS, NODES
from sessions.store.database import insert, parse_url, postgres_engine
from sessions.store.store import Store
from tests.fault.postgres import PostgreSQL

ROUNDS: Final = 10
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Measured:
    """Wall and CPU time of one kind of commit."""

    def __init__(self, name: str, commit: Callable[[int], None]) -> None:
        self.name = name
        self.commit = commit
        self.commits = 0
        self.wall_s = self.cpu_s = self.server_s = 0.0

    def run(self, count: int) -> None:
        wall, cpu, server = time.perf_counter(), time.process_time(), server_cpu_s()
        for _ in range(count):
            self.commits += 1
            self.commit(self.commits)
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu
        self.server_s += server_cpu_s() - server


def server_cpu_s() -> float:
    """The CPU time of every process of PostgreSQL below this one, with those that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        pid, fields = int(path.parent.name), text.rpartition(")")[2].split()
        parents[pid] = int(fields[1])
        if "(postgres)" in text:
            ticks[pid] = sum(map(int, fields[11:15]))
    return sum(count for pid, count in ticks.items() if is_below(pid, parents)) / TICKS


def is_below(pid: int, parents: dict[int, int]) -> bool:
    """Tell whether a process was started by this one, or by one that was."""
    while pid not in (0, os.getpid()):
        pid = parents.get(pid, 0)
    return pid != 0


def round_trips(pgconn: Any, commit: Callable[[], None]) -> int:
    """Count what ends a request of one commit: Sync, or Query."""
    with tempfile.TemporaryFile() as log:
        pgconn.trace(log.fileno())
        commit()
        pgconn.untrace()
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    sent = [line.split("\t") for line in lines if "\tF\t" in line or line.startswith("F\t")]
    return sum("Sync" in fields or "Query" in fields for fields in sent)


def host_commit(connection: StoreConnection, blob: bytes) -> Callable[[int], None]:
    connection.execute([Insert(NODES, new_row(1, "e")), Commit()])

    def commit(number: int) -> None:
        transaction = Writes(1, "e", number - 1).commit_group(number, blob)
        connection.execute(next(transaction))
        if number % 100 == 0:
            connection.execute([Delete(GROUPS, {"number": 1}), Commit()])

    return commit


def journal_commit(connection: Connection, blob: bytes) -> Callable[[int], None]:
    def commit(number: int) -> None:
        with connection.begin():
            insert(connection, "journal", ("number", "at", "data"), [(number, 1.0, blob)])
        if number % 100 == 0:
            with connection.begin():
                connection.exec_driver_sql("DELETE FROM journal")

    return commit


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--commits", type=int, default=2_000)
    parser.add_argument("--bytes", type=int, default=4_096)
    parser.add_argument("--fsync", action="store_true")
    args = parser.parse_args()
    blob = os.urandom(args.bytes)
    with PostgreSQL() as server, tempfile.TemporaryDirectory() as directory:
        if not args.fsync:
            server.psql("postgres", "ALTER SYSTEM SET fsync = off")
            server.psql("postgres", "SELECT pg_reload_conf()")
        url = server.database("bench")
        Store.open(data_dir=directory, database_url=url).abandon()
        prepare(url, "bench", os.urandom(32))
        node = Connector(make_url(url), "bench", TABLES).connect("e")
        engine = postgres_engine(parse_url(url), "journal")
        journal = engine.connect()
        host = Measured("host of a cluster", host_commit(node, blob))
        plain = Measured("journal of one broker", journal_commit(journal, blob))
        for one in (plain, host):
            one.run(args.commits // 10)
            one.wall_s = one.cpu_s = one.server_s = 0.0
        for _ in range(ROUNDS):
            for one in (plain, host):
                one.run(args.commits // ROUNDS)
        count = args.commits // ROUNDS * ROUNDS
        driver: Any = journal.connection.driver_connection
        trips = {
            plain.name: round_trips(driver.pgconn, lambda: plain.run(1)),
            host.name: round_trips(node.pgconn, lambda: host.run(1)),
        }
        print(f"{'':24}{'round trips':>12}{'wall us':>10}{'CPU us':>10}{'server CPU us':>15}")
        for one in (plain, host):
            figures = [seconds / count * 1e6 for seconds in (one.wall_s, one.cpu_s, one.server_s)]
            print(
                f"{one.name:24}{trips[one.name]:>12}{figures[0]:>10.0f}{figures[1]:>10.0f}"
                f"{figures[2]:>15.0f}"
            )
        print(
            f"ratio: wall {host.wall_s / plain.wall_s:.2f}, CPU {host.cpu_s / plain.cpu_s:.2f}, "
            f"server CPU {host.server_s / plain.server_s:.2f}"
        )
        node.close()
        journal.close()
        engine.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
