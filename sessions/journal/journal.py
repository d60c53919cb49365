"""The journal: changes of durable state on their way to disk, and what waits for them.

Transactions and pending commits, gathered among the records, are in
`sessions.journal.transaction`.

Records are gathered until `flush` packs them into one group with the next number. The store
commits groups in their order and reports the highest number that is safe (`on_committed`), so
what is on disk is always a prefix of what happened here.

Packing changes nothing until it has succeeded, so no failure loses what was gathered. A
transaction that cannot be packed is left out alone, and what waits for it is refused. A group
that is larger than a row may be takes several numbers, which the store commits at once.

A message is never written if every stored session it was for has acknowledged it before its
group is packed: with subscribers that keep up, the store sees almost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from sessions.journal import packing, records
from sessions.journal.participant import CommitParticipant
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow
from sessions.journal.transaction import Delivery, JournalNumbers, PendingCommit, PublishTransaction
from sessions.messages.message import Message

NO_LIMIT: Final = 1 << 62
MEMORY: Final = 0
RELAXED: Final = 1
COMMIT: Final = 2
STUCK_S: Final = 5.0  # that an entry is tried which alone does not fit into memory
QUEUE_HEAD_MESSAGES: Final = 1_000  # of a long queue that stay in memory beside those on disk
MODES: Final = {"memory": MEMORY, "relaxed": RELAXED, "commit": COMMIT}


class StoredQueue(Protocol):
    """The queue of a session, or of a shared subscription, that the store may have parts of."""

    session_number: int

    @property
    def page_after(self) -> int:
        """The place behind which the stored deliveries begin that are wanted next."""

    def on_page(self, items: list[Delivery], now: float) -> None:
        """Take the page."""

    def unload(self, folded: int, keep: int) -> bool:
        """Free what the store has up to group `folded`; True when that is enough."""


def _raise(error: Exception) -> None:
    raise error


class Journal:
    """The records of the group that is being gathered, and the groups under way."""

    __slots__ = (
        "_entries",
        "_failed",
        "_gathered_bytes",
        "_is_assigned",
        "_is_continued",
        "_log",
        "_long_queues",
        "_on_bug",
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
    ) -> None:
        self._submit = submit
        self.mode = mode  # of topics that no rule names
        self.awaits_commit = awaits_commit  # some topic has the mode COMMIT
        self.numbers = JournalNumbers(number, last_message, last_session)
        self.committed = number
        self.folded = number
        self.participant: CommitParticipant | None = None  # None: no stream
        self.pages_wanted: list[StoredQueue] = []  # whose next page the store is asked for
        self.pinned = 0  # entries that will be written whatever is acknowledged meanwhile
        self.unfolded_bytes = 0  # packed and not in the tables
        self.records = 0  # records and transactions that were written
        self.cancelled = 0  # messages that were acknowledged before they were written
        self.refused = 0  # messages that could not be packed
        self.part_bytes_max = packing.PART_BYTES_MAX
        self._log: Callable[[str], None] = lambda line: None
        self._on_bug: Callable[[Exception], None] = _raise
        self._long_queues: dict[StoredQueue, None] = {}  # with more in memory than they need
        self._entries: list[packing.Entry] = []
        self._unsent: deque[tuple[int, bytes]] = deque()  # packed, and not handed to the store
        # Left out, and not yet refused.
        self._failed: deque[tuple[PublishTransaction, Exception]] = deque()
        self._is_continued = False  # what is packed next belongs to the group packed last
        self._is_assigned = False  # the participant's part belongs to the next group
        self._stuck_since = 0.0
        self._uncommitted_bytes_max = NO_LIMIT
        self._unfolded_bytes_max = NO_LIMIT
        self._participant_bytes_max = NO_LIMIT
        self._gathered_bytes = 0  # about what will be packed
        self._packed_bytes = 0  # and is not committed
        self._waiting: deque[tuple[int, int, PendingCommit | None]] = deque()
        self._unfolded: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Count entries that wait to be packed, and groups that wait to be handed over."""
        return len(self._entries) + len(self._unsent)

    @property
    def number(self) -> int:
        """The number of the group packed last."""
        return self.numbers.group

    @property
    def is_unfinished(self) -> bool:
        """Tell whether the store waits for the rest of a group, or a publisher for a refusal."""
        return self._is_continued or len(self._unsent) > 0 or len(self._failed) > 0

    def _record(self, data: bytes) -> None:
        self._entries.append(data)
        self._gathered_bytes += len(data)

    @property
    def is_behind(self) -> bool:
        """Tell whether more waits for the disk, or for the tables, than `limit` allows."""
        return (
            self._gathered_bytes + self._packed_bytes > self._uncommitted_bytes_max
            or self.unfolded_bytes > self._unfolded_bytes_max
            or self.is_participant_behind
        )

    @property
    def is_participant_behind(self) -> bool:
        """Tell whether more waits for the participant's files than `limit` allows."""
        participant = self.participant
        return participant is not None and participant.waiting_bytes > self._participant_bytes_max

    def limit(self, uncommitted_bytes: int, unfolded_bytes: int, participant_bytes: int) -> None:
        """Set how many bytes may wait before publishers have to."""
        self._uncommitted_bytes_max = uncommitted_bytes
        self._unfolded_bytes_max = unfolded_bytes
        self._participant_bytes_max = participant_bytes

    @property
    def is_waiting(self) -> bool:
        """Tell whether there is anything to hand to the store, or to ask it for."""
        return len(self) > 0 or len(self.pages_wanted) > 0 or self.participant_has_new

    @property
    def participant_has_new(self) -> bool:
        """Tell whether the participant has anything that goes with the next group."""
        return self._is_assigned or (self.participant is not None and self.participant.has_new)

    @property
    def is_settled(self) -> bool:
        """Tell whether everything that was recorded is on disk."""
        return not self._entries and self.committed == self.numbers.group

    def report_to(self, log: Callable[[str], None], on_bug: Callable[[Exception], None]) -> None:
        """Report messages that cannot be stored to `log`, and our own errors to `on_bug`."""
        self._log = log
        self._on_bug = on_bug

    def enlist(self, participant: CommitParticipant) -> None:
        """Let the participant's part be written with the groups from now on."""
        self.participant = participant

    # Messages.

    def begin(self, messages: list[Message], *, awaits_commit: bool = False) -> PublishTransaction:
        """Begin a transaction: deliveries of these messages are noted in it, until `add`.

        It stands from now on in front of everything recorded while it is open, such as the end
        of a session that it delivers to, or a will published by an error in the middle of it.
        """
        txn = PublishTransaction(self.numbers, messages, awaits_commit=awaits_commit)
        self._entries.append(txn)
        return txn

    def add(self, txn: PublishTransaction) -> None:
        """Complete a transaction; one without anything to write is dropped."""
        entries = self._entries
        if not txn.is_wanted:
            if entries[-1] is txn:
                entries.pop()
            else:
                entries.remove(txn)
            return
        self.pinned += txn.is_pinned
        if txn.messages:
            txn.size = len(txn.messages) * txn.messages[0].envelope.size
        self._gathered_bytes += txn.size

    def on_done(self, session_number: int, items: list[Delivery], now: float) -> None:
        """Record that these deliveries are over: acknowledged, expired or dropped."""
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
        """Record the end of deliveries that groups store, each with its own group.

        A session that ends with its connection has no number. What a group that outlives it gives
        to it is stored under the group until somebody acknowledges it; deliveries without a place
        are stored nowhere.
        """
        by_group: dict[int, list[Delivery]] = {}
        for item in items:
            group = item[1].group
            if not item[2] or group is None:
                continue
            if group.session_number:
                by_group.setdefault(group.session_number, []).append(item)
            elif item[3] is not None:
                item[3].on_delivered(now)  # the group is gone, and with it what it stored
        for number, found in by_group.items():
            self.on_done(number, found, now)

    def on_sent(self, session_number: int, sent: list[tuple[int, Delivery]]) -> None:
        """Record the packet ids under which queued deliveries are sent."""
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
        """Record that PUBREC came for these deliveries; True when any of them is stored."""
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

    # Everything else is recorded as it happens.

    def new_session_number(self) -> int:
        """Give out the next number of a session or a shared subscription."""
        self.numbers.session += 1
        return self.numbers.session

    def skip_numbers(self, *, message: int = 0, session: int = 0) -> None:
        """Give out greater numbers than these, which a store turned out to have."""
        self.numbers.message = max(self.numbers.message, message)
        self.numbers.session = max(self.numbers.session, session)

    def on_session(self, row: SessionRow) -> None:
        self._record(records.encode_session(row))

    def on_end(self, session_number: int, items: list[Delivery], now: float) -> None:
        """Record that the session is over, and with it these deliveries."""
        for _, _, place, txn in items:
            if place and txn is not None:
                txn.on_delivered(now)
        self._record(records.encode_end(session_number))

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
        """Record a stream that is new, or that has changed."""
        self._record(records.encode_stream(row))

    def on_stream_gone(self, name: str) -> None:
        """Record that the stream is gone, with every cursor in it."""
        self._record(records.encode_stream_gone(name))

    def on_cursor(
        self, owner: str, stream: str, epoch: str, offsets: list[tuple[int, int]]
    ) -> None:
        """Record how far `owner` is in the partitions of a stream: (partition, next offset)."""
        self._record(records.encode_cursor(owner, stream, epoch, offsets))

    def on_cursors_gone(self, owner: str, stream: str) -> None:
        """Record that `owner` no longer reads this stream; an empty name: any stream."""
        self._record(records.encode_cursors_gone(owner, stream))

    def wait(self, pending: PendingCommit) -> None:
        """Release it when everything recorded so far is on disk."""
        self._entries.append(pending)
        self.pinned += 1

    # Queues whose middle only the store has.

    def want_page(self, queue: StoredQueue) -> None:
        """Ask the store for the next page of this queue, at the end of the turn."""
        self.pages_wanted.append(queue)

    def unload_later(self, queue: StoredQueue) -> None:
        """Unload this queue, which has become long, as soon as the tables have it."""
        self._long_queues[queue] = None

    def forget_queue(self, queue: StoredQueue) -> None:
        """Do not unload this queue any more: it is gone."""
        self._long_queues.pop(queue, None)

    # Groups.

    def drop_settled(self, since: float) -> bool:
        """Drop transactions whose deliveries are over; True if the rest may wait for more.

        That is when nothing of the rest is from before `since`: with subscribers that keep up
        there is always something young, and hardly ever anything that has to be written.
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
        """Pack what was gathered, and hand it to the store.

        Whatever this raises, nothing is lost: the next call carries on from there.
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
        """Pack as much of what was gathered as memory allows.

        Changes nothing but a transaction that it gives up.
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
        """Move what was packed from the entries to what is handed over."""
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
        # Everything is allocated: nothing below can fail half-way.
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
        """Refuse transactions that could not be packed, and what they would have replaced."""
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
        """Release what waited: all groups up to this number are on disk."""
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
                except Exception as bug:  # ours; the others are released all the same
                    bugs.append(bug)
        for found in bugs:
            self._on_bug(found)

    def on_folded(self, number: int) -> None:
        """Unload long queues: the tables hold all groups up to this number."""
        self.folded = max(self.folded, number)
        while self._unfolded and self._unfolded[0][0] <= number:
            self.unfolded_bytes -= self._unfolded.popleft()[1]
        for queue in list(self._long_queues):
            if queue.unload(number, QUEUE_HEAD_MESSAGES // 2):
                del self._long_queues[queue]
