"""Clients are claimed, asked for and released on PostgreSQL, by executors and threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest
from sqlalchemy import Column, MetaData, Table, make_url

from mqtt_broker.cluster.claims import CLIENTS_MAX, RETRY_S, TAKE_BACK_S, Claims
from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.node_transactions import confirm, create_number
from mqtt_broker.cluster.owner_transactions import OwnerWrites
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    Put,
    Refused,
    Row,
    Rows,
    Select,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.schema import TABLES, digest_of, make_table, number, prepare, words
from mqtt_broker.cluster.tables import ASKS, OWNERS
from tests.cluster.store.loop import SECRET, Loop
from tests.fault.postgres import PostgreSQL

SESSIONS: Final = "sessions"
LONG: Final = "x" * 65_534
ODD: Final = ["", "é", "𝄞", "\uffff", "a/b/+/#", "$share/g/x", "%s '\"\\", "\x01\x7f\x80\ufeff",
              LONG, f"{LONG}a", f"{LONG}b", "é" * 32_767]  # fmt: skip


def sessions_table() -> Table:
    columns: list[Column[Any]] = [words("client"), digest_of("client"), number("value")]
    return make_table(SESSIONS, ("client",), columns, MetaData())


class Node:
    """A number and its host."""

    def __init__(self, loop: Loop, number: int) -> None:
        self.loop = loop
        self.number = number
        self.epoch = f"e{number}"
        self.turn = 0
        self.link: DatabaseLink = loop.open(self.epoch)
        loop.run(self.link, create_number(number, self.epoch))

    @property
    def writes(self) -> OwnerWrites:
        return OwnerWrites(self.number, self.epoch, self.turn)

    def start(self, transaction: Transaction[Any]) -> list[Any]:
        """Begin a transaction of this turn; return where its result will be."""
        found: list[Any] = []

        def note(outcome: object, now: float) -> None:
            found.append(outcome)

        self.link.run(transaction, note, note)
        self.turn += 1
        return found

    def run(self, transaction: Transaction[Any]) -> Any:
        found = self.start(transaction)
        self.loop.until(lambda: bool(found))
        return found[0]

    def claim(self, clients: list[str], back: list[str] | None = None, asks: Rows = ()) -> Any:  # type: ignore[assignment]
        return self.run(self.claiming(clients, back or [], [*asks]))

    def claiming(self, clients: list[str], back: list[str], asks: Rows) -> Transaction[Any]:
        sessions = [Select(SESSIONS, {"client": clients + back})]
        return self.writes.claim(sorted(clients), back, sessions, asks)

    def plain(self, *statements: Statement) -> list[Rows]:
        def transaction() -> Transaction[list[Rows]]:
            return (yield [*statements, Commit()])

        found: list[Rows] = self.loop.run(self.link, transaction())
        return found


@pytest.fixture
def loop(database_url: str, postgresql: PostgreSQL) -> Iterator[Loop]:
    prepare(database_url, "one", SECRET)
    name = str(make_url(database_url).database)
    postgresql.psql(
        name,
        'CREATE TABLE cluster_sessions (client text COLLATE "C", client_digest bytea PRIMARY KEY,'
        " value bigint)",
    )
    tables = {**TABLES, SESSIONS: sessions_table()}
    loop = Loop(Connector(make_url(database_url), "one", tables))
    yield loop
    loop.close()


@pytest.fixture
def nodes(loop: Loop) -> list[Node]:
    return [Node(loop, 1), Node(loop, 2)]


def owner(client: str, number: int, tenure: int, *, is_offered: bool = False) -> Row:
    return {"client": client, "number": number, "tenure": tenure, "is_offered": is_offered}


def test_clients_of_any_name_move(nodes: list[Node]) -> None:
    one, two = nodes
    one.plain(*(Put(SESSIONS, {"client": name, "value": at}) for at, name in enumerate(ODD)))
    claimed = one.claim(ODD)
    assert {
        row.client: (row.number, row.tenure) for row in claimed.owners.values()
    } == dict.fromkeys(ODD, (1, 0))
    assert [row["client"] for row in claimed.sessions[0]] == sorted(ODD)
    assert {row["client"]: row["value"] for row in claimed.sessions[0]} == {
        name: at for at, name in enumerate(ODD)
    }
    asks = [{"client": name, "number": 1, "tenure": 0} for name in sorted(ODD)]
    claimed = two.claim(ODD, asks=asks)
    assert {row.number for row in claimed.owners.values()} == {1}
    assert one.run(one.writes.read_asks())[0] == asks
    one.run(one.writes.release(ODD, []))
    one.run(one.writes.delete_asks(ODD))
    assert one.plain(Select(ASKS))[0] == []
    claimed = two.claim(ODD)
    assert {(row.number, row.tenure) for row in claimed.owners.values()} == {(2, 1)}
    two.run(two.writes.release([], ODD[1:]))
    assert two.plain(Select(OWNERS))[0] == [owner("", 2, 1)]


def test_names_that_differ_in_nothing_but_their_end_are_different_clients(
    nodes: list[Node],
) -> None:
    one, two = nodes
    one.claim([f"{LONG}a"])
    two.claim([f"{LONG}b", "é"])
    two.claim(["e\u0301"])  # nothing is normalized
    assert one.plain(Select(OWNERS))[0] == [
        owner("e\u0301", 2, 1), owner(f"{LONG}a", 1, 0), owner(f"{LONG}b", 2, 0), owner("é", 2, 0),
    ]  # fmt: skip


def test_ten_thousand_clients_in_one_claim(nodes: list[Node]) -> None:
    one, two = nodes
    clients = [f"device-{at}" for at in range(10_000)]
    assert len(one.claim(clients).owners) == 10_000
    assert one.run(one.writes.release(clients[:5_000], clients[5_000:])) is None
    claimed = two.claim(clients)
    assert {row.number for row in claimed.owners.values()} == {2}
    assert [row["client"] for row in two.plain(Select(OWNERS))[0]] == sorted(clients)


def test_an_offer_is_taken_back_unless_somebody_came(nodes: list[Node]) -> None:
    one, two = nodes
    one.claim(["a", "b"])
    one.run(one.writes.release(["a", "b"], []))
    two.claim(["b"])
    claimed = one.claim([], ["a", "b", "gone"])
    assert {row.client: row.number for row in claimed.owners.values()} == {"a": 1, "b": 2}
    # A release that is done again changes nothing of another's.
    one.run(one.writes.release(["b"], []))
    one.run(one.writes.release([], ["b"]))
    assert one.plain(Select(OWNERS))[0] == [owner("a", 1, 2), owner("b", 2, 0)]


def test_a_host_that_is_fenced_claims_and_releases_nothing(nodes: list[Node]) -> None:
    one, two = nodes
    one.claim(["a"])
    one.turn = 0
    assert isinstance(one.claim(["b"]), Refused)
    one.turn = 0
    assert isinstance(one.run(one.writes.release(["a"], [])), Refused)
    assert two.plain(Select(OWNERS))[0] == [owner("a", 1, 0)]


def test_numbers_that_want_the_same_clients_wait_and_never_in_a_ring(nodes: list[Node]) -> None:
    rng = random.Random(1)
    clients = [f"{at}" for at in range(60)]
    for _ in range(30):
        begun: list[list[Any]] = []
        for node, other in (nodes, nodes[::-1]):
            some = rng.sample(clients, 40)
            asks = [{"client": one, "number": other.number, "tenure": 0} for one in sorted(some)]
            transaction = rng.choice(
                [
                    node.claiming(some[:20], some[20:], asks),
                    node.writes.release(some[:20], some[20:]),
                    node.writes.delete_asks(some),
                ]
            )
            begun.append(node.start(transaction))
        nodes[0].loop.until(lambda begun=begun: all(begun))  # type: ignore[misc]
        assert not [found for found in begun if isinstance(found[0], Exception)]
    owned = nodes[0].plain(Select(OWNERS))[0]
    assert [row["client"] for row in owned] == sorted(row["client"] for row in owned)


class Sessions:
    """The sessions of one number, which notes what happens to them."""

    def __init__(self) -> None:
        self.node: Node
        self.said: list[tuple[str, str]] = []
        self.values: dict[str, int] = {}

    def select(self, clients: list[str]) -> list[Select]:
        return [Select(SESSIONS, {"client": clients})]

    def on_claimed(self, clients: list[str], found: list[Rows]) -> None:
        self.values.update({row["client"]: row["value"] for row in found[0]})
        self.said += [("claimed", client) for client in clients]

    def on_owned(self, client: str) -> None:
        self.said.append(("owned", client))

    def on_asked(self, client: str) -> None:
        self.said.append(("asked", client))

    def is_folded(self, client: str) -> bool:
        return True

    def on_released(self, client: str) -> None:
        self.values.pop(client, None)

    def on_time(self, time: float, now: float) -> None: ...


class SilentBus:
    """Loses every frame."""

    def ask(self, owner: int, client: str, tenure: int) -> None: ...

    def tell_offered(self, number: int, client: str) -> None: ...


class Owners:
    """The claims of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sessions = Sessions()
        self.claims = Claims(node.number, self.sessions, SilentBus())

    def turn(self, now: float) -> None:
        """Do what is due."""
        node = self.node
        while transaction := self.claims.next(node.number, node.epoch, node.turn, now):
            self.claims.on_done(node.run(transaction), now)


def test_a_session_follows_its_client_and_clean_start_leaves_nothing(nodes: list[Node]) -> None:
    one, two = Owners(nodes[0]), Owners(nodes[1])
    client = f"{LONG}a"
    one.claims.connect(client)
    one.turn(0.0)
    assert one.claims.owned == {client: 1} and one.sessions.said[-1] == ("owned", client)
    one.node.plain(Put(SESSIONS, {"client": client, "value": 7}))  # it is stored, and folded
    two.claims.connect(client)
    now = 0.0
    while client not in two.claims.owned:
        now += RETRY_S
        two.turn(now)
        one.turn(now)
    assert two.sessions.values == {client: 7} and one.claims.owned == {}
    assert ("asked", client) in one.sessions.said
    # Clean Start: the session ends with its new owner, then the row goes.
    two.node.plain(Delete(SESSIONS, {"client": client}))
    two.claims.end(client)
    two.turn(now)
    assert two.claims.owned == {}
    assert two.node.plain(Select(OWNERS), Select(SESSIONS), Select(ASKS))[:3] == [[], [], []]


def test_offers_that_nobody_claims_are_taken_back_and_loaded(nodes: list[Node], loop: Loop) -> None:
    one = Owners(nodes[0])
    for client in ("a", "b"):
        one.claims.connect(client)
    one.turn(0.0)
    tenures = dict(one.claims.owned)
    one.claims.on_ask("a", tenures["a"])
    one.turn(0.5)
    assert one.claims.owned == {"b": tenures["b"]}
    # Another host of the number finds the offer in the table.
    again = Owners(one.node)
    again.node.link = loop.open("e1")
    row = loop.run(again.node.link, confirm(1, "e1", 0))
    again.node.turn = row.turn
    again.claims.on_loaded(again.node.plain(Select(OWNERS, {"number": 1}))[0], 1.0)
    assert again.claims.owned == {"b": tenures["b"]}
    again.turn(1.0 + TAKE_BACK_S)
    assert again.claims.owned.keys() == {"a", "b"} and again.claims.owned["a"] > tenures["b"]


def test_a_crowd_moves_in_parts(nodes: list[Node]) -> None:
    one, two = Owners(nodes[0]), Owners(nodes[1])
    clients = {f"c{at}" for at in range(CLIENTS_MAX + 10)}
    for owners in (one, two):
        for client in clients:
            owners.claims.connect(client)
        owners.turn(0.0)
        if owners is one:
            assert one.claims.owned.keys() == clients
    now = 0.0
    while two.claims.owned.keys() != clients:
        now += RETRY_S
        one.turn(now)
        two.turn(now)
    assert not one.claims.owned and len(one.node.plain(Select(OWNERS, {"number": 2}))[0]) == 510
