"""Rules for owners of sessions, taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqtt_broker.cluster import claims, owner_transactions
from mqtt_broker.cluster.claims import Claims
from mqtt_broker.cluster.owner_transactions import Claimed, OwnerWrites
from mqtt_broker.cluster.statements import (
    Delete,
    Row,
    Select,
    Transaction,
    Update,
)
from mqtt_broker.cluster.tables import NODES, OWNERS
from tests.sim.cluster import owners
from tests.sim.cluster.ablation import Replace, ablation
from tests.sim.cluster.broker import Broker, Connection


def register() -> None:
    """Import this module, and the rules are registered."""


@ablation(owners.play)
def every_client_is_claimed() -> list[Replace]:
    """A client whose session is not stored is claimed as well, while it is connected."""

    def connect(self: Broker, connection: Connection) -> None:
        client = connection.client
        is_fleeting = connection.clean and connection.expiry == 0 and not connection.will
        if is_fleeting and client not in self.claims.owned and client not in self.sessions:
            self._connect(connection)
        else:
            original(self, connection)

    original = Broker.connect
    return [(Broker, "connect", connect)]


@ablation(owners.play)
def connack_follows_a_transaction() -> list[Replace]:
    """A CONNECT of a client that is owned already waits for a transaction of the host, too."""

    def connect(self: Claims, client: str) -> None:
        if client in self.owned and not self.is_leaving(client):
            self._sessions.on_owned(client)
        else:
            original(self, client)

    original = Claims.connect
    return [(Claims, "connect", connect)]


@ablation(owners.play)
def only_what_is_offered_is_claimed() -> list[Replace]:
    """A session is claimed when its owner has offered it, and not before."""

    def claim(self: OwnerWrites, *args: Any) -> Transaction[Claimed]:
        transaction = original(self, *args)
        batch = next(transaction)
        for statement in batch:
            if isinstance(statement, Select | Update) and statement.table == OWNERS:
                statement.where.pop("is_offered", None)
        found = yield batch
        try:
            transaction.send(found)
        except StopIteration as end:
            claimed: Claimed = end.value
            return claimed
        raise AssertionError("a claim is one batch")

    original = OwnerWrites.claim
    return [(OwnerWrites, "claim", claim)]


@ablation(owners.play)
def fold_before_release() -> list[Replace]:
    """The journal is folded before a session is offered, or its row deleted."""
    return [(Broker, "is_folded", lambda self, client: True)]


@ablation(owners.play)
def leaving_sessions_rest() -> list[Replace]:
    """A session that is to be offered changes no more: neither its will nor its end is due."""
    return [(Claims, "is_leaving", lambda self, client: False)]


@ablation(owners.play)
def owners_are_fenced() -> list[Replace]:
    """Claims and releases lock the host's own row, and are refused under another epoch or turn."""

    def own_row(number: int, epoch: str, turn: int, change: Row | None = None) -> Update:
        return Update(NODES, {"number": number}, {"turn": turn + 1})

    return [(owner_transactions, "own_row", own_row)]


@ablation(owners.play)
def release_own_rows() -> list[Replace]:
    """A release that is done again leaves those alone who have claimed the client since."""

    def release(self: OwnerWrites, offers: list[str], drops: list[str]) -> Transaction[None]:
        transaction = original(self, offers, drops)
        batch = next(transaction)
        for statement in batch:
            if isinstance(statement, Select | Update | Delete) and statement.table == OWNERS:
                statement.where.pop("number", None)
        yield batch

    original = OwnerWrites.release
    return [(OwnerWrites, "release", release)]


@ablation(owners.play)
def asks_name_the_tenure() -> list[Replace]:
    """A client is not released for a request that meant an earlier claim."""

    def on_ask(self: Claims, client: str, tenure: int, asker: int | None = None) -> None:
        original(self, client, self.owned.get(client, tenure), asker)

    original = Claims.on_ask
    return [(Claims, "on_ask", on_ask)]


@ablation(owners.play)
def asks_are_written_down() -> list[Replace]:
    """An owner that the bus does not reach finds in a table that it is asked."""

    def claim(self: OwnerWrites, *args: Any) -> Transaction[Claimed]:
        return original(self, *[*args[:-1], []])

    original: Callable[..., Transaction[Claimed]] = OwnerWrites.claim
    return [(OwnerWrites, "claim", claim)]


@ablation(owners.play)
def asks_are_repeated() -> list[Replace]:
    """A CONNECT asks again: the owner may have died, or another number may own the client now."""
    return [(claims, "RETRY_S", 1_000.0)]


@ablation(owners.play)
def offers_are_taken_back() -> list[Replace]:
    """An offer that nobody claims is taken back by the number that made it."""
    return [(claims, "TAKE_BACK_S", 1_000.0)]


@ablation(owners.play)
def unsure_claims_are_read() -> list[Replace]:
    """A claim whose outcome is unknown is looked at again, even if nobody waits for it any more."""

    def to_take_back(self: Claims, now: float) -> list[str]:
        self._unsure.clear()
        return original(self, now)

    original = Claims.to_take_back
    return [(Claims, "to_take_back", to_take_back)]


@ablation(owners.play)
def rows_without_sessions_are_deleted() -> list[Replace]:
    """Who loads a number deletes the rows of clients that have no session any more."""

    def on_loaded(self: Broker) -> None:
        self.is_served = True
        for client in list(self.claims.owned):
            if client in self.sessions and self.sessions[client].is_connected:
                self._disconnect(client)

    return [(Broker, "on_loaded", on_loaded)]


@ablation(owners.play)
def connections_of_the_dead_are_over() -> list[Replace]:
    """Who loads a number lets the wills and the expiry of its connected sessions begin."""

    def on_loaded(self: Broker) -> None:
        self.is_served = True
        for client in list(self.claims.owned):
            self._end_if_over(client)

    return [(Broker, "on_loaded", on_loaded)]


@ablation(owners.play)
def delayed_wills_move() -> list[Replace]:
    """A will with a delay goes with its session, and is not published by the old owner."""

    def on_asked(self: Broker, client: str) -> None:
        original(self, client)
        if client in self.sessions and self.sessions[client].will:
            self._publish_will(client)

    original = Broker.on_asked
    return [(Broker, "on_asked", on_asked)]


@ablation(owners.play)
def times_are_the_databases() -> list[Replace]:
    """Times that move with a session are those of the database's clock."""
    return [(Broker, "time", lambda self: self._process.clock())]
