"""The journal: changes of durable state on their way to disk, and actions that wait for them.

Transactions and pending commits, which are gathered with the records, are in
`sessions.journal.transaction`.

Records are gathered until `flush` packs them into one group with the next number. The store
commits the groups in order and reports the highest durable number (`on_committed`), so the data on
disk is always a prefix of what happened.

Packing changes nothing until it has succeeded, so a failure loses no records. A transaction that
cannot be packed is left out alone, and what waits for it is refused. A group that is larger than a
row may be has several numbers, which the store commits together.

A message is never written if every stored session that gets it has acknowledged it before its
group is packed: with subscribers that keep up, the store has almost nothing to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from sessions.journal import packing, records
from sessions.journal.number_range import ALL, NumberRange
from sessions.journal.participant import CommitParticipant
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow
from sessions.journal.transaction import (
    PART_BYTES,
    Delivery,
    JournalNumbers,
    PendingCommit,
    PublishTransaction,
)
from sessions.messages.message import Message

NO_LIMIT: Final = 1 << 62
MEMORY: Final = 0
RELAXED: Final = 1
COMMIT: Final = 2
STUCK_S: Final = 5.0  # how long to retry an entry that does not fit into memory
QUEUE_HEAD_MESSAGES: Final = 1_000  # of a long queue, that stay in memory
MODES: Final = {"memory": MEMORY, "relaxed": RELAXED, "commit": COMMIT}


class StoredQueue(Protocol):
    """The queue of a session or of a shared subscription, parts of which may be on disk only."""

    session_number: int

    @property
    def page_after(self) -> int:
        """The place after which the next page of stored deliveries begins."""

    def on_page(self, items: list[Delivery], now: float) -> None:
        """Append a page to the head of the queue."""

    def unload(self, folded: int, keep: int) -> bool:
        """Free deliveries that the tables have up to group `folded`; return True if enough."""


def _raise(error: Exception) -> None:
    raise error


class Journal:
    """The records of the next group, and the groups that are not yet committed."""

    __slots__ = (
        "_entries",
        "_failed",
        "_gathered_bytes",
        "_is_assigned",
        "_is_continued",
        "_log",
        "_long_queues",
        "_on_bug",
        "_open",
        "_packed_bytes",
        "_participant_bytes_max",
        "_stuck_since",
        "_submit",
        "_uncommitted_bytes_max",
        "_unfolded",
        "_unfolded_bytes_max",
        "_unsent",
        "_waiting",
        "awaits_commit",
        "cancelled",
        "committed",
        "folded",
        "mode",
        "numbers",
        "pages_wanted",
        "part_bytes_max",
        "participant",
        "pinned",
        "range",
        "records",
        "refused",
        "unfolded_bytes",
    )

    def __init__(
        self,
        submit: Callable[[int, bytes], None],
        *,
        mode: int = COMMIT,
        awaits_commit: bool = True,
        number: int = 0,
        last_message: int = 0,
        last_session: int = 0,
        number_range: NumberRange = ALL,
    ) -> None:
        self._submit = submit
        self.mode = mode  # of topics without a rule
        self.awaits_commit = awaits_commit  # some topic has the mode COMMIT
        self.range = number_range  # of sessions and messages
        self.numbers = JournalNumbers(
            number, number_range.newest(last_message), number_range.newest(last_session)
        )
        self.committed = number
        self.folded = number
        self.participant: CommitParticipant | None = None  # None: there is no stream
        self.pages_wanted: list[StoredQueue] = []  # queues that request their next page
        self.pinned = 0  # entries that are written even if everything is acknowledged before
        self.unfolded_bytes = 0  # packed and not yet in the tables
        self.records = 0  # records and transactions written
        self.cancelled = 0  # messages acknowledged before they were written
        self.refused = 0  # messages that could not be packed
        self.part_bytes_max = packing.PART_BYTES_MAX
        self._log: Callable[[str], None] = lambda line: None
        self._on_bug: Callable[[Exception], None] = _raise
        self._long_queues: dict[StoredQueue, None] = {}  # with more in memory than they should
        self._entries: list[packing.Entry] = []
        self._open: dict[PublishTransaction, None] = {}
        self._unsent: deque[tuple[int, bytes]] = deque()  # packed, not yet passed to the store
        # Transactions that were left out and are not yet refused.
        self._failed: deque[tuple[PublishTransaction, Exception]] = deque()
        self._is_continued = False  # the next blob belongs to the group packed last
        self._is_assigned = False  # the participant's data is assigned to the next group
        self._stuck_since = 0.0
        self._uncommitted_bytes_max = NO_LIMIT
        self._unfolded_bytes_max = NO_LIMIT
        self._participant_bytes_max = NO_LIMIT
        self._gathered_bytes = 0  # the approximate size of the next group
        self._packed_bytes = 0  # packed and not committed
        self._waiting: deque[tuple[int, int, PendingCommit | None]] = deque()
        self._unfolded: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Count entries to be packed, and groups to be passed to the store."""
        return len(self._entries) + len(self._unsent)

    @property
    def number(self) -> int:
        """The number of the last packed group."""
        return self.numbers.group

    @property
    def is_unfinished(self) -> bool:
        """Tell whether the rest of a group is still to be packed, or a publisher to be refused."""
        return self._is_continued or len(self._unsent) > 0 or len(self._failed) > 0

    def _record(self, data: bytes) -> None:
        self._entries.append(data)
        self._gathered_bytes += len(data)

    @property
    def is_behind(self) -> bool:
        """Tell whether more bytes wait for the disk or the tables than `limit` allows."""
        return (
            self._gathered_bytes + self._packed_bytes > self._uncommitted_bytes_max
            or self.unfolded_bytes > self._unfolded_bytes_max
            or self.is_participant_behind
        )

    @property
    def is_overfull(self) -> bool:
        """Tell whether twice as much waits for the disk as publishers are held back for."""
        return self._gathered_bytes + self._packed_bytes > 2 * self._uncommitted_bytes_max

    @property
    def behind(self) -> str:
        """Describe which bytes wait for the disk, how many, and the setting that limits them."""
        waiting = self._gathered_bytes + self._packed_bytes
        if waiting > self._uncommitted_bytes_max:
            return f"{waiting} bytes wait for the disk (journal_bytes_max)"
        if self.unfolded_bytes > self._unfolded_bytes_max:
            return f"{self.unfolded_bytes} bytes wait for the tables (queue_memory_bytes_max)"
        waiting = 0 if self.participant is None else self.participant.waiting_bytes
        return f"{waiting} bytes wait for the telemetry log (stream_bytes_max)"

    @property
    def is_participant_behind(self) -> bool:
        """Tell whether more bytes wait for the participant's files than `limit` allows."""
        participant = self.participant
        return participant is not None and participant.waiting_bytes > self._participant_bytes_max

    def limit(self, uncommitted_bytes: int, unfolded_bytes: int, participant_bytes: int) -> None:
        """Set how many bytes may wait before publishers are paused."""
        self._uncommitted_bytes_max = uncommitted_bytes
        self._unfolded_bytes_max = unfolded_bytes
        self._participant_bytes_max = participant_bytes

    @property
    def is_waiting(self) -> bool:
        """Tell whether there are records for the store, or pages to request from it."""
        return len(self) > 0 or len(self.pages_wanted) > 0 or self.participant_has_new

    @property
    def participant_has_new(self) -> bool:
        """Tell whether the participant has data for the next group."""
        return self._is_assigned or (self.participant is not None and self.participant.has_new)

    @property
    def is_settled(self) -> bool:
        """Tell whether all records are on disk."""
        return not self._entries and self.committed == self.numbers.group

    def report_to(self, log: Callable[[str], None], on_bug: Callable[[Exception], None]) -> None:
        """Report messages that cannot be stored to `log`, and internal errors to `on_bug`."""
        self._log = log
        self._on_bug = on_bug

    def enlist(self, participant: CommitParticipant) -> None:
        """Write the participant's data with the groups from now on."""
        self.participant = participant

    # Messages.

    def begin(self, messages: list[Message], *, awaits_commit: bool = False) -> PublishTransaction:
        """Begin a transaction, which collects the deliveries of these messages until `add`.

        Its place is before all records made while it is open, such as the end of a session that it
        delivers to, or a will published because of an error.
        """
        txn = PublishTransaction(self.numbers, messages, awaits_commit=awaits_commit)
        self._entries.append(txn)
        return txn

    def open(self, messages: list[Message], *, awaits_commit: bool = False) -> PublishTransaction:
        """Begin a transaction that is completed in another turn, and has its place then.

        A QoS 2 message of it leaves when it is on disk, whatever the mode: nothing that could
        come back from its receiver may be recorded before it.
        """
        txn = PublishTransaction(self.numbers, messages, awaits_commit=awaits_commit)
        txn.open()
        self._open[txn] = None
        return txn

    @property
    def has_open(self) -> bool:
        """Tell whether a transaction is open."""
        return len(self._open) > 0

    def add(self, txn: PublishTransaction) -> None:
        """Complete a transaction; drop it if it has nothing to write."""
        entries = self._entries
        if txn.is_open:
            del self._open[txn]
            txn.close()
            entries.append(txn)
        if not txn.is_wanted:
            if entries[-1] is txn:
                entries.pop()
            else:
                entries.remove(txn)
            return
        self.pinned += txn.is_pinned
        size, parts = 0, len(txn.parts)
        if txn.messages:
            size = len(txn.messages) * txn.messages[0].envelope.size
            parts -= 1  # they count for the first as well
        if parts > 0:
            size += PART_BYTES * parts
        txn.size = size
        self._gathered_bytes += size

    def on_done(self, session_number: int, items: list[Delivery], now: float) -> None:
        """Record the end of deliveries: acknowledged, expired or dropped."""
        pairs: list[tuple[int, int]] = []
        for message, _, place, txn in items:
            if place:
                if txn is not None:
                    if txn.is_gathered:
                        txn.note_done(session_number, place, message.message_number)
                        txn.on_delivered(now)
                        continue
                    txn.on_delivered(now)
                pairs.append((place, message.message_number))
        if pairs:
            self._record(records.encode_done(session_number, records.runs_of(pairs)))

    def on_group_done(self, items: list[Delivery], now: float) -> None:
        """Record the end of deliveries that are stored by their groups.

        A session that ends with its connection has no number. Messages that it gets from a group
        that outlives it are stored with the group until they are acknowledged; deliveries without
        a place are not stored.
        """
        by_group: dict[int, list[Delivery]] = {}
        for item in items:
            group = item[1].group
            if not item[2] or group is None:
                continue
            if group.session_number:
                by_group.setdefault(group.session_number, []).append(item)
            elif item[3] is not None:
                item[3].on_delivered(now)  # the group has ended, with all that it stored
        for number, found in by_group.items():
            self.on_done(number, found, now)

    def on_sent(self, session_number: int, sent: list[tuple[int, Delivery]]) -> None:
        """Record the packet ids with which queued deliveries are sent."""
        pairs: list[tuple[int, int]] = []
        for packet_id, (_, _, place, txn) in sent:
            if place:
                if txn is not None and txn.is_gathered:
                    txn.note_sent(session_number, place, packet_id)
                else:
                    pairs.append((place, packet_id))
        if pairs:
            self._record(records.encode_sent(session_number, pairs))

    def on_released(
        self, session_number: int, released: list[tuple[int, Delivery]], now: float
    ) -> bool:
        """Record PUBREC for these deliveries; return True if any of them is stored."""
        rows: list[tuple[int, int, int]] = []
        for packet_id, (message, _, place, _) in released:
            if place:
                rows.append((place, message.message_number, packet_id))
        if not rows:
            return False
        self._record(records.encode_released(session_number, rows))
        for _, item in released:
            txn = item[3]
            if txn is not None and item[2]:
                if txn.is_gathered:
                    txn.pin()
                txn.on_delivered(now)
        return True

    # Other changes are recorded as they happen.

    def new_session_number(self) -> int:
        """Return the next number for a session or a shared subscription."""
        self.numbers.session += 1
        return self.numbers.session

    def skip_numbers(self, *, message: int = 0, session: int = 0) -> None:
        """Continue with greater numbers than these, which a store was found to have."""
        self.numbers.message = self.range.newest(self.numbers.message, message)
        self.numbers.session = self.range.newest(self.numbers.session, session)

    def on_session(self, row: SessionRow) -> None:
        self._record(records.encode_session(row))

    def on_end(self, session_number: int) -> None:
        """Record that the session is over, and with it all that is stored for it.

        The transactions of its deliveries are told by whoever has these.
        """
        for txn in self._open:
            txn.on_session_end(session_number)
        self._record(records.encode_end(session_number))

    def on_left(self, session_number: int, messages: int) -> None:
        """Record that the session moves to another node, with so many messages at most.

        They get numbers that no other session refers to, so that no row is written by two nodes.
        """
        base = self.numbers.reserve_messages(messages)
        self._record(records.encode_left(session_number, base, messages))

    def on_subscribed(self, row: SubscriptionRow) -> None:
        self._record(records.encode_subscribed(row))

    def on_unsubscribed(self, session_number: int, text: str) -> None:
        self._record(records.encode_unsubscribed(session_number, text))

    def on_completed(self, session_number: int, packet_ids: list[int]) -> None:
        self._record(records.encode_ids(records.COMPLETED, session_number, packet_ids))

    def on_freed(self, session_number: int, packet_ids: list[int]) -> None:
        self._record(records.encode_ids(records.FREED, session_number, packet_ids))

    def on_retained_gone(self, message_number: int) -> None:
        self._record(records.encode_retained(0, message_number))

    def on_shared(self, row: ShareRow) -> None:
        self._record(records.encode_shared(row))

    def on_stream(self, row: StreamRow) -> None:
        """Record a new or changed stream."""
        self._record(records.encode_stream(row))

    def on_stream_gone(self, name: str) -> None:
        """Record that a stream was deleted, with all its cursors."""
        self._record(records.encode_stream_gone(name))

    def on_cursor(
        self, owner: str, stream: str, epoch: str, offsets: list[tuple[int, int]]
    ) -> None:
        """Record the positions of `owner` in a stream: (partition, next offset)."""
        self._record(records.encode_cursor(owner, stream, epoch, offsets))

    def on_cursors_gone(self, owner: str, stream: str) -> None:
        """Record that `owner` no longer reads this stream; an empty name: all streams."""
        self._record(records.encode_cursors_gone(owner, stream))

    def wait(self, pending: PendingCommit) -> None:
        """Release `pending` when all records made so far are on disk."""
        self._entries.append(pending)
        self.pinned += 1

    # Queues with parts on disk only.

    def want_page(self, queue: StoredQueue) -> None:
        """Request the next page of a queue from the store, at the end of the turn."""
        self.pages_wanted.append(queue)

    def unload_later(self, queue: StoredQueue) -> None:
        """Unload a long queue as soon as the tables have its deliveries."""
        self._long_queues[queue] = None

    def forget_queue(self, queue: StoredQueue) -> None:
        """Forget a queue that has ended."""
        self._long_queues.pop(queue, None)

    # Groups.

    def drop_settled(self, since: float) -> bool:
        """Drop transactions whose deliveries have ended; return True if the rest may wait.

        The rest may wait if all of it is younger than `since`: with subscribers that keep up,
        there are always young transactions, and hardly ever one that must be written.
        """
        if self.is_unfinished:
            return False
        left: list[packing.Entry] = []
        for entry in self._entries:
            if isinstance(entry, PublishTransaction) and not entry.is_wanted:
                self.cancelled += len(entry.messages)
                self._gathered_bytes -= entry.size
            else:
                left.append(entry)
        self._entries = left
        if not left:
            return True
        first = left[0]
        return isinstance(first, PublishTransaction) and first.born_at > since

    def flush(self, now: float) -> None:
        """Pack the gathered records, and pass them to the store.

        If this raises an exception, nothing is lost: the next call continues.
        """
        try:
            self._hand_over()
            if self._entries or self.participant_has_new or self._is_continued:
                self._take_in(self._pack(now))
            self._hand_over()
        finally:
            self._refuse_failed(now)
        self.on_committed(self.committed, now)

    def _pack(self, now: float) -> packing.Packed:
        """Pack as many of the gathered records as memory allows.

        The only change is to a transaction that it discards.
        """
        try:
            packed = packing.pack(self._entries, self.part_bytes_max)
        except MemoryError as error:
            first = self._entries[0]
            if not self._stuck_since:
                self._stuck_since = now
            elif now - self._stuck_since >= STUCK_S and isinstance(first, PublishTransaction):
                self._failed.append((first, error))
                self._entries = self._entries[1:]
            raise
        self._stuck_since = 0.0
        return packed

    def _take_in(self, packed: packing.Packed) -> None:
        """Move packed entries to the groups that are passed to the store."""
        is_whole = packed.count == len(self._entries)
        blobs = packed.blobs
        number = self.numbers.group + max(1, len(blobs))
        if is_whole and self.participant is not None and self.participant.assign(number):
            self._is_assigned = True
        if not blobs and is_whole and (self._is_assigned or self._is_continued):
            blobs = [records.seal([])]
        sizes = [(self.numbers.group + place, len(blob)) for place, blob in enumerate(blobs, 1)]
        unsent = [(self.numbers.group + place, blob) for place, blob in enumerate(blobs, 1)]
        number = self.numbers.group + len(blobs)
        pending: list[PendingCommit] = []
        for entry in packed.waits:
            if isinstance(entry, PendingCommit):
                pending.append(entry)
            else:
                pending += entry.pending()
        waiting: list[tuple[int, int, PendingCommit | None]] = [
            (at, size, None) for at, size in sizes
        ]
        waiting += [(number, 0, one) for one in pending]
        rest = self._entries[packed.count :]
        # All memory is allocated: the rest cannot fail half-way.
        self._entries = rest
        self._unsent += unsent
        self._waiting += waiting
        self._unfolded += sizes
        self._failed += packed.failed
        self.numbers.group = number
        for entry in packed.waits:
            if isinstance(entry, PublishTransaction):
                entry.on_packed(number)
        size = sum(map(len, blobs))
        self._packed_bytes += size
        self.unfolded_bytes += size
        self.records += packed.records
        self.cancelled += packed.cancelled
        if blobs:
            self._is_continued = not is_whole
        if is_whole:
            self._is_assigned = False
            self.pinned = self._gathered_bytes = 0

    def _hand_over(self) -> None:
        unsent = self._unsent
        while unsent:
            self._submit(*unsent[0])
            unsent.popleft()

    def _refuse_failed(self, now: float) -> None:
        """Refuse transactions that could not be packed, and restore what they replaced."""
        while self._failed:
            txn, error = self._failed.popleft()
            count = len(txn.messages)
            self.refused += count
            self._log(f"{count} messages cannot be stored, and are refused: {error!r}")
            if txn.retained is not None and txn.retained[1]:
                self.on_retained_gone(txn.retained[1])
            for pending in txn.discard():
                if not pending.is_safe:
                    pending.is_safe = True
                    try:
                        pending.refuse(now)
                    except Exception as bug:
                        self._on_bug(bug)

    def on_committed(self, number: int, now: float) -> None:
        """Release pending commits: all groups up to this number are on disk."""
        self.committed = max(self.committed, number)
        waiting = self._waiting
        bugs: list[Exception] = []
        while waiting and waiting[0][0] <= number:
            _, size, pending = waiting.popleft()
            self._packed_bytes -= size
            if pending is not None and not pending.is_safe:
                pending.is_safe = True
                try:
                    pending.release(now)
                except Exception as bug:  # an internal error: still release the others
                    bugs.append(bug)
        for found in bugs:
            self._on_bug(found)

    def on_folded(self, number: int) -> None:
        """Unload long queues: the tables have all groups up to this number."""
        self.folded = max(self.folded, number)
        while self._unfolded and self._unfolded[0][0] <= number:
            self.unfolded_bytes -= self._unfolded.popleft()[1]
        for queue in list(self._long_queues):
            if queue.unload(number, QUEUE_HEAD_MESSAGES // 2):
                del self._long_queues[queue]
