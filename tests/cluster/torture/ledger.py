"""What was asked and acknowledged in a torture, and what the database must have then."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, LiteralString

import psycopg

from tests.sim.cluster.oracles import check

Rows = list[dict[str, Any]]
Stored = dict[str, list[int]]  # by writer
_QUERIES: Final[tuple[LiteralString, ...]] = (
    "SELECT * FROM cluster_nodes",
    'SELECT * FROM cluster_groups ORDER BY number, "group"',
    "SELECT * FROM cluster_values ORDER BY writer, value",
    "SELECT * FROM cluster_totals",
)
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

    def __init__(self, nodes: Rows, groups: Rows, values: Rows, totals: Rows) -> None:
        self.nodes = nodes
        self.groups = groups
        self._values = values
        self._totals = totals

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


def read_found(conninfo: str) -> Found:
    """Read a database in one snapshot."""
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return Found(*(_rows(connection, query) for query in _QUERIES))


def _rows(connection: psycopg.Connection[Any], query: LiteralString) -> Rows:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(query).fetchall()


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
