"""What was asked and acknowledged in a torture, and what the database must have then."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from mqtt_broker.cluster.tables import GROUPS, NODES
from tests.cluster.torture.tables import Rows
from tests.sim.cluster.hosts import TOTALS, VALUES
from tests.sim.cluster.oracles import check

Stored = dict[str, list[int]]  # by writer
MISSED_SHOWN: Final = 10


class Writer:
    """Writes 1, 2, 3 and so on to a number, the next when the last is acknowledged."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.acknowledged = 0
        self.sent = 0

    @property
    def is_waiting(self) -> bool:
        return self.sent > self.acknowledged

    def next(self) -> int:
        """Return the value that is to be sent, for the first time or again."""
        self.sent = self.acknowledged + 1
        return self.sent

    def on_ack(self, value: int) -> bool:
        """Note an acknowledgement; tell whether it is the one that is waited for."""
        is_next = value == self.acknowledged + 1 == self.sent
        self.acknowledged += is_next
        return is_next


class Found:
    """The rows of a database at rest."""

    def __init__(self, tables: dict[str, Rows]) -> None:
        self.nodes = tables[NODES]
        self.groups = tables[GROUPS]
        self._values = tables[VALUES]
        self._totals = tables[TOTALS]

    def check_folded(self) -> None:
        """What the tables have is whole."""
        counts = Counter((row["number"], row["writer"]) for row in self._values)
        for row in self._totals:
            count = counts[row["number"], row["writer"]]
            text = f"{count} values of {row['writer']}, but the total is {row['total']}"
            check("torn", row["total"] == count, text)
        check("torn", len(counts) == len(self._totals), f"{len(self._totals)} of {len(counts)}")

    def lists(self, number: int) -> Stored:
        """Return the lists of a number, with what is not folded."""
        stored: Stored = {}
        for row in self._values:
            if row["number"] == number:
                stored.setdefault(row["writer"], []).append(row["value"])
        for row in self.groups:
            if row["number"] == number:
                for writer, value in json.loads(row["blob"]):
                    stored.setdefault(writer, []).append(value)
        return stored


def check_lists(writers: Sequence[Writer], found: Found) -> None:
    """Every acknowledged value is there, once and in order."""
    found.check_folded()
    for writer in writers:
        stored = found.lists(writer.number).get(writer.name, [])
        twice = [value for value, count in Counter(stored).items() if count > 1]
        check("once", not twice, f"{writer.name} has {twice[:MISSED_SHOWN]} more than once")
        check("order", stored == sorted(stored), f"{writer.name} is out of order")
        missing = sorted(set(range(1, writer.acknowledged + 1)) - set(stored))
        text = f"{writer.name} had {missing[:MISSED_SHOWN]} acknowledged, {len(missing)} are gone"
        check("lost", not missing, text)
        check("lost", len(stored) <= writer.sent, f"{writer.name} has what nobody sent")
