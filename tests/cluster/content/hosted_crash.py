"""The world in which the broker dies (`tests.sim.crash`), with a number on PostgreSQL beneath.

The broker is the core of a number, and every start is that of another host, which takes the number.
A batch is executed after a while, and answered after another: a crash comes before, between or
after, and so does the end of a connection. What has to hold is what has to hold for a broker alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from mqtt_broker.cluster.content.hosted_broker import HostedBroker
from mqtt_broker.cluster.hosting import Hosting
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import create_number, read_nodes, take_number
from mqtt_broker.cluster.statements import (
    Clock,
    Commit,
    ConnectionLost,
    Insert,
    Rows,
    Statement,
    Transaction,
    TransactionError,
)
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from mqtt_broker.cluster.tables import GROUPS
from mqtt_broker.core.broker import Broker
from sessions.journal.journal import Journal
from tests.sim.crash import CrashWorld
from tests.sim.oracles import Abandoned
from tests.sim.world import World

NUMBER = 5
LOOK_S = 60.0
DELAY_S = 0.002  # of a batch until it is executed, and again until it is answered; not of groups
CUTS = 0.01  # of all batches, those with which the connection ends


class HostedCrashWorld(CrashWorld):
    def __init__(self, seed: int, connector: Connector, without: Iterable[str] = ()) -> None:
        self._connector = connector
        self._connection: StoreConnection | None = None
        self._epochs = 0
        self._is_pumping = False
        self._fails = False
        self.hosts = False  # the number is taken: connections may end from now on
        self.cuts = 0  # connections that ended with a batch whose outcome nobody knows
        super().__init__(seed, without)

    # Lives.

    def _live(self) -> None:
        """Another host takes the number."""
        self._life += 1
        self._lingers = self._fails = False
        self._transaction: Transaction[Any] | None = None
        self._is_in_flight = False
        self._epochs += 1
        self._epoch = f"{self.seed}-{self._epochs}"
        self.hosts = False
        self._reconnect()
        self._take(self._epoch)
        self.hosts = True
        self.hosted = HostedBroker(NUMBER, self, self)
        self.hosting = Hosting(NUMBER, self._epoch, self.hosted, self.hosted.errands)
        while not self.hosting.is_loaded:
            transaction = self.hosting.next(self.now)
            assert transaction is not None
            try:
                self.hosting.on_done(self._run(transaction), self.now)
            except ConnectionLost as error:
                self._on_failed(error)
        self.journal, self.broker = self.hosted.journal, self.hosted.broker
        if self.has_parts:
            self.journal.part_bytes_max = 300
        self.is_stopped = self.is_paused = False
        self.promises.on_restart(0.0, self.broker)
        self.end_turn()
        self._look()
        self._serve_callers()

    def _take(self, epoch: str) -> None:
        rows: list[NodeRow]
        rows, _ = self._run(read_nodes())
        seen = [row for row in rows if row.number == NUMBER]
        self._run(take_number(seen[0], epoch) if seen else create_number(NUMBER, epoch))

    def _run(self, transaction: Transaction[Any]) -> Any:
        """Run a transaction at once."""
        batch = next(transaction)
        while True:
            try:
                batch = transaction.send(self._execute(batch))
            except StopIteration as end:
                return end.value

    def _reconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._connector.connect(self._epoch)

    def _on_failed(self, error: TransactionError) -> None:
        assert isinstance(error, ConnectionLost), error
        self.hosting.on_failed(error)
        assert not self.hosting.is_fenced
        self._reconnect()

    def _execute(self, batch: list[Statement]) -> list[Rows]:
        assert self._connection is not None
        is_cut = self.hosts and self.rng.random() < CUTS
        if is_cut and self.rng.random() < 0.5:
            self._connection.close()
            raise ConnectionLost(is_unknown=isinstance(batch[-1], Commit))
        found = self._connection.execute(batch)
        if is_cut:
            self.cuts += 1
            raise ConnectionLost(is_unknown=isinstance(batch[-1], Commit))
        for at, statement in enumerate(batch):
            if isinstance(statement, Clock):
                found[at] = [{"now": self.now}]
        return found

    # What is around the hosted broker.

    def clock(self) -> float:
        return self.now

    def wake(self, number: int) -> None:
        if not self._lingers:
            self._lingers = True
            self._later(0.0005, self._linger)

    def make_broker(self, number: int, journal: Journal, now: float) -> Broker:
        return Broker(
            self.settings,
            now=now,
            rng=random.Random(self.rng.random()),
            journal=journal,
            work=self.work,
        )

    def ask(self, owner: int, client: str, tenure: int) -> None:
        raise AssertionError("there is one number")

    def tell_offered(self, number: int, client: str) -> None:
        raise AssertionError("there is one number")

    # What the server does around the core.

    def end_turn(self) -> None:
        if not self.is_stopped:
            World.end_turn(self)
            self.hosted.on_turn()
            # A CONNECT that waits until its client is claimed has done nothing yet.
            is_settled = self.journal.is_settled and not self.broker.clients.arriving
            self.promises.on_committed(self.journal.committed, is_settled)

    def _linger(self) -> None:
        self._lingers = False
        self._pump()

    def _look(self) -> None:
        self._pump()
        self._later(LOOK_S, self._look)

    def _pump(self) -> None:
        if self._is_in_flight or self._fails:
            return
        transaction = self.hosting.next(self.now)
        if transaction is not None:
            self._is_in_flight = True
            self._send(transaction, next(transaction))

    def _send(self, transaction: Transaction[Any], batch: list[Statement]) -> None:
        def execute() -> None:
            answer: list[Rows] | TransactionError
            try:
                answer = self._execute(batch)
            except TransactionError as error:
                answer = error
            self._later(delay_s(), lambda: self._answer(transaction, answer))

        is_group = any(isinstance(one, Insert) and one.table == GROUPS for one in batch)
        most_s = self.commit_delay_s if is_group else DELAY_S

        def delay_s() -> float:
            return self.rng.random() * most_s

        self._later(delay_s(), execute)

    def _answer(self, transaction: Transaction[Any], answer: Any) -> None:
        try:
            if isinstance(answer, TransactionError):
                transaction.throw(answer)
            self._send(transaction, transaction.send(answer))
            return
        except StopIteration as end:
            self._is_in_flight = False
            self.hosting.on_done(end.value, self.now)
        except TransactionError as error:
            self._is_in_flight = False
            self._on_failed(error)
        self.end_turn()
        self._pump()

    # Faults.

    def crash(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.store = _CrashedStore()  # type: ignore[assignment]
        super().crash()

    def _fail_store(self) -> None:
        self._fails = True
        self._later(self.rng.choice([0.1, 2.0]), self._mend_store)

    def _mend_store(self) -> None:
        self._fails = False
        self._pump()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _CrashedStore:
    """Stands for the store of a broker alone."""

    state = ""

    def crash(self) -> _CrashedStore:
        return self

    def beat(self, now: float) -> None:
        """There is no sign of life but the host's."""


def play(seed: int, connector: Connector, actions: int = 150) -> HostedCrashWorld | None:
    """Play one world; None when a rule that is left out ended it."""
    world = HostedCrashWorld(seed, connector)
    try:
        world.play(actions)
    except Abandoned:
        return None
    finally:
        world.close()
    return world
