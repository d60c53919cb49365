"""A connection with a thread of its own, which executes batches: `link.Connection` on PostgreSQL.

Only batches wait in the thread. All that they mean is decided by the `DatabaseLink`, in the
broker's loop; so what a transaction reads and changes of the broker needs no lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from mqtt_broker.cluster.link import Answer, DatabaseLink
from mqtt_broker.cluster.statements import (
    Commit,
    ConnectionLost,
    Statement,
    TransactionError,
)
from mqtt_broker.cluster.store.connection import Connector, StoreConnection
from sessions.store.database import StoreError, explain

# Has the loop call an action with the time, from another thread.
Deliver = Callable[[Callable[[float], None]], None]


class Executor:
    """Executes one batch at a time; all but its thread is called in the broker's loop."""

    def __init__(
        self, connector: Connector, label: str, deliver: Deliver, link: DatabaseLink
    ) -> None:
        self._connector = connector
        self._label = label
        self._deliver = deliver
        self._link = link
        self._batches: queue.SimpleQueue[list[Statement] | None] = queue.SimpleQueue()
        self._connection: StoreConnection | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"fleetmq-{label}", daemon=True)
        self._thread.start()

    def send(self, batch: list[Statement]) -> None:
        """Execute a batch, and tell the link its rows, or why it failed."""
        self._batches.put(batch)

    def rollback(self) -> None:
        """Undo the transaction, if the server has not done so."""
        self._batches.put([])

    def close(self) -> None:
        """End the connection; nothing is called any more."""
        self._is_closed.set()
        self._batches.put(None)
        if self._connection is not None:
            self._connection.interrupt()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return False on timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _opened(self, now: float) -> None:
        if not self._is_closed.is_set():
            self._link.on_open(now)

    def _answered(self, answer: Answer, now: float) -> None:
        if not self._is_closed.is_set():
            self._link.on_answer(answer, now)

    def _lost(self, line: str, now: float) -> None:
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._link.on_lost(line, now)

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
            self._deliver(partial(self._answered, answer))
