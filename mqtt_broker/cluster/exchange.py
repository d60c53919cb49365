"""The exchange of a number with the others: filters, and messages for stored sessions.

Messages are gathered in batches. A batch with something to write is committed as a group: records
of its own, messages for other numbers or from them, filters. Its transaction also compares the
filters by which it was routed. If they are not the latest, the group is refused, the filters are
read, and the batch is routed again; after that read it needs no comparison. A batch that has
nothing to write is compared alone, and its messages are acknowledged after that.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.digest import Digest, compare, learn
from mqtt_broker.cluster.inbox import Inbox, read_parcels
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Outbox, Parcel, write_parcels
from mqtt_broker.cluster.own_filters import REMOVED_MAX, OwnFilters
from mqtt_broker.cluster.statements import Commit, Select, Stale, Statement, Transaction
from mqtt_broker.cluster.tables import FILTERS, OUTBOX, PLACES

POLL_S: Final = 0.5  # between reads of the outbox, whether or not the bus says that they are needed


class Batch:
    """Messages that are acknowledged together."""

    __slots__ = ("blob", "has_read", "messages", "parcels", "received")

    def __init__(
        self, blob: bytes, messages: list[tuple[str, bytes]], received: list[Parcel]
    ) -> None:
        self.blob = blob  # the records of the own number; empty if there are none
        self.messages = messages  # for whom it may concern, with their topics
        self.received = received
        self.parcels: list[Parcel] = []  # by the last routing
        self.has_read = False  # filters were read, or compared, after its messages had come

    def set_parcels(self, parcels: list[Parcel]) -> None:
        """Note what goes to whom; it replaces what was routed before."""
        self.parcels = parcels

    def on_filters_read(self) -> None:
        """Note that the filters were read, or compared, since it was made."""
        self.has_read = True


class Exchange:
    """The part of one number, under one epoch."""

    __slots__ = (
        "_epoch",
        "_has_polled",
        "_number",
        "_poll_at",
        "digest",
        "filters",
        "inbox",
        "outbox",
    )

    def __init__(self, number: int, epoch: str, removed_max: int = REMOVED_MAX) -> None:
        self._number = number
        self._epoch = epoch
        self.digest = Digest(number)
        self.filters = OwnFilters(number, epoch, removed_max)
        self.outbox = Outbox(number)
        self.inbox = Inbox(number)
        self._poll_at = 0.0
        self._has_polled = False  # since a batch was done

    def load(self) -> Transaction[None]:
        """Read where the number stands."""
        found = yield [
            Select(OUTBOX, {"sender": self._number}),
            Select(PLACES, {"sender": self._number}),
            Select(PLACES, {"receiver": self._number}),
            Select(FILTERS, {"number": self._number}),
            Commit(),
        ]
        self.outbox.on_loaded(found[0], found[1])
        self.inbox.on_loaded(found[2])
        self.filters.load(found[3])

    def route(self, batch: Batch) -> None:
        """Route a batch by what is known now."""
        batch.set_parcels(self.outbox.pack(batch.messages, self.digest))

    def is_group(self, batch: Batch) -> bool:
        """Tell whether a batch has something to write."""
        return bool(batch.blob or batch.parcels or batch.received or self.filters.has_changed)

    # Transactions.

    def read(self, batch: Batch | None, now: float) -> Transaction[None] | None:
        """Return what is to be read before this batch is committed or acknowledged."""
        if self.digest.is_behind:
            return self._learn(batch)
        if batch is not None and not batch.has_read and not self.is_group(batch):
            return self._compare(batch)
        if batch is not None and self._has_polled:
            return None  # what is read is deleted with the batch: one read, one batch
        if now >= self._poll_at:
            self._poll_at = now + POLL_S
            return self._poll(self.digest.numbers)
        if self.inbox.missing:
            return self._poll(sorted(self.inbox.missing))
        return None

    def _poll(self, senders: list[int]) -> Transaction[None]:
        self._has_polled = True
        return read_parcels(self.inbox, self._number, senders)

    def _learn(self, batch: Batch | None) -> Transaction[None]:
        yield from learn(self.digest)
        if batch is not None:
            batch.on_filters_read()

    def _compare(self, batch: Batch) -> Transaction[None]:
        yield from compare(self.digest)
        batch.on_filters_read()
        self._has_polled = False

    def commit(self, writes: Writes, group: int, batch: Batch) -> Transaction[None]:
        """Commit a batch as a group, routed by what is known now."""
        self.route(batch)
        also: list[Statement] = [] if batch.has_read else [self.digest.expectation()]
        also += self.inbox.write(batch.received)
        also += self.filters.write(group)
        also += write_parcels(batch.parcels)
        try:
            yield from writes.commit_group(group, batch.blob, also)
        except Stale:
            self.digest.on_stale()
            raise

    def on_committed(self, group: int, batch: Batch) -> None:
        """Note that the group of a batch is committed."""
        self._has_polled = False
        self.outbox.on_committed(batch.parcels)
        if self.filters.has_changed:
            self.digest.set_own(self._epoch, group)
        self.filters.on_committed(group)
