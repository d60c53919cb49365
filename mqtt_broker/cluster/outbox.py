"""Messages of QoS 1 and 2 for other numbers: what goes to whom.

The messages of a group are routed when it is packed, and again whenever its transaction is made, by
what the digest knows then. A parcel is what one group has for one number, or as much of that as a
frame of the bus carries. Its messages are numbered by (sender, receiver) without gaps, across all
hosts of the sender, so a receiver that knows the last number it has knows what it lacks. A parcel
is a row of its own in the transaction of the group: a slow reader holds up no journal, and it
deletes what it has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqtt_broker.cluster.digest import Digest
from mqtt_broker.cluster.frames.batches import BATCH_BYTES
from mqtt_broker.cluster.statements import Insert, Row, Rows, Statement
from mqtt_broker.cluster.tables import OUTBOX

_LENGTH_BYTES: Final = 4


class Parcel:
    """Messages of one group from one number to another."""

    __slots__ = ("epoch", "filters", "first", "messages", "receiver", "sender", "turn")

    def __init__(
        self,
        sender: int,
        receiver: int,
        first: int,
        filters: int,
        messages: list[bytes],
        epoch: str = "",
        turn: int = 0,
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.first = first
        self.filters = filters  # the version of the receiver's filters by which it was routed
        self.messages = messages
        # Of the transaction that writes it: they tell it from another with the same numbers.
        self.epoch = epoch
        self.turn = turn

    def set_transaction(self, epoch: str, turn: int) -> None:
        """Note the transaction that writes it."""
        self.epoch = epoch
        self.turn = turn

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.first + len(self.messages) - 1

    def row(self) -> Row:
        """Make the row of the outbox."""
        return {
            "receiver": self.receiver,
            "sender": self.sender,
            "first": self.first,
            "last": self.last,
            "epoch": self.epoch,
            "turn": self.turn,
            "filters": self.filters,
            "blob": join_messages(self.messages),
        }


def parcel_of(row: Row) -> Parcel:
    """Make the parcel that a row of the outbox holds."""
    messages = split_messages(row["blob"])
    sent = (row["sender"], row["receiver"], row["first"], row["filters"])
    return Parcel(*sent, messages, row["epoch"], row["turn"])


def join_messages(messages: Iterable[bytes]) -> bytes:
    """Join messages, each with its length before it."""
    return b"".join(len(one).to_bytes(_LENGTH_BYTES, "big") + one for one in messages)


def split_messages(blob: bytes) -> list[bytes]:
    """Split what `join_messages` joined."""
    messages: list[bytes] = []
    at = 0
    while at < len(blob):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(blob[at:start], "big")
        messages.append(blob[start:at])
    return messages


def split_by_size(messages: list[bytes]) -> list[list[bytes]]:
    """Split messages into parts that a frame carries, if there is one that carries the message."""
    parts: list[list[bytes]] = [[]]
    left = BATCH_BYTES
    for one in messages:
        size = len(one) + _LENGTH_BYTES
        if size > left and parts[-1]:
            parts.append([])
            left = BATCH_BYTES
        parts[-1].append(one)
        left -= size
    return parts


class Outbox:
    """The numbers that were given to messages of one sender."""

    __slots__ = ("_last", "_sender")

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._last: dict[int, int] = {}  # by receiver, the last number of a committed group

    def on_loaded(self, waiting: Rows, places: Rows) -> None:
        """Go on from what waits in the outbox, and from what was read and is deleted.

        What waits has to be read first: a receiver deletes it and moves its place in one
        transaction, so what was gone already is in the places that are read later.
        """
        self._last.clear()
        for row in waiting:
            self._last[row["receiver"]] = max(self._last.get(row["receiver"], 0), row["last"])
        for row in places:
            self._last[row["receiver"]] = max(self._last.get(row["receiver"], 0), row["place"])

    def pack(self, messages: list[tuple[str, bytes]], digest: Digest) -> list[Parcel]:
        """Route messages, each with its topic, and number them as if they were committed next."""
        found: dict[int, list[bytes]] = {}
        for topic, message in messages:
            for receiver in digest.route(topic):
                found.setdefault(receiver, []).append(message)
        parcels: list[Parcel] = []
        for receiver in sorted(found):
            first, filters = self.last(receiver) + 1, digest.version(receiver)
            for part in split_by_size(found[receiver]):
                parcels.append(Parcel(self._sender, receiver, first, filters, part))
                first += len(part)
        return parcels

    def last(self, receiver: int) -> int:
        """Return the number of the last message for a receiver that is committed."""
        return self._last.get(receiver, 0)

    def on_committed(self, parcels: list[Parcel]) -> None:
        """Note that the group with these parcels is committed."""
        for parcel in parcels:
            self._last[parcel.receiver] = parcel.last


def write_parcels(parcels: list[Parcel]) -> list[Statement]:
    """Return what a group writes for other numbers."""
    return [Insert(OUTBOX, parcel.row()) for parcel in parcels]
