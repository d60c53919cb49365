"""Messages of QoS 1 and 2 from other numbers: up to where they have come.

Parcels come over the bus, which may lose, double and reorder them, and from the outbox table. What
follows the last one is accepted; what came before is dropped; a gap is left to a read of the
table. The place of a sender moves in the transaction of the group that holds its messages, and
with it the rows of the outbox go that were read.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.outbox import Parcel, parcel_of
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    Put,
    Row,
    Rows,
    Select,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import OUTBOX, PLACES

MESSAGES_MAX: Final = 10_000  # accepted, and not in a group yet
READ_ROWS: Final = 100  # of one sender at a time


class Inbox:
    """The parcels that one number receives, and its places."""

    __slots__ = ("_accepted", "_count", "_number", "_parcels", "missing")

    def __init__(self, number: int) -> None:
        self._number = number
        self._accepted: dict[int, int] = {}  # by sender, the last message
        self._parcels: list[Parcel] = []  # accepted, and not in a group yet
        self._count = 0
        self.missing: set[int] = set()  # senders of which messages have to be read

    def on_loaded(self, places: Rows) -> None:
        """Go on from the committed places."""
        self._accepted = {row["sender"]: row["place"] for row in places}
        self._parcels.clear()
        self._count = 0

    def on_parcel(self, parcel: Parcel) -> None:
        """Accept a parcel if it follows the last one of its sender."""
        accepted = self._accepted.get(parcel.sender, 0)
        if parcel.last <= accepted:
            return
        if parcel.first != accepted + 1 or self._count >= MESSAGES_MAX:
            self.missing.add(parcel.sender)
            return
        self._accepted[parcel.sender] = parcel.last
        self._parcels.append(parcel)
        self._count += len(parcel.messages)

    def on_hint(self, sender: int, last: int) -> None:
        """Note the last message that a sender has for this number."""
        if last > self._accepted.get(sender, 0):
            self.missing.add(sender)

    def on_rows(self, sender: int, rows: Rows) -> None:
        """Take what was read of one sender; if there may be more, read again."""
        self.missing.discard(sender)
        for row in rows:
            self.on_parcel(parcel_of(row))
        if len(rows) == READ_ROWS:
            self.missing.add(sender)

    def take(self) -> list[Parcel]:
        """Return the parcels for the next group."""
        parcels, self._parcels = self._parcels, []
        self._count = 0
        return parcels

    def write(self, parcels: list[Parcel]) -> list[Statement]:
        """Return what the group of these parcels writes: the places, and what was read goes."""
        places: dict[int, int] = {}
        for parcel in parcels:
            places[parcel.sender] = parcel.last
        statements: list[Statement] = []
        for sender in sorted(places):
            lane: Row = {"receiver": self._number, "sender": sender}
            statements.append(Put(PLACES, {**lane, "place": places[sender]}))
            statements.append(Delete(OUTBOX, lane, up_to=("last", places[sender])))
        return statements


def read_parcels(inbox: Inbox, number: int, senders: list[int]) -> Transaction[None]:
    """Read what waits for a number; rows that it has read are not there any more."""
    reads: list[Statement] = [
        Select(OUTBOX, {"receiver": number, "sender": sender}, limit=READ_ROWS)
        for sender in senders
    ]
    found = yield [*reads, Commit()]
    for sender, rows in zip(senders, found, strict=False):
        inbox.on_rows(sender, rows)
