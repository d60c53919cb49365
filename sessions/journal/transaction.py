"""Bursts of messages on their way to the journal, from their arrival until they are packed.

Ticket    a burst of messages: written, unless every stored session has taken it before
Hold      something that may go out once what was recorded before it is safe
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sessions.journal import records
from sessions.messages.message import DeliveryOptions, Message

if TYPE_CHECKING:
    from sessions.journal.journal import Journal

NEVER: Final = 1 << 62  # the number of a group that is never packed


class PendingCommit:
    """Something that waits for the records before it. Each kind acts when they are safe."""

    __slots__ = ("is_safe",)

    def __init__(self) -> None:
        self.is_safe = False

    def release(self, now: float) -> None:
        """Everything that was recorded before is on disk, or need not be."""
        raise AssertionError

    def refuse(self, now: float) -> None:
        """Refuse it: what it waits for cannot be stored, and may not be said to be safe."""
        raise AssertionError


_Part = tuple[int, int, int, int, int, int, bool, tuple[int, ...], str, list[int]]


class PublishTransaction:
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
        "logged",
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
        self.answer: PendingCommit | None = None
        self.parked: list[PendingCommit] | None = None
        self.logged: PendingCommit | None = (
            None  # an acknowledgement that waits for the log as well
        )
        self.inbound_sid = 0
        self.inbound_ids: list[int] = []
        self.retained: tuple[int, int] | None = None
        self.size = 0  # about what it takes in memory, and then in the journal
        self._is_numbered = not messages
        self._parts: list[_Part] = []
        self._sent: list[tuple[int, int, int]] | None = None
        self._gone: list[tuple[int, int, int]] | None = None

    def number_messages(self) -> None:
        """Give the messages the numbers they have in the store."""
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
        self,
        sid: int,
        n: int,
        messages: list[Message],
        grant: DeliveryOptions,
        packet_ids: list[int],
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
        """Note that one of its messages is retained, or none any longer; `before` was, or 0."""
        if message is not None:
            self.number_messages()
        self.retained = (0 if message is None else message.mid, before)
        self.is_pinned = True

    def receive(self, sid: int, packet_ids: list[int]) -> None:
        """Note the QoS 2 ids that they came under, which are remembered with them."""
        self.inbound_sid = sid
        self.inbound_ids = packet_ids
        self.is_pinned = True

    def park(self, hold: PendingCommit) -> None:
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
        """Count one that is over. When all are, nobody needs the disk. [whichever is first]"""
        self.remaining -= 1
        if not self.remaining and not self.is_pinned and self.answer is not None:
            self.answer.is_safe = True
            self.answer.release(now)

    def pack(self) -> list[bytes]:
        """The records of it, and of what became of it until now. Changes nothing."""
        out: list[bytes] = []
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
        return out

    def holds_of(self) -> list[PendingCommit]:
        """Return what waits for it and is not safe already."""
        holds = [] if self.answer is None or self.answer.is_safe else [self.answer]
        return holds if self.parked is None else [*holds, *self.parked]

    def on_packed(self, number: int) -> None:
        """Its records are in this group: memory need not hold them."""
        self.number = number
        self.parked = None
        self.messages = []
        self._parts = []
        self._sent = self._gone = None

    def give_up(self) -> list[PendingCommit]:
        """Give up what can never be stored: its messages live in memory, if anywhere.

        Returns what may not be said to be safe.
        """
        self.number = NEVER
        for message in self.messages:
            message.mid = 0
        holds = self.holds_of()
        if self.logged is not None:
            holds.append(self.logged)
        self.answer = self.parked = self.logged = None
        return holds


def _by_session(
    noted: list[tuple[int, int, int]] | None,
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Put together what was noted for one session after the other."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for sid, first, second in noted or ():
        if not found or found[-1][0] != sid:
            found.append((sid, []))
        found[-1][1].append((first, second))
    return found


Item = tuple[
    Message, DeliveryOptions, int, PublishTransaction | None
]  # a delivery: its n (0: not stored), its ticket
