"""A connection to the database that runs transactions, and is made again when it is lost.

A link runs one transaction at a time: it sends each batch that the transaction yields, and sends it
the rows. Whoever makes connections, to PostgreSQL or to the model of it, tells the link what comes
of them. An answer that never came means that a COMMIT may have been executed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from mqtt_broker.cluster.statements import (
    Commit,
    ConnectionLost,
    Rows,
    Statement,
    Transaction,
    TransactionError,
)

# After each attempt that failed, with jitter. A host that waited longer after an outage than others
# would lose its numbers to them: the last is far below the lapse.
RECONNECT_S: Final = (0.05, 0.1, 0.2, 0.3)
NEVER: Final = float("inf")

Answer = list[Rows] | TransactionError
OnDone = Callable[[Any, float], None]
OnFailed = Callable[[TransactionError, float], None]


class Connection(Protocol):
    """A connection. It calls the link's `on_` methods, and nothing after `on_lost` or `close`."""

    def send(self, batch: list[Statement]) -> None:
        """Send a batch, which is answered as a whole."""

    def rollback(self) -> None:
        """Undo a transaction that is given up."""

    def close(self) -> None:
        """End the connection."""


class DatabaseLink:
    """A connection under a label, the transaction that runs on it, and the next attempt."""

    __slots__ = (
        "_attempts",
        "_connect",
        "_connection",
        "_connects_at",
        "_has_sent_commit",
        "_is_open",
        "_label",
        "_on_done",
        "_on_failed",
        "_on_opened",
        "_rng",
        "_transaction",
        "problem",
    )

    def __init__(
        self, label: str, connect: Connect, on_opened: Callable[[float], None], rng: Random
    ) -> None:
        self.problem = ""  # a line that says why there is no connection
        self._label = label
        self._connect = connect
        self._on_opened = on_opened
        self._rng = rng
        self._connection: Connection | None = None
        self._is_open = False
        self._attempts = 0  # without success
        self._connects_at = 0.0
        self._transaction: Transaction[Any] | None = None
        self._has_sent_commit = False
        self._on_done: OnDone = _nothing
        self._on_failed: OnFailed = _nothing

    @property
    def is_idle(self) -> bool:
        """Tell whether a transaction may be run."""
        return self._is_open and self._transaction is None

    @property
    def is_running(self) -> bool:
        """Tell whether a transaction is in flight."""
        return self._transaction is not None

    @property
    def wakes_at(self) -> float:
        """Return when `tick` is to be called."""
        return self._connects_at

    def tick(self, now: float) -> None:
        """Connect if it is time."""
        if now >= self._connects_at:
            self._connects_at = NEVER
            self._connection = self._connect(self._label, self)

    def run(self, transaction: Transaction[Any], on_done: OnDone, on_failed: OnFailed) -> None:
        """Run a transaction; one of the two is called when its outcome is known."""
        assert self.is_idle, "a transaction is in flight"
        self._transaction = transaction
        self._on_done = on_done
        self._on_failed = on_failed
        self._send(next(transaction))

    def close(self) -> None:
        """End the connection for good; nothing is called any more."""
        self._is_open = False
        self._connects_at = NEVER
        self._transaction = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # What the connection tells.

    def on_open(self, now: float) -> None:
        """Note that transactions may be run."""
        self._is_open = True
        self._attempts = 0
        self.problem = ""
        self._on_opened(now)

    def on_answer(self, answer: Answer, now: float) -> None:
        """Go on with the transaction, or end it with the error."""
        assert self._transaction is not None
        transaction = self._transaction
        if isinstance(answer, ConnectionLost):
            self._is_open = False
        try:
            if isinstance(answer, TransactionError):
                batch = transaction.throw(answer)
            else:
                batch = transaction.send(answer)
        except StopIteration as end:
            self._transaction = None
            self._on_done(end.value, now)
        except TransactionError as error:
            self._transaction = None
            if self._connection is not None:
                self._connection.rollback()
            self._on_failed(error, now)
        else:
            assert not isinstance(answer, TransactionError), "a failed transaction goes on"
            self._send(batch)

    def on_lost(self, problem: str, now: float) -> None:
        """Note that the connection has ended, with a line that says why."""
        self.problem = problem
        self._is_open = False
        self._connection = None
        delay_s = RECONNECT_S[min(self._attempts, len(RECONNECT_S) - 1)]
        self._connects_at = now + delay_s * self._rng.uniform(0.5, 1.5)
        self._attempts += 1
        if self._transaction is not None:
            self.on_answer(ConnectionLost(is_unknown=self._has_sent_commit), now)

    def _send(self, batch: list[Statement]) -> None:
        assert self._connection is not None
        self._has_sent_commit = isinstance(batch[-1], Commit)
        self._connection.send(batch)


Connect = Callable[[str, DatabaseLink], Connection]


def _nothing(outcome: object, now: float) -> None:
    """Stand for a transaction that there is not yet."""
