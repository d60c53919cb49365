"""The row of a number: who hosts it, and how far its journal is committed and folded."""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.statements import Row

FREE: Final = ""  # the epoch of a number that nobody hosts


class NodeRow:
    """A row of the table of nodes.

    A number is durable: it has a journal and what the journal was folded into. A process hosts it
    under an epoch, a text that is never used again. Every transaction of the host adds 1 to `turn`.
    """

    __slots__ = ("epoch", "folded", "group", "number", "turn")

    def __init__(self, row: Row) -> None:
        self.number: int = row["number"]
        self.epoch: str = row["epoch"]
        self.turn: int = row["turn"]
        self.group: int = row["group"]  # the last committed group
        self.folded: int = row["folded"]

    @property
    def is_empty(self) -> bool:
        """Tell whether no group was ever committed: there is nothing to inherit."""
        return self.group == 0


def new_row(number: int, epoch: str) -> Row:
    """Make the row of a number that has not existed before."""
    return {"number": number, "epoch": epoch, "turn": 0, "group": 0, "folded": 0}
