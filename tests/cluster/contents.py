"""What a test hosts with a number: it notes what is asked of it."""

from __future__ import annotations

from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.statements import Commit, Select, Statement, Transaction


class FakeContent:
    errands = None

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.reads: list[Transaction[object]] = []
        self.committed: list[int] = []
        self.folded: list[int] = []
        self.is_loaded = self.is_stopped = False

    def fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None] | None:
        return None

    def load(self, row: NodeRow) -> Transaction[None]:
        yield [Select("t"), Commit()]

    def on_loaded(self) -> None:
        self.is_loaded = True

    def on_stopped(self) -> None:
        self.is_stopped = True

    def pack(self, group: int) -> bytes | None:
        return self.blobs.pop(0) if self.blobs else None

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        return writes.commit_group(group, blob)

    def read(self, now: float) -> Transaction[object] | None:
        return self.reads.pop(0) if self.reads else None

    def on_committed(self, group: int) -> None:
        self.committed.append(group)

    def fold(self, group: int) -> list[Statement]:
        return []

    def on_folded(self, group: int) -> None:
        self.folded.append(group)
