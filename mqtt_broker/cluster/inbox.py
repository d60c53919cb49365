"""Messages of QoS 1 and 2 from other numbers: up to where they have come.

Parcels come over the bus, which may lose, double and reorder them, and from the outbox table. What
follows the last one is accepted; what came before is dropped; a gap is left to a read of the
table. The place of a sender moves in the transaction of the group that holds its messages, and
with it the rows of the outbox go that were read.

What was read or came by a frame may be gone: a row can be read before its commit is safe. If the
database fails over, the sender gives its numbers to other messages. So the transaction compares the
parcels with the rows. If one is not there, all that is not committed is dropped, and read again.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.outbox import Parcel, parcel_of
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    Expect,
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

    __slots__ = ("_accepted", "_count", "_number", "_parcels", "_places", "missing")

    def __init__(self, number: int) -> None:
        self._number = number
        self._places: dict[int, int] = {}  # by sender, the last message of a committed group
        self._accepted: dict[int, int] = {}  # the last one that was accepted
        self._parcels: list[Parcel] = []  # accepted, and not in a group yet
        self._count = 0
        self.missing: set[int] = set()  # senders of which messages have to be read

    def on_loaded(self, places: Rows) -> None:
        """Go on from the committed places."""
        self._places = {row["sender"]: row["place"] for row in places}
        self._go_back()

    def _go_back(self) -> None:
        self._accepted = dict(self._places)
        self._parcels.clear()
        self._count = 0

    def on_stale(self) -> None:
        """Note that parcels of a group are not in the outbox any more: drop them, and read."""
        self.missing.update(self._accepted)
        self._go_back()

    def on_committed(self, parcels: list[Parcel]) -> None:
        """Note that the group with these parcels is committed."""
        for parcel in parcels:
            self._places[parcel.sender] = parcel.last

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

    def waits_for(self, ends: dict[int, int]) -> bool:
        """Tell whether the next group has messages up to these, by sender."""
        return any(parcel.last <= ends.get(parcel.sender, 0) for parcel in self._parcels)

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
        found: dict[int, list[Parcel]] = {}
        for parcel in parcels:
            found.setdefault(parcel.sender, []).append(parcel)
        statements: list[Statement] = []
        for sender in sorted(found):
            lane: Row = {"receiver": self._number, "sender": sender}
            place = found[sender][-1].last
            statements.append(self.expectation(sender, found[sender]))
            statements.append(Put(PLACES, {**lane, "place": place}))
            # A parcel is received whole. Its key ends with its first message, and is found by it.
            statements.append(Delete(OUTBOX, lane, up_to=("first", place)))
        return statements

    def expectation(self, sender: int, parcels: list[Parcel]) -> Expect:
        """Return the statement that fails with `Stale` if a parcel is not in the outbox."""
        rows = [(one.first, one.last, one.epoch, one.turn) for one in parcels]
        firsts = [one.first for one in parcels]
        where: Row = {"receiver": self._number, "sender": sender, "first": firsts}
        return Expect(OUTBOX, ("first", "last", "epoch", "turn"), rows, where)


def read_waiting(number: int, senders: list[int]) -> list[Statement]:
    """Return the statements that read what waits for a number, one for each sender."""
    return [
        Select(OUTBOX, {"receiver": number, "sender": sender}, limit=READ_ROWS)
        for sender in senders
    ]


def read_parcels(inbox: Inbox, number: int, senders: list[int]) -> Transaction[None]:
    """Read what waits for a number; rows that it has read are not there any more."""
    found = yield [*read_waiting(number, senders), Commit()]
    for sender, rows in zip(senders, found, strict=False):
        inbox.on_rows(sender, rows)
