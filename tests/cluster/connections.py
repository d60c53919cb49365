"""Connections that a test answers by hand."""

from __future__ import annotations

from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.statements import Rows, Statement


class FakeConnection:
    """Notes what a link sends."""

    def __init__(self, label: str, link: DatabaseLink) -> None:
        self.label = label
        self.link = link
        self.batches: list[list[Statement]] = []
        self.rollbacks = 0
        self.is_closed = False

    def send(self, batch: list[Statement]) -> None:
        self.batches.append(batch)

    def rollback(self) -> None:
        self.rollbacks += 1

    def close(self) -> None:
        self.is_closed = True

    def answer(self, *rows: Rows, now: float = 0.0) -> None:
        """Answer the batch that was sent last: these rows first, then none."""
        found = [*rows, *([] for _ in self.batches[-1][len(rows) :])]
        self.link.on_answer(list(found), now)


class FakeDatabase:
    """All connections that were made, in their order."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []

    def connect(self, label: str, link: DatabaseLink) -> FakeConnection:
        self.connections.append(FakeConnection(label, link))
        return self.connections[-1]

    @property
    def last(self) -> FakeConnection:
        return self.connections[-1]
