"""A process's end of a connection to the database, over a network that may end it at any moment.

A connection that is cut may still deliver what was under way, seconds later, to a backend that does
not know yet. The process learns of the end some time later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.statements import Commit, Rows, Statement, TransactionError
from tests.sim.cluster.database import Backend, Database

LATENCIES_S = (0.0001, 0.0003, 0.001)


class Caller(Protocol):
    """The process that a connection belongs to."""

    def clock(self) -> float:
        """Return the process's own time."""

    def call(self, action: Callable[[], None]) -> None:
        """Do this now; a process that is frozen does it when it goes on, a dead one never."""


class Network(Protocol):
    """The faults of the network."""

    cut_chance: float
    database: Database

    def next_backend(self) -> int: ...

    def on_cut(self, label: str) -> None:
        """Note that a connection with this label was cut."""


class Connection:
    def __init__(self, network: Network, caller: Caller, label: str, link: DatabaseLink) -> None:
        self._network = network
        self._caller = caller
        self._link = link
        self._database = network.database
        self._rng = network.database.rng
        self._after = network.database.time.after
        self._label = label
        self._backend: Backend | None = None
        self._results: list[Rows] = []
        self._wanted = 0
        self._number = 0  # of the transaction
        self._is_between = True  # two transactions
        self._answered_at = 0.0  # answers come in their order
        self._goes_through = False  # what was under way when the connection was cut
        self._late_s = 0.0
        self.is_cut = self.is_over = False
        self._after(self._latency(), self._accept)

    def _latency(self) -> float:
        return self._rng.choice(LATENCIES_S)

    def _accept(self) -> None:
        if self.is_cut:
            return
        if not self._database.is_up:
            self._after(0.1, self._tell_lost)
            return
        self._backend = Backend(self._database, self._label, self._network.next_backend())
        self._backend.on_ended = self._on_ended
        self._after(self._latency(), lambda: self._caller.call(self._opened))

    def _opened(self) -> None:
        if not self.is_over:
            self._link.on_open(self._caller.clock())

    # Transactions.

    def send(self, batch: list[Statement]) -> None:
        if self._is_between:
            self._number += 1
        self._is_between = isinstance(batch[-1], Commit)
        self._results = []
        self._wanted = len(batch)
        delay_s = 0.0
        for statement in batch:
            delay_s += self._latency()
            self._after(delay_s, partial(self._arrive, self._number, statement))
        if self._rng.random() < self._network.cut_chance:
            self._after(self._rng.random() * 2 * delay_s, self.cut)

    def rollback(self) -> None:
        self._is_between = True
        assert self._backend is not None
        self._backend.rollback()

    def _arrive(self, number: int, statement: Statement) -> None:
        assert self._backend is not None
        backend = self._backend
        if not self.is_cut:
            backend.arrive(number, statement, self._reply)
        elif self._goes_through:
            self._after(self._late_s, lambda: backend.arrive(number, statement, self._reply))

    def _reply(self, answer: Rows | TransactionError) -> None:
        if not self.is_cut:
            now = self._database.time.now
            self._answered_at = max(self._answered_at + 1e-6, now + self._latency())
            delay_s = self._answered_at - now
            self._after(delay_s, lambda: self._caller.call(lambda: self._got(answer)))

    def _got(self, answer: Rows | TransactionError) -> None:
        if self.is_over:
            return
        if isinstance(answer, TransactionError):
            self._link.on_answer(answer, self._caller.clock())
            return
        self._results.append(answer)
        if len(self._results) == self._wanted:
            self._link.on_answer(self._results, self._caller.clock())

    # Its end.

    def cut(self) -> None:
        """End it; nobody knows what of that which is under way still arrives, or when."""
        if self.is_cut:
            return
        self.is_cut = True
        self._network.on_cut(self._label)
        self._goes_through = self._rng.random() < 0.6
        self._late_s = self._rng.choice([0.0, 0.01, 0.3, 3.0])
        if self._backend is not None:
            self._after(self._late_s + 0.01, self._backend.hang_up)
        self._after(self._rng.choice([0.0, 0.01, 1.0]), self._tell_lost)

    def close(self) -> None:
        """End it from this side."""
        self.is_over = True
        self.cut()

    def _on_ended(self) -> None:
        self.is_cut = True
        self._after(self._latency(), self._tell_lost)

    def _tell_lost(self) -> None:
        self._caller.call(self._lost)

    def _lost(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._link.on_lost("connection lost", self._caller.clock())
