"""A loop that does what the threads of executors deliver, and runs transactions on them."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable
from typing import Any, Final

from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.statements import Transaction
from mqtt_broker.cluster.store.connection import Connector
from mqtt_broker.cluster.store.executor import Executor

PATIENCE_S: Final = 120.0
SECRET: Final = bytes(range(32))


class Loop:
    """Does what threads deliver, and makes no connection again."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.executors: list[Executor] = []
        self._actions: queue.SimpleQueue[Callable[[float], None]] = queue.SimpleQueue()

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._actions.get(timeout=PATIENCE_S)(0.0)

    def connect(self, label: str, link: DatabaseLink) -> Executor:
        executor = Executor(self.connector, label, self._actions.put, link)
        self.executors.append(executor)
        return executor

    def open(self, label: str) -> DatabaseLink:
        link = self.start(label)
        self.until(lambda: link.is_idle)
        return link

    def start(self, label: str) -> DatabaseLink:
        link = DatabaseLink(label, self.connect, lambda now: None, random.Random(1))
        link.tick(0.0)
        return link

    def run(self, link: DatabaseLink, transaction: Transaction[Any]) -> Any:
        """Return the result of a transaction, or its error."""
        found: list[Any] = []

        def note(outcome: object, now: float) -> None:
            found.append(outcome)

        link.run(transaction, note, note)
        self.until(lambda: bool(found))
        return found[0]

    def close(self) -> None:
        for executor in self.executors:
            executor.close()
            assert executor.join(PATIENCE_S)
