"""What changed, on its way to disk, and who waits for it to be there.

    Ticket    a burst of messages: written, unless every stored session has taken it before
    Hold      something that may go out once what was recorded before it is safe
    Journal   the records of the group that is being gathered, and the groups under way

Records are gathered until `flush` packs them into one group with the next number. The store
commits groups in their order and tells the highest number that is safe (`on_committed`). So
what is on disk is always a beginning of what happened here.

A message that was taken by every stored session it was for, before its group was packed, is
never written: with subscribers that keep up, the store sees almost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from sessions import records
from sessions.message import Grant, Message
from sessions.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow

MEMORY: Final = 0
RELAXED: Final = 1
COMMIT: Final = 2
QUEUE_HEAD_MESSAGES: Final = 1_000  # of one long queue in memory, when the store has the rest
MODES: Final = {"memory": MEMORY, "relaxed": RELAXED, "commit": COMMIT}


class Hold:
    """What waits for the records before it. Each kind says what it does when they are safe."""

    __slots__ = ("is_safe",)

    def __init__(self) -> None:
        self.is_safe = False

    def release(self, now: float) -> None:
        """Everything that was recorded before is on disk, or need not be."""
        raise AssertionError


_Part = tuple[int, int, int, int, int, int, bool, tuple[int, ...], str, list[int]]


class Ticket:
    """Messages of one publisher that go to stored sessions, from their arrival to the disk."""

    __slots__ = (
        "_gone",
        "_is_numbered",
        "_parts",
        "_sent",
        "answer",
        "freed",
        "holds",
        "inbound_ids",
        "inbound_sid",
        "is_pinned",
        "journal",
        "messages",
        "number",
        "parked",
        "remaining",
        "retained",
        "size",
    )

    def __init__(self, journal: Journal, messages: list[Message], *, holds: bool) -> None:
        self.journal = journal
        self.number = journal.number + 1  # the group it will be in
        self.messages = messages
        self.holds = holds  # the acknowledgement waits; outbound QoS 2 too
        self.remaining = 0  # deliveries that are not over
        self.is_pinned = False  # written in any case
        self.answer: Hold | None = None
        self.parked: list[Hold] | None = None
        self.inbound_sid = 0
        self.inbound_ids: list[int] = []
        self.retained: tuple[int, int] | None = None
        self.size = 0  # about what it takes in memory, and then in the journal
        self._is_numbered = not messages
        self._parts: list[_Part] = []
        self._sent: list[tuple[int, int, int]] | None = None
        self._gone: list[tuple[int, int, int]] | None = None

    def number_messages(self) -> None:
        """They go to the store: give them the numbers they have there."""
        if not self._is_numbered:
            self._is_numbered = True
            mid = self.journal.last_mid
            for message in self.messages:
                mid += 1
                message.mid = mid
            self.journal.last_mid = mid

    def covers(self, message: Message) -> bool:
        """Whether a delivery of this message can be recorded: it is stored, or will be now."""
        self.number_messages()
        return message.mid > 0

    def deliver(
        self, sid: int, n: int, messages: list[Message], grant: Grant, packet_ids: list[int]
    ) -> None:
        """To session `sid`, from its n-th delivery on; without packet ids they wait."""
        group = grant.group
        self.remaining += len(messages)
        self._parts.append(
            (
                sid,
                n,
                messages[0].mid,
                len(messages),
                messages[0].envelope.size,
                grant.qos,
                grant.retain,
                grant.subscription_ids,
                "" if group is None else group.name,
                packet_ids,
            )
        )

    def retain(self, message: Message | None, before: int) -> None:
        """One of its messages is retained, or none any longer; `before` was, or 0."""
        if message is not None:
            self.number_messages()
        self.retained = (0 if message is None else message.mid, before)
        self.is_pinned = True

    def receive(self, sid: int, packet_ids: list[int]) -> None:
        """They came under these QoS 2 ids, which are remembered with them."""
        self.inbound_sid = sid
        self.inbound_ids = packet_ids
        self.is_pinned = True

    def park(self, hold: Hold) -> None:
        if self.parked is None:
            self.parked = []
        self.parked.append(hold)

    @property
    def born_at(self) -> float:
        """When its messages came; 0 for what only refers to messages."""
        return self.messages[0].envelope.received_at if self.messages else 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to write, now or as long as nobody has taken it."""
        return self.is_pinned or self.remaining > 0

    @property
    def is_gathered(self) -> bool:
        """Whether it is still to be packed."""
        return self.number > self.journal.number

    def on_sent(self, sid: int, n: int, packet_id: int) -> None:
        if self._sent is None:
            self._sent = []
        self._sent.append((sid, n, packet_id))

    def on_done(self, sid: int, n: int, mid: int) -> None:
        if self._gone is None:
            self._gone = []
        self._gone.append((sid, n, mid))

    def on_taken(self, now: float) -> None:
        """One delivery is over. When all are, nobody needs the disk. [whichever is first]"""
        self.remaining -= 1
        if not self.remaining and not self.is_pinned and self.answer is not None:
            self.answer.is_safe = True
            self.answer.release(now)

    def write(self, out: list[bytes]) -> None:
        """The records of it, and of what became of it until now."""
        if self.messages and self._is_numbered:
            envelope = self.messages[0].envelope
            out.append(
                records.encode_stored(
                    self.messages[0].mid,
                    envelope.topic.encode(),
                    envelope.qos,
                    envelope.retain,
                    envelope.section,
                    envelope.publisher.encode(),
                    envelope.received_at,
                    envelope.expiry_interval,
                    [message.payload for message in self.messages],
                )
            )
        out += [records.encode_delivered(*part) for part in self._parts]
        if self.retained is not None:
            out.append(records.encode_retained(*self.retained))
        if self.inbound_ids:
            out.append(records.encode_ids(records.RECEIVED, self.inbound_sid, self.inbound_ids))
        for sid, sent in _by_session(self._sent):
            out.append(records.encode_sent(sid, sent))
        for sid, gone in _by_session(self._gone):
            out.append(records.encode_done(sid, records.runs_of(gone)))
        self.messages = []
        self._parts = []
        self._sent = self._gone = None


def _by_session(
    noted: list[tuple[int, int, int]] | None,
) -> list[tuple[int, list[tuple[int, int]]]]:
    """What was noted for one session after the other, put together."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for sid, first, second in noted or ():
        if not found or found[-1][0] != sid:
            found.append((sid, []))
        found[-1][1].append((first, second))
    return found


Item = tuple[Message, Grant, int, "Ticket | None"]  # a delivery: its n (0: not stored), its ticket


class Owner(Protocol):
    """A session, or a shared subscription with messages of its own."""

    sid: int

    @property
    def page_after(self) -> int:
        """The stored deliveries that are wanted next have a greater n."""

    def on_page(self, items: list[Item], now: float) -> None:
        """They are here."""

    def evict(self, folded: int, keep: int) -> bool:
        """Let the store alone have what it has, up to that group; True when that is enough."""


class Alongside(Protocol):
    """Files that are written with a group, before it: the telemetry log."""

    @property
    def has_new(self) -> bool:
        """Whether anything came since the last `take`."""

    @property
    def waiting_bytes(self) -> int:
        """What came and is not on disk."""

    def take(self, number: int) -> bool:
        """What came belongs to group `number`; False: nothing did."""


class Journal:
    __slots__ = (
        "_entries",
        "_gathered_bytes",
        "_packed_bytes",
        "_submit",
        "_unfolded",
        "_waiting",
        "alongside",
        "cancelled",
        "certain",
        "committed",
        "current",
        "folded",
        "grown",
        "holds",
        "last_mid",
        "last_sid",
        "mode",
        "number",
        "records",
        "unfolded_bytes",
        "wanted",
    )

    def __init__(
        self,
        submit: Callable[[int, bytes], None],
        *,
        mode: int = COMMIT,
        holds: bool = True,
        number: int = 0,
        last_mid: int = 0,
        last_sid: int = 0,
    ) -> None:
        self._submit = submit
        self.mode = mode  # what topics have that no rule speaks of
        self.holds = holds  # something may have to wait for a commit
        self.number = number  # of the group packed last
        self.committed = number
        self.folded = number
        self.last_mid = last_mid
        self.last_sid = last_sid
        self.alongside: Alongside | None = None
        self.current: Ticket | None = None  # what deliveries belong to that happen now
        self.grown: dict[Owner, None] = {}  # those with more in memory than they need
        self.wanted: list[Owner] = []  # those that wait for a page of what is stored
        self.certain = 0  # entries that wait for the disk whatever happens
        self.unfolded_bytes = 0  # packed and not in the tables
        self.records = 0  # records and bursts that were written
        self.cancelled = 0  # messages that were never written, because they were taken before
        self._entries: list[bytes | Ticket | Hold] = []
        self._gathered_bytes = 0  # about what will be packed
        self._packed_bytes = 0  # and is not committed
        self._waiting: deque[tuple[int, int, Hold | None]] = deque()
        self._unfolded: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Entries that wait to be packed."""
        return len(self._entries)

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
        return len(self._entries) > 0 or len(self.wanted) > 0 or self.has_alongside

    @property
    def has_alongside(self) -> bool:
        """Whether files have something new that goes with the next group."""
        return self.alongside is not None and self.alongside.has_new

    @property
    def is_settled(self) -> bool:
        """Whether everything that was recorded is on disk."""
        return not self._entries and self.committed == self.number

    # Messages.

    def open(self, messages: list[Message], *, holds: bool = False) -> Ticket:
        """What is delivered from now on belongs to this ticket, until `close`."""
        ticket = self.current = Ticket(self, messages, holds=holds)
        return ticket

    def close(self) -> None:
        ticket = self.current
        self.current = None
        if ticket is not None and ticket.is_wanted:
            self._entries.append(ticket)
            self.certain += ticket.is_pinned
            if ticket.messages:
                ticket.size = len(ticket.messages) * ticket.messages[0].envelope.size
            self._gathered_bytes += ticket.size

    def on_done(self, sid: int, items: list[Item], now: float) -> None:
        """These deliveries are over: acknowledged, expired or dropped."""
        pairs: list[tuple[int, int]] = []
        for message, _, n, ticket in items:
            if n:
                if ticket is not None:
                    if ticket.is_gathered:
                        ticket.on_done(sid, n, message.mid)
                        ticket.on_taken(now)
                        continue
                    ticket.on_taken(now)
                pairs.append((n, message.mid))
        if pairs:
            self._record(records.encode_done(sid, records.runs_of(pairs)))

    def on_sent(self, sid: int, sent: list[tuple[int, Item]]) -> None:
        """What waited goes out under these packet ids."""
        pairs: list[tuple[int, int]] = []
        for packet_id, (_, _, n, ticket) in sent:
            if n:
                if ticket is not None and ticket.is_gathered:
                    ticket.on_sent(sid, n, packet_id)
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
            ticket = item[3]
            if ticket is not None and item[2]:
                ticket.is_pinned = ticket.is_pinned or ticket.is_gathered
                ticket.on_taken(now)
        return True

    def pin(self, item: Item) -> None:
        """It moves to another session: what was promised stands until that is on disk."""
        ticket = item[3]
        if ticket is not None:
            ticket.is_pinned = True

    # Everything else is recorded as it happens.

    def new_sid(self) -> int:
        self.last_sid += 1
        return self.last_sid

    def on_session(self, row: SessionRow) -> None:
        self._record(records.encode_session(row))

    def on_end(self, sid: int, items: list[Item], now: float) -> None:
        """The session is over, and with it these deliveries."""
        for _, _, n, ticket in items:
            if n and ticket is not None:
                ticket.on_taken(now)
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

    def wait(self, hold: Hold) -> None:
        """Release it when everything recorded so far is on disk."""
        self._entries.append(hold)
        self.certain += 1

    # Groups.

    def may_wait(self, since: float) -> bool:
        """Forget what was taken; True when of the rest nothing is from before `since`.

        With subscribers that keep up there is always something young, and hardly ever anything
        that has to be written.
        """
        left: list[bytes | Ticket | Hold] = []
        for entry in self._entries:
            if isinstance(entry, Ticket) and not entry.is_wanted:
                self.cancelled += len(entry.messages)
                self._gathered_bytes -= entry.size
            else:
                left.append(entry)
        self._entries = left
        if not left:
            return True
        first = left[0]
        return isinstance(first, Ticket) and first.born_at > since

    def flush(self, now: float) -> None:
        """Pack what was gathered, and hand it to the store."""
        entries = self._entries
        if not entries and not self.has_alongside:
            return
        self._entries = []
        self.certain = self._gathered_bytes = 0
        out: list[bytes] = []
        holds: list[Hold] = []
        for entry in entries:
            if isinstance(entry, bytes):
                out.append(entry)
                self.records += 1
            elif isinstance(entry, Ticket):
                if not entry.is_wanted:
                    self.cancelled += len(entry.messages)
                    continue
                self.records += 1
                if entry.answer is not None and not entry.answer.is_safe:
                    holds.append(entry.answer)
                if entry.parked is not None:
                    holds += entry.parked
                    entry.parked = None
                entry.write(out)
            else:
                holds.append(entry)
        has_files = self.alongside is not None and self.alongside.take(self.number + 1)
        if out or has_files:
            blob = records.seal(out)
            self.number += 1
            self._packed_bytes += len(blob)
            self.unfolded_bytes += len(blob)
            self._unfolded.append((self.number, len(blob)))
            self._waiting.append((self.number, len(blob), None))
            self._submit(self.number, blob)
        for hold in holds:
            self._waiting.append((self.number, 0, hold))
        self.on_committed(self.committed, now)

    def on_committed(self, number: int, now: float) -> None:
        """All groups up to this number are on disk."""
        self.committed = max(self.committed, number)
        waiting = self._waiting
        while waiting and waiting[0][0] <= number:
            _, size, hold = waiting.popleft()
            self._packed_bytes -= size
            if hold is not None and not hold.is_safe:
                hold.is_safe = True
                hold.release(now)

    def on_folded(self, number: int) -> None:
        """The tables hold all groups up to this number: long queues need not stay in memory."""
        self.folded = max(self.folded, number)
        while self._unfolded and self._unfolded[0][0] <= number:
            self.unfolded_bytes -= self._unfolded.popleft()[1]
        for owner in list(self.grown):
            if owner.evict(number, QUEUE_HEAD_MESSAGES // 2):
                del self.grown[owner]
