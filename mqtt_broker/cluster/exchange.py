"""The exchange of a number with the others: filters, and messages.

Messages are gathered in batches. A batch with something to write is committed as a group: records
of its own, messages for other numbers or from them, filters. Its transaction also compares the
filters by which it was routed. If they are not the latest, the group is refused, the filters are
read, and the batch is routed again; after that read it needs no comparison. A batch that has
nothing to write is compared alone, and its messages are acknowledged after that.

Messages of QoS 1 and 2 for another number are committed with the group, whether sessions there are
stored or not: an acknowledgement promises the same as on one node, where a client misses a message
only if its own connection or node ends. Then they are sent over the bus. What does not come, the
receiver reads. Messages of QoS 0 are sent over the bus alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mqtt_broker.cluster.digest import Digest, compare, learn
from mqtt_broker.cluster.frames import bodies, layout
from mqtt_broker.cluster.frames.batches import Batches
from mqtt_broker.cluster.frames.bodies import Hint
from mqtt_broker.cluster.frames.reader import Frame
from mqtt_broker.cluster.inbox import Inbox, read_parcels
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Outbox, Parcel, write_parcels
from mqtt_broker.cluster.own_filters import REMOVED_MAX, OwnFilters
from mqtt_broker.cluster.peers import Peers, Send
from mqtt_broker.cluster.retained import Retained
from mqtt_broker.cluster.retained_follower import Copies, Cut
from mqtt_broker.cluster.retained_rows import RetainedLimits, RetainedMessage
from mqtt_broker.cluster.statements import Commit, Rows, Select, Stale, Statement, Transaction
from mqtt_broker.cluster.tables import FILTERS, OUTBOX, PLACES

# Between reads of what a number has sent that nothing says are needed.
POLL_S: Final = 0.5  # no hint comes from it
HEARD_POLL_S: Final = 5.0  # hints come, but perhaps late


class Limits(NamedTuple):
    """The bounds of what an exchange keeps."""

    removed_filters: int = REMOVED_MAX
    retained: RetainedLimits = RetainedLimits()


class Batch:
    """Messages that are acknowledged together."""

    __slots__ = (
        "blob",
        "cut",
        "found",
        "has_read",
        "is_stale",
        "messages",
        "parcels",
        "received",
        "retained",
    )

    def __init__(
        self, blob: bytes, messages: list[tuple[str, bytes]], received: list[Parcel]
    ) -> None:
        self.blob = blob  # the records of the own number; empty if there are none
        self.messages = messages  # for whom it may concern, with their topics
        self.received = received
        self.parcels: list[Parcel] = []  # by the last routing
        self.has_read = False  # filters were read, or compared, after its messages had come
        self.is_stale = False  # what it received is gone, and has to be taken out of the blob
        self.retained: dict[str, RetainedMessage] = {}  # by topic, the last
        self.cut: Cut | None = None  # of retained messages, to be applied behind `received`
        self.found: list[Rows] = []  # what its transaction has read of them

    def set_parcels(self, parcels: list[Parcel]) -> None:
        """Note what goes to whom; it replaces what was routed before."""
        self.parcels = parcels

    def on_stale(self) -> None:
        """Note that what it received is not in the outbox any more."""
        self.received = []
        self.is_stale = True

    def set_blob(self, blob: bytes) -> None:
        """Replace the records, by those without what it had received."""
        self.blob = blob
        self.is_stale = False

    def is_before_cut(self, parcel: Parcel) -> bool:
        """Tell whether a parcel that it has received is delivered before its cut."""
        return self.cut is not None and parcel.last <= self.cut.ends.get(parcel.sender, 0)

    def take_cut(self) -> Cut | None:
        """Return the cut, which is applied once."""
        cut, self.cut = self.cut, None
        return cut

    def on_found(self, found: list[Rows]) -> None:
        """Take what its transaction has read of retained messages."""
        self.found = found

    def on_filters_read(self) -> None:
        """Note that the filters were read, or compared, since it was made."""
        self.has_read = True


class Exchange:
    """The part of one number, under one epoch."""

    __slots__ = (
        "_committed",
        "_epoch",
        "_has_polled",
        "_now",
        "_number",
        "_polled_at",
        "_send",
        "digest",
        "filters",
        "inbox",
        "messages",
        "outbox",
        "peers",
        "retained",
    )

    def __init__(
        self,
        number: int,
        epoch: str,
        send: Send,
        limits: Limits | None = None,
        copies: Copies | None = None,
    ) -> None:
        """Begin without anything; `copies` are the retained messages in memory, if there are."""
        limits = limits or Limits()
        self._number = number
        self._epoch = epoch
        self._send = send
        self._committed = 0
        self.digest = Digest(number)
        self.filters = OwnFilters(number, epoch, limits.removed_filters)
        self.outbox = Outbox(number)
        self.inbox = Inbox(number)
        self.messages = Batches(lambda to, body: send(layout.MESSAGES, to, body))  # at QoS 0
        self.peers = Peers(send)
        self._polled_at: dict[int, float] = {}  # by sender
        self.retained: Retained | None = None
        if copies is not None:
            self.retained = Retained(number, copies, self.inbox, limits.retained)
        self._now = 0.0
        self._has_polled = False  # since a batch was done

    def load(self) -> Transaction[None]:
        """Read where the number stands."""
        found = yield [
            Select(OUTBOX, {"sender": self._number}, columns=("receiver", "last")),
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
        is_crossing = batch.parcels or batch.received or batch.retained
        return bool(batch.blob or is_crossing or self.filters.has_changed)

    # Transactions.

    def read(self, batch: Batch | None, now: float) -> Transaction[None] | None:
        """Return what is to be read before this batch is committed or acknowledged."""
        self._now = now
        if self.digest.is_behind:
            return self._learn(batch)
        if batch is not None and not batch.has_read and not self.is_group(batch):
            return self._compare(batch)
        if batch is not None and self._has_polled:
            return None  # what is read is deleted with the batch: one read, one batch
        senders = [number for number in self.digest.numbers if self._is_due(number, now)]
        if senders:
            self._polled_at.update(dict.fromkeys(senders, now))
            self._has_polled = True
            return read_parcels(self.inbox, self._number, senders)
        return None

    def _is_due(self, sender: int, now: float) -> bool:
        """Tell whether it is time to read what a number has sent."""
        if sender in self.inbox.missing or sender not in self._polled_at:
            return True
        pause_s = HEARD_POLL_S if self.peers.is_heard(sender, now) else POLL_S
        return now >= self._polled_at[sender] + pause_s

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
        for parcel in batch.parcels:
            parcel.set_transaction(writes.epoch, writes.turn)
        also: list[Statement] = [] if batch.has_read else [self.digest.expectation()]
        also += self.inbox.write(batch.received)
        also += self.filters.write(group)
        also += write_parcels(batch.parcels)
        also += self.write_retained(group, batch)
        reads = self.retained_reads(group)
        try:
            found = yield from writes.commit_group(group, batch.blob, [*also, *reads])
        except Stale:
            if batch.has_read:  # then nothing but the parcels was compared
                self.inbox.on_stale()
                batch.on_stale()
            else:
                self.digest.on_stale()
            raise
        batch.on_found(found[len(also) :])

    def write_retained(self, group: int, batch: Batch) -> list[Statement]:
        """Return what a batch retains: the last rows that its transaction locks."""
        return [] if self.retained is None else self.retained.write(group, batch.retained.values())

    def retained_reads(self, group: int) -> list[Statement]:
        """Return what the transaction of a group reads, when it has written everything."""
        is_due = self.retained is not None and self.retained.is_due(self._now)
        return self.retained.reads(group) if self.retained is not None and is_due else []

    def apply_cut(self, batch: Batch | None = None) -> None:
        """Apply what was read of retained messages.

        A batch's cut is applied when the first messages of the batch are delivered, and before
        its others. A cut that no message has to be delivered before is applied without a batch.
        """
        assert self.retained is not None
        if batch is None:
            self.retained.apply_alone()
        elif (cut := batch.take_cut()) is not None:
            self.retained.apply(cut)

    def on_committed(self, group: int, batch: Batch) -> None:
        """Note that the group of a batch is committed."""
        self._has_polled = False
        self._committed = group
        self.outbox.on_committed(batch.parcels)
        self.inbox.on_committed(batch.received)
        self._send_parcels(batch.parcels)
        if self.filters.has_changed:
            self.digest.set_own(self._epoch, group)
        self.filters.on_committed(group)
        if self.retained is not None:
            self.retained.on_committed(group, batch.retained.values())
            if batch.found:
                self.retained.on_rows(batch.found, self._now)

    # The bus.

    def _send_parcels(self, parcels: list[Parcel]) -> None:
        """Send what is committed; what no frame can hold, a hint tells of."""
        for parcel in parcels:
            sent = bodies.Outbox(parcel.turn, parcel.filters, parcel.first, parcel.messages)
            body = sent.encode()
            if len(body) <= layout.BODY_BYTES_MAX:
                self._send(layout.OUTBOX, parcel.receiver, body)

    def publish(self, topic: str, message: bytes) -> None:
        """Send a message at QoS 0 to those who are known to want it, when the turn ends."""
        for number in self.digest.route(topic):
            self.messages.add(number, message)

    def flush(self) -> None:
        """Send the messages at QoS 0: the turn ends."""
        self.messages.flush()

    def tell(self, now: float) -> None:
        """Tell the others what is new, and reply to those who waited for them."""
        for number in self.digest.numbers:
            known = max(self.digest.version(number), 0)
            filters, outbox = self.filters.version, self.outbox.last(number)
            hint = Hint(self._committed, filters, 0, outbox, known)
            self.peers.tell(number, hint, now)
        self.peers.answer(now)

    def on_frame(self, frame: Frame, now: float) -> list[bytes]:
        """Take a frame, and return the messages at QoS 0 that it brings."""
        body, sender = frame.body, frame.sender
        if isinstance(body, Hint):
            self.digest.on_hint(sender, frame.epoch, body.filters)
            self.inbox.on_hint(sender, body.outbox)
            self.peers.on_hint(sender, frame.epoch, body, now)
        elif isinstance(body, bodies.Outbox):
            sent = (sender, self._number, body.first, body.filters, list(body.entries))
            self.inbox.on_parcel(Parcel(*sent, frame.epoch, body.turn))
        elif frame.kind == layout.MESSAGES:
            messages: list[bytes] = body
            return messages
        return []
