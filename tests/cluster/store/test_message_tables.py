"""Filters by version, comparisons, parcels and places on PostgreSQL, by executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from sqlalchemy import make_url

from mqtt_broker.cluster.digest import FLEETING, NOBODY, STORED
from mqtt_broker.cluster.exchange import POLL_S, Batch, Exchange, Limits
from mqtt_broker.cluster.inbox import READ_ROWS
from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.node_transactions import Writes, create_number
from mqtt_broker.cluster.outbox import join_messages
from mqtt_broker.cluster.statements import Commit, Put, Refused, Rows, Select, Stale, Transaction
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.schema import TABLES, prepare
from mqtt_broker.cluster.tables import FILTERS, NODES, OUTBOX, PLACES, VERSIONS
from tests.cluster.store.loop import SECRET, Loop

LONG: Final = "x/" * 32_767
ODD: Final = ["", "é/+", "𝄞/#", "\uffff", "a/+/#", "%s '\"\\", LONG + "a", LONG + "b", "é" * 32_767]


def lose(kind: int, to: int, body: bytes) -> bool:
    """Send a frame over a bus that loses every one."""
    return True


class Node:
    """A number with its exchange, and its host."""

    def __init__(self, loop: Loop, number: int, epoch: str = "") -> None:
        self.loop = loop
        self.number = number
        self.epoch = epoch or f"e{number}"
        self.turn = self.group = 0
        self.now = 0.0
        self.link: DatabaseLink = loop.open(self.epoch)
        self.exchange = Exchange(number, self.epoch, lose, Limits(2))
        self.received: list[bytes] = []
        if not epoch:
            self.run(create_number(number, self.epoch))

    def run(self, transaction: Transaction[Any]) -> Any:
        return self.loop.run(self.link, transaction)

    def rows(self, table: str) -> Rows:
        def transaction() -> Transaction[list[Rows]]:
            return (yield [Select(table), Commit()])

        found: Rows = self.run(transaction())[0]
        return found

    def load(self) -> None:
        assert self.run(self.exchange.load()) is None

    def read(self, batch: Batch | None = None) -> Any:
        """Read what is to be read before this batch is committed, as its host does."""
        self.now += 2 * POLL_S
        while transaction := self.exchange.read(batch, self.now):
            if (error := self.run(transaction)) is not None:
                return error
        return None

    def learn(self) -> None:
        """Read what has changed of the filters, as after a hint."""
        self.exchange.digest.on_stale()
        assert self.read() is None

    def commit(self, batch: Batch) -> Any:
        """Commit a batch as a group; return its error."""
        writes = Writes(self.number, self.epoch, self.turn)
        error = self.run(self.exchange.commit(writes, self.group + 1, batch))
        if error is None:
            self.turn += 1
            self.group += 1
            self.exchange.on_committed(self.group, batch)
        return error

    def send(self, *messages: tuple[str, bytes]) -> None:
        """Route, compare and commit until the messages are acknowledged."""
        batch = Batch(b"", [*messages], self.take())
        while True:
            self.exchange.route(batch)
            if self.exchange.is_group(batch):
                if self.commit(batch) is None:
                    return
            elif batch.has_read:
                return
            if transaction := self.exchange.read(batch, self.now):
                self.run(transaction)

    def take(self) -> list[Any]:
        parcels = self.exchange.inbox.take()
        self.received += (message for parcel in parcels for message in parcel.messages)
        return parcels

    def receive(self) -> None:
        """Read what waits, and commit that it was received, until nothing is left."""
        self.now += 2 * POLL_S
        while transaction := self.exchange.read(None, self.now):
            assert self.run(transaction) is None
            self.send()

    def subscribe(self, *texts: str, reach: int = STORED) -> None:
        for text in texts:
            self.exchange.filters.set(text, reach)
        self.send()


@pytest.fixture
def loop(database_url: str) -> Iterator[Loop]:
    prepare(database_url, "one", SECRET)
    loop = Loop(Connector(make_url(database_url), "one", TABLES))
    yield loop
    loop.close()


@pytest.fixture
def nodes(loop: Loop) -> list[Node]:
    found = [Node(loop, 1), Node(loop, 2)]
    for node in found:
        node.load()
        node.subscribe()
    return found


def test_filters_of_any_text_are_learnt(nodes: list[Node]) -> None:
    one, two = nodes
    one.subscribe(*ODD)
    two.learn()
    assert two.exchange.digest.filters(1) == set(ODD)
    assert two.exchange.digest.route(LONG + "a") == (1,)
    one.subscribe(LONG + "a", reach=FLEETING)
    one.subscribe(LONG + "b", "", reach=NOBODY)
    two.learn()
    assert two.exchange.digest.filters(1) == {*ODD} - {LONG + "b", ""}
    assert two.exchange.digest.route(LONG + "a") == (1,)
    assert {row["filter"] for row in two.rows(FILTERS)} == {*ODD}


def test_rows_of_filters_that_are_gone_are_swept_and_all_is_read_again(nodes: list[Node]) -> None:
    one, two = nodes
    texts = [f"t/{at}" for at in range(10)]
    one.subscribe(*texts)
    two.read()
    one.subscribe(*texts[:8], reach=NOBODY)
    assert [row["filter"] for row in one.rows(FILTERS)] == texts[8:]
    two.learn()
    assert two.exchange.digest.filters(1) == set(texts[8:])
    versions = {row["number"]: row for row in one.rows(VERSIONS)}
    assert (versions[1]["filters"], versions[1]["filters_from"]) == (3, 3)
    assert two.exchange.digest.version(1) == 3


def test_a_comparison_is_stale_when_somebody_subscribed(nodes: list[Node]) -> None:
    one, two = nodes
    two.read()
    one.subscribe("a")
    batch = Batch(b"", [("a", b"1")], [])
    two.exchange.route(batch)
    assert isinstance(two.read(batch), Stale)
    two.read(batch)
    assert batch.has_read and two.commit(batch) is None
    one.receive()
    assert one.received == [b"1"]


def test_a_group_that_was_routed_by_old_filters_is_refused(nodes: list[Node]) -> None:
    one, two = nodes
    one.subscribe("a")
    two.read()
    one.subscribe("b")
    batch = Batch(b"records", [("a", b"1"), ("b", b"2")], [])
    assert isinstance(two.commit(batch), Stale)
    assert two.rows(OUTBOX) == [] and [row["group"] for row in two.rows(NODES)] == [3, 1]
    two.read(batch)
    assert two.commit(batch) is None
    assert [(row["first"], row["last"], row["filters"]) for row in two.rows(OUTBOX)] == [(1, 2, 3)]


def test_parcels_are_numbered_received_and_deleted(nodes: list[Node]) -> None:
    one, two = nodes
    one.subscribe("a")
    two.read()
    for value in range(3):
        two.send(("a", b"%d" % value), ("a", b"x" * 10_000), ("b", b"nobody's"))
    rows = one.rows(OUTBOX)
    assert [(row["sender"], row["receiver"], row["first"], row["last"]) for row in rows] == [
        (2, 1, 1, 2), (2, 1, 3, 4), (2, 1, 5, 6),
    ]  # fmt: skip
    assert rows[1]["blob"] == join_messages([b"1", b"x" * 10_000])
    one.receive()
    assert one.received[::2] == [b"0", b"1", b"2"]
    assert one.rows(OUTBOX) == []
    assert one.rows(PLACES) == [{"receiver": 1, "sender": 2, "place": 6}]


def test_more_parcels_than_one_read_has(nodes: list[Node]) -> None:
    one, two = nodes
    one.subscribe("a")
    two.read()
    values = [b"%d" % value for value in range(READ_ROWS + 50)]
    for value in values:
        two.send(("a", value))
    assert len(one.rows(OUTBOX)) == READ_ROWS + 50
    one.receive()
    assert one.received == values and one.rows(OUTBOX) == []


def test_a_thousand_messages_to_each_of_many_numbers(nodes: list[Node]) -> None:
    one, _ = nodes

    def others() -> Transaction[None]:
        for number in range(10, 110):
            version = {"number": number, "epoch": f"e{number}", "filters": 1, "filters_from": 1}
            row = {"number": number, "filter": "a", "reach": STORED, "group": 1}
            yield [Put(VERSIONS, version), Put(FILTERS, row)]
        yield [Commit()]

    one.run(others())
    one.read()
    one.send(*(("a", b"%d" % value) for value in range(1_000)))
    rows = one.rows(OUTBOX)
    assert [row["receiver"] for row in rows] == [*range(10, 110)]
    assert {(row["sender"], row["first"], row["last"]) for row in rows} == {(1, 1, 1_000)}


def test_the_next_host_gives_no_number_again(nodes: list[Node], loop: Loop) -> None:
    one, two = nodes
    one.subscribe("a")
    two.read()
    two.send(("a", b"1"), ("a", b"2"))
    one.receive()
    two.send(("a", b"3"))

    def taken() -> Transaction[None]:
        row = {"number": 2, "epoch": "again", "turn": 100, "group": two.group, "folded": 0}
        yield [Put(NODES, row), Commit()]

    one.run(taken())
    assert isinstance(two.commit(Batch(b"late", [], [])), Refused)
    again = Node(loop, 2, "again")
    again.turn, again.group = 100, two.group
    again.load()
    again.read()
    again.send(("a", b"4"))
    assert [(row["first"], row["last"]) for row in one.rows(OUTBOX)] == [(3, 3), (4, 4)]
    one.receive()
    assert one.received == [b"1", b"2", b"3", b"4"]
    # Another host of the receiver goes on at its place.
    heir = Exchange(1, "heir", lose)
    assert one.run(heir.load()) is None
    assert one.rows(PLACES) == [{"receiver": 1, "sender": 2, "place": 4}]
