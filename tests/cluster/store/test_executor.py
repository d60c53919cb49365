"""Transactions of the rules, executed by threads on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import (
    Writes,
    confirm,
    create_number,
    end_backends,
    read_nodes,
    take_number,
)
from mqtt_broker.cluster.statements import (
    Commit,
    ConnectionLost,
    Put,
    Refused,
    Select,
    Transaction,
    TransactionError,
)
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.executor import Executor
from mqtt_broker.cluster.store.schema import TABLES, prepare
from mqtt_broker.cluster.tables import GROUPS, NODES, WANTS
from tests.cluster.store.loop import PATIENCE_S, SECRET, Loop
from tests.fault.postgres import PostgreSQL


@pytest.fixture
def loop(database_url: str) -> Iterator[Loop]:
    prepare(database_url, "one", SECRET)
    loop = Loop(Connector(make_url(database_url), "one", TABLES))
    yield loop
    loop.close()


def row_of(loop: Loop, link: DatabaseLink) -> NodeRow:
    rows, _ = loop.run(link, read_nodes())
    found: NodeRow = rows[0]
    return found


def test_a_number_is_hosted_and_taken(loop: Loop) -> None:
    old, new = loop.open("e1"), loop.open("watch")
    assert loop.run(old, create_number(1, "e1")) is None
    row = loop.run(old, confirm(1, "e1", 0))
    assert (row.turn, row.group) == (1, 0)
    assert loop.run(old, Writes(1, "e1", 1).commit_group(1, b"one")) == []
    seen = row_of(loop, new)
    assert (seen.epoch, seen.turn, seen.group) == ("e1", 2, 1)
    assert loop.run(new, take_number(seen, "e2")) is None
    assert isinstance(loop.run(old, Writes(1, "e1", 2).commit_group(2, b"two")), Refused)
    assert isinstance(loop.run(old, confirm(1, "e1", 2)), Refused)
    host = loop.open("e2")
    row = loop.run(host, confirm(1, "e2", 0))
    changes = [Put(WANTS, {"number": 9, "epoch": "folded"})]
    assert loop.run(host, Writes(1, "e2", row.turn).fold(1, [*changes])) is None
    assert (row_of(loop, new).folded, row_of(loop, new).turn) == (1, row.turn + 1)


def test_a_number_is_taken_only_as_it_was_seen(loop: Loop) -> None:
    host, taker = loop.open("e1"), loop.open("watch")
    loop.run(host, create_number(1, "e1"))
    seen = row_of(loop, taker)
    loop.run(host, Writes(1, "e1", 0).beat())
    assert isinstance(loop.run(taker, take_number(seen, "e2")), Refused)


def test_a_host_that_connects_again_ends_what_it_left(loop: Loop) -> None:
    first = loop.open("e1")
    loop.run(first, create_number(1, "e1"))

    def hang() -> Transaction[None]:
        yield [Select(NODES, for_update=True)]
        yield [Select(NODES, for_update=True)]

    link = loop.open("e1")
    link.run(hang(), lambda none, now: None, lambda error, now: None)
    again = loop.open("e1")
    assert loop.run(again, confirm(1, "e1", 0)).turn == 1


def test_a_transaction_is_told_of_its_error(loop: Loop) -> None:
    link = loop.open("e1")
    told: list[TransactionError] = []

    def asks() -> Transaction[None]:
        try:
            yield [Select(NODES), Commit()]
        except TransactionError as error:
            told.append(error)
            raise

    loop.run(loop.open("other"), end_backends("e1"))
    loop.until(lambda: not link.is_idle or isinstance(loop.run(link, asks()), ConnectionLost))
    assert isinstance(told[-1], ConnectionLost) and told[-1].is_unknown
    loop.until(lambda: bool(link.problem))
    assert link.problem == "connection lost" and not link.is_idle


def test_a_transaction_that_is_given_up_leaves_no_lock(loop: Loop) -> None:
    one, two = loop.open("e1"), loop.open("e2")
    loop.run(one, create_number(1, "e1"))

    def refuses() -> Transaction[None]:
        yield [Select(NODES, for_update=True)]
        raise Refused("not ours")

    assert isinstance(loop.run(one, refuses()), Refused)
    assert loop.run(two, Writes(1, "e1", 0).beat()) is None
    assert loop.run(one, Writes(1, "e1", 1).beat()) is None


def test_a_database_that_is_away_is_said_in_one_line(
    loop: Loop, postgresql: PostgreSQL, database_url: str
) -> None:
    name = str(make_url(database_url).database)
    postgresql.psql("postgres", f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    link = loop.start("e1")
    loop.until(lambda: bool(link.problem))
    assert "is not currently accepting connections" in link.problem
    assert "\n" not in link.problem and not link.is_idle


def test_a_mistake_costs_the_connection_alone(loop: Loop) -> None:
    link = loop.open("e1")

    def wrong() -> Transaction[None]:
        yield [Put(GROUPS, {"number": 1, "group": "no number", "blob": b""}), Commit()]

    assert isinstance(loop.run(link, wrong()), ConnectionLost)
    loop.until(lambda: bool(link.problem))
    assert link.problem.startswith("internal error: required argument is not an integer")
    assert loop.run(loop.open("e2"), read_nodes()) == ([], {})


def test_threads_end_with_their_executors(loop: Loop) -> None:
    one, two = loop.open("e1"), loop.open("e2")
    loop.run(one, create_number(1, "e1"))

    def locks() -> Transaction[None]:
        yield [Select(NODES, for_update=True)]
        yield [Select(NODES, for_update=True)]

    for link in (one, two):  # one of them waits for the row
        link.run(locks(), lambda result, now: None, lambda error, now: None)
    executors: list[Executor] = loop.executors
    for executor in executors:
        executor.close()
    assert all(executor.join(PATIENCE_S) for executor in executors)
