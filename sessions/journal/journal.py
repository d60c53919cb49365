"""What changed, on its way to disk, and who waits for it to be there.

    Journal   the records of the group that is being gathered, and the groups under way

Transactions and pending commits, gathered among the records, are in
`sessions.journal.transaction`.

Records are gathered until `flush` packs them into one group with the next number. The store
commits groups in their order and tells the highest number that is safe (`on_committed`). So
what is on disk is always a prefix of what happened here.

Packing changes nothing until it has succeeded, so no failure loses what was gathered. A
transaction that cannot be packed is left out alone, and what waits for it is refused. A group
that is larger than a row may be takes several numbers, which the store commits at once.

A message that was taken by every stored session it was for, before its group was packed, is
never written: with subscribers that keep up, the store sees almost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from sessions.journal import packing, records
from sessions.journal.participant import CommitParticipant
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow
from sessions.journal.transaction import Item as Item
from sessions.journal.transaction import JournalNumbers, PendingCommit, PublishTransaction
from sessions.messages.message import Message

MEMORY: Final = 0
RELAXED: Final = 1
COMMIT: Final = 2
STUCK_S: Final = 5.0  # what cannot be packed alone, for want of memory, is tried so long
QUEUE_HEAD_MESSAGES: Final = 1_000  # of one long queue in memory, when the store has the rest
MODES: Final = {"memory": MEMORY, "relaxed": RELAXED, "commit": COMMIT}


class StoredQueue(Protocol):
    """A session, or a shared subscription with messages of its own."""

    session_number: int

    @property
    def page_after(self) -> int:
        """The place behind which the stored deliveries begin that are wanted next."""

    def on_page(self, items: list[Item], now: float) -> None:
        """Take the page."""

    def unload(self, folded: int, keep: int) -> bool:
        """Free what the store has up to group `folded`; True when that is enough."""


def _raise(error: Exception) -> None:
    raise error


class Journal:
    __slots__ = (
        "_entries",
        "_failed",
        "_gathered_bytes",
        "_is_assigned",
        "_is_continued",
        "_packed_bytes",
        "_stuck_since",
        "_submit",
        "_unfolded",
        "_unsent",
        "_waiting",
        "awaits_commit",
        "cancelled",
        "certain",
        "committed",
        "folded",
        "grown",
        "mode",
        "numbers",
        "on_bug",
        "part_bytes_max",
        "participant",
        "records",
        "refused",
        "report",
        "unfolded_bytes",
        "wanted",
    )

    def __init__(
        self,
        submit: Callable[[int, bytes], None],
        *,
        mode: int = COMMIT,
        awaits_commit: bool = True,
        number: int = 0,
        last_mid: int = 0,
        last_sid: int = 0,
    ) -> None:
        self._submit = submit
        self.mode = mode  # what topics have that no rule speaks of
        self.awaits_commit = awaits_commit  # something may have to wait for one
        self.numbers = JournalNumbers(number, last_mid, last_sid)
        self.committed = number
        self.folded = number
        self.participant: CommitParticipant | None = None  # None: no stream
        self.grown: dict[StoredQueue, None] = {}  # those with more in memory than they need
        self.wanted: list[StoredQueue] = []  # those that wait for a page of what is stored
        self.certain = 0  # entries that wait for the disk whatever happens
        self.unfolded_bytes = 0  # packed and not in the tables
        self.records = 0  # records and bursts that were written
        self.cancelled = 0  # messages that were never written, because they were taken before
        self.refused = 0  # messages that could not be packed
        self.part_bytes_max = packing.PART_BYTES_MAX
        self.report: Callable[[str], None] = lambda line: None
        self.on_bug: Callable[[Exception], None] = _raise
        self._entries: list[packing.Entry] = []
        self._unsent: deque[tuple[int, bytes]] = deque()  # packed, and not with the store
        # Left out, and not yet refused.
        self._failed: deque[tuple[PublishTransaction, Exception]] = deque()
        self._is_continued = False  # what is packed next belongs to the group packed last
        self._is_assigned = False  # the participant's part belongs to the next group
        self._stuck_since = 0.0
        self._gathered_bytes = 0  # about what will be packed
        self._packed_bytes = 0  # and is not committed
        self._waiting: deque[tuple[int, int, PendingCommit | None]] = deque()
        self._unfolded: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Entries that wait to be packed, and groups that wait to be handed over."""
        return len(self._entries) + len(self._unsent)

    @property
    def number(self) -> int:
        """The number of the group packed last."""
        return self.numbers.group

    @property
    def is_unfinished(self) -> bool:
        """Whether the store waits for the rest of something: it goes on whatever is under way."""
        return self._is_continued or len(self._unsent) > 0 or len(self._failed) > 0

    def _record(self, data: bytes) -> None:
        self._entries.append(data)
        self._gathered_bytes += len(data)

    @property
    def uncommitted_bytes(self) -> int:
        """What was recorded and is not on disk, packed or not."""
        return self._gathered_bytes + self._packed_bytes

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to hand to the store, or to ask it for."""
        return len(self) > 0 or len(self.wanted) > 0 or self.participant_has_new

    @property
    def participant_has_new(self) -> bool:
        """Tell whether the participant has anything that goes with the next group."""
        return self._is_assigned or (self.participant is not None and self.participant.has_new)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was recorded is on disk."""
        return not self._entries and self.committed == self.numbers.group

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
        self.certain += txn.is_pinned
        if txn.messages:
            txn.size = len(txn.messages) * txn.messages[0].envelope.size
        self._gathered_bytes += txn.size

    def on_done(self, sid: int, items: list[Item], now: float) -> None:
        """These deliveries are over: acknowledged, expired or dropped."""
        pairs: list[tuple[int, int]] = []
        for message, _, n, txn in items:
            if n:
                if txn is not None:
                    if txn.is_gathered:
                        txn.on_done(sid, n, message.mid)
                        txn.on_delivered(now)
                        continue
                    txn.on_delivered(now)
                pairs.append((n, message.mid))
        if pairs:
            self._record(records.encode_done(sid, records.runs_of(pairs)))

    def on_group_done(self, items: list[Item], now: float) -> None:
        """Record the end of deliveries that groups store, each with its own group.

        A session that ends with its connection has no number. What a group that outlives it gives
        to it is stored under the group until somebody acknowledges it; deliveries without a place
        are stored nowhere.
        """
        by_group: dict[int, list[Item]] = {}
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

    def on_sent(self, sid: int, sent: list[tuple[int, Item]]) -> None:
        """What waited goes out under these packet ids."""
        pairs: list[tuple[int, int]] = []
        for packet_id, (_, _, n, txn) in sent:
            if n:
                if txn is not None and txn.is_gathered:
                    txn.on_sent(sid, n, packet_id)
                else:
                    pairs.append((n, packet_id))
        if pairs:
            self._record(records.encode_sent(sid, pairs))

    def on_released(self, sid: int, released: list[tuple[int, Item]], now: float) -> bool:
        """PUBREC came for these; True when any of them is stored."""
        rows = [(item[2], item[0].mid, packet_id) for packet_id, item in released if item[2]]
        if not rows:
            return False
        self._record(records.encode_released(sid, rows))
        for _, item in released:
            txn = item[3]
            if txn is not None and item[2]:
                if txn.is_gathered:
                    txn.pin()
                txn.on_delivered(now)
        return True

    # Everything else is recorded as it happens.

    def new_session_number(self) -> int:
        self.numbers.session += 1
        return self.numbers.session

    def skip_numbers(self, *, message: int = 0, session: int = 0) -> None:
        """Give out greater numbers than these, which a store turned out to have."""
        self.numbers.message = max(self.numbers.message, message)
        self.numbers.session = max(self.numbers.session, session)

    def on_session(self, row: SessionRow) -> None:
        self._record(records.encode_session(row))

    def on_end(self, sid: int, items: list[Item], now: float) -> None:
        """The session is over, and with it these deliveries."""
        for _, _, n, txn in items:
            if n and txn is not None:
                txn.on_delivered(now)
        self._record(records.encode_end(sid))

    def on_subscribed(self, row: SubscriptionRow) -> None:
        self._record(records.encode_subscribed(row))

    def on_unsubscribed(self, sid: int, text: str) -> None:
        self._record(records.encode_unsubscribed(sid, text))

    def on_completed(self, sid: int, packet_ids: list[int]) -> None:
        self._record(records.encode_ids(records.COMPLETED, sid, packet_ids))

    def on_freed(self, sid: int, packet_ids: list[int]) -> None:
        self._record(records.encode_ids(records.FREED, sid, packet_ids))

    def on_retained_gone(self, mid: int) -> None:
        self._record(records.encode_retained(0, mid))

    def on_shared(self, row: ShareRow) -> None:
        self._record(records.encode_shared(row))

    def on_stream(self, row: StreamRow) -> None:
        """There is a stream of that name, and this is what it is."""
        self._record(records.encode_stream(row))

    def on_stream_gone(self, name: str) -> None:
        """Nor where anybody was in it."""
        self._record(records.encode_stream_gone(name))

    def on_cursor(
        self, owner: str, stream: str, epoch: str, offsets: list[tuple[int, int]]
    ) -> None:
        """`owner` has taken these partitions up to these offsets: (partition, the next)."""
        self._record(records.encode_cursor(owner, stream, epoch, offsets))

    def on_cursors_gone(self, owner: str, stream: str) -> None:
        """It reads there no longer; an empty `stream`: nowhere."""
        self._record(records.encode_cursors_gone(owner, stream))

    def wait(self, hold: PendingCommit) -> None:
        """Release it when everything recorded so far is on disk."""
        self._entries.append(hold)
        self.certain += 1

    # Groups.

    def may_wait(self, since: float) -> bool:
        """Forget what was taken; True when of the rest nothing is from before `since`.

        With subscribers that keep up there is always something young, and hardly ever anything
        that has to be written.
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

        Whatever this raises, nothing is lost: it goes on where it was at the next call.
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
        """As much of what was gathered as memory allows. Changes nothing but what it gives up."""
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
        """Move what was packed out of what is gathered."""
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
        holds: list[PendingCommit] = []
        for entry in packed.waits:
            if isinstance(entry, PendingCommit):
                holds.append(entry)
            else:
                holds += entry.pending()
        waiting: list[tuple[int, int, PendingCommit | None]] = [
            (at, size, None) for at, size in sizes
        ]
        waiting += [(number, 0, hold) for hold in holds]
        rest = self._entries[packed.count :]
        # All of it is made: from here on nothing is left that could fail half-way.
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
            self.certain = self._gathered_bytes = 0

    def _hand_over(self) -> None:
        unsent = self._unsent
        while unsent:
            self._submit(*unsent[0])
            unsent.popleft()

    def _refuse_failed(self, now: float) -> None:
        """Nobody is told that it is safe; what it would have replaced is retained no longer."""
        while self._failed:
            txn, error = self._failed.popleft()
            count = len(txn.messages)
            self.refused += count
            self.report(f"{count} messages cannot be stored, and are refused: {error!r}")
            if txn.retained is not None and txn.retained[1]:
                self.on_retained_gone(txn.retained[1])
            for hold in txn.discard():
                if not hold.is_safe:
                    hold.is_safe = True
                    try:
                        hold.refuse(now)
                    except Exception as bug:
                        self.on_bug(bug)

    def on_committed(self, number: int, now: float) -> None:
        """All groups up to this number are on disk."""
        self.committed = max(self.committed, number)
        waiting = self._waiting
        bugs: list[Exception] = []
        while waiting and waiting[0][0] <= number:
            _, size, hold = waiting.popleft()
            self._packed_bytes -= size
            if hold is not None and not hold.is_safe:
                hold.is_safe = True
                try:
                    hold.release(now)
                except Exception as bug:  # ours; the others are released all the same
                    bugs.append(bug)
        for found in bugs:
            self.on_bug(found)

    def on_folded(self, number: int) -> None:
        """The tables hold all groups up to this number: long queues need not stay in memory."""
        self.folded = max(self.folded, number)
        while self._unfolded and self._unfolded[0][0] <= number:
            self.unfolded_bytes -= self._unfolded.popleft()[1]
        for owner in list(self.grown):
            if owner.unload(number, QUEUE_HEAD_MESSAGES // 2):
                del self.grown[owner]
