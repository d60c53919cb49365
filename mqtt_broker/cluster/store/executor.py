"""A connection with a thread of its own, which executes the batches of transactions.

The generator of a transaction goes on where `deliver` calls it, in the broker's loop: only batches
wait in the thread. So what a transaction reads and changes of the broker needs no lock. A failure
is told to the transaction and to the caller; then `on_lost`, if the connection has ended with it.
A connection that has ended is not used again: the caller makes another one, after a while.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from mqtt_broker.cluster.statements import (
    Commit,
    ConnectionLost,
    Rows,
    Statement,
    Transaction,
    TransactionError,
)
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from sessions.store.database import StoreError, explain

Deliver = Callable[[Callable[[], None]], None]
Answer = list[Rows] | TransactionError


class Executor:
    """Executes one transaction at a time; all but its thread is called in the broker's loop."""

    def __init__(
        self,
        connector: Connector,
        label: str,
        deliver: Deliver,
        on_open: Callable[[], None],
        on_lost: Callable[[str], None],  # with a line for the operator
    ) -> None:
        self._connector = connector
        self._label = label
        self._deliver = deliver
        self._on_open = on_open
        self._on_lost = on_lost
        self._transaction: Transaction[Any] | None = None
        self._on_done: Callable[[Any], None] = lambda result: None
        self._on_failed: Callable[[TransactionError], None] = lambda error: None
        self._batches: queue.SimpleQueue[list[Statement] | None] = queue.SimpleQueue()
        self._connection: StoreConnection | None = None
        self._is_closed = threading.Event()
        self.is_open = False
        self._thread = threading.Thread(target=self._main, name=f"fleetmq-{label}", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Tell whether a transaction may be run."""
        return self.is_open and self._transaction is None

    def run(
        self,
        transaction: Transaction[Any],
        on_done: Callable[[Any], None],
        on_failed: Callable[[TransactionError], None],
    ) -> None:
        """Execute a transaction."""
        assert self.is_idle, "a transaction is in flight"
        self._transaction = transaction
        self._on_done = on_done
        self._on_failed = on_failed
        self._go_on(lambda: next(transaction))

    def close(self) -> None:
        """End the connection; nothing is called any more."""
        self.is_open = False
        self._is_closed.set()
        self._batches.put(None)
        if self._connection is not None:
            self._connection.interrupt()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return False on timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _go_on(self, advance: Callable[[], list[Statement]]) -> None:
        try:
            batch = advance()
        except StopIteration as end:
            self._transaction = None
            self._on_done(end.value)
        except TransactionError as error:
            self._transaction = None
            self._batches.put([])  # it may have been given up in the middle
            self._on_failed(error)
        else:
            self._batches.put(batch)

    def _on_answer(self, answer: Answer) -> None:
        transaction = self._transaction
        if self._is_closed.is_set() or transaction is None:
            return
        if isinstance(answer, TransactionError):
            error = answer
            self._go_on(lambda: transaction.throw(error))
        else:
            rows = answer
            self._go_on(lambda: transaction.send(rows))

    def _opened(self) -> None:
        if not self._is_closed.is_set():
            self.is_open = True
            self._on_open()

    def _lost(self, line: str) -> None:
        if not self._is_closed.is_set():
            self.is_open = False
            self._is_closed.set()
            self._on_lost(line)

    # In the thread.

    def _main(self) -> None:
        line = "connection lost"
        try:
            self._connection = self._connector.connect(self._label)
            self._deliver(self._opened)
            self._execute_all(self._connection)
        except StoreError as error:
            line = str(error)
        except Exception as error:  # our own mistake costs the connection, not the process
            line = f"internal error: {explain(error)}"
        finally:
            if self._connection is not None:
                self._connection.close()
            self._deliver(partial(self._lost, line))

    def _execute_all(self, connection: StoreConnection) -> None:
        while not (connection.is_closed or self._is_closed.is_set()):
            batch = self._batches.get()
            if batch:
                self._execute(connection, batch)
            elif connection.is_in_transaction:
                connection.rollback()

    def _execute(self, connection: StoreConnection, batch: list[Statement]) -> None:
        answer: Answer = ConnectionLost(is_unknown=isinstance(batch[-1], Commit))
        try:
            answer = connection.execute(batch)
        except TransactionError as error:
            answer = error
        finally:
            self._deliver(partial(self._on_answer, answer))
