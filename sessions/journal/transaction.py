"""Published messages on their way into the journal, and actions that wait for their commit.

PublishTransaction  the messages of one PUBLISH burst: written, unless every stored session has
                    acknowledged them before
PendingCommit       an action for the time when the records before it are on disk
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sessions.journal import records
from sessions.messages.message import DeliveryOptions, Message

NEVER: Final = 1 << 62  # the number of a group that is never packed


class JournalNumbers:
    """The numbers assigned last. Each counts up and is never reused."""

    __slots__ = ("group", "message", "session")

    def __init__(self, group: int, message: int, session: int) -> None:
        self.group = group  # the last packed group
        self.message = message
        self.session = session

    def reserve_messages(self, count: int) -> int:
        """Assign so many numbers for messages; return the one before them."""
        base = self.message
        self.message += count
        return base


class PendingCommit:
    """An action that waits until the records before it are on disk."""

    __slots__ = ("is_safe",)

    def __init__(self) -> None:
        self.is_safe = False

    def release(self, now: float) -> None:
        """Act: all records before it are on disk, or need not be."""
        raise AssertionError

    def refuse(self, now: float) -> None:
        """Act on a failure: the records it waits for cannot be stored."""
        raise AssertionError


class PendingCall(PendingCommit):
    """A function to call once the records before it are on disk."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[float], None]) -> None:
        super().__init__()
        self.then = then

    def release(self, now: float) -> None:
        self.then(now)


PART_BYTES: Final = 250  # in memory, of deliveries to one session
_Part = tuple[int, int, int, int, int, int, bool, tuple[int, ...], str, list[int]]


class PublishTransaction:
    """The messages of one PUBLISH burst for stored sessions, from arrival to commit.

    `Journal.begin` gives it its place among the records, the delivering code adds each delivery,
    and `Journal.add` completes it.

    One whose messages are delivered in many turns is *open* meanwhile (`Journal.open`). It gets its
    place when it is complete, so that no other record waits for it. What happens to its deliveries
    before is noted in it, as in any transaction that is not written yet.
    """

    __slots__ = (
        "_ended",
        "_gone",
        "_held",
        "_is_numbered",
        "_numbers",
        "_refusable",
        "_sent",
        "acknowledgement",
        "awaits_commit",
        "inbound_ids",
        "inbound_session",
        "is_open",
        "is_pinned",
        "messages",
        "number",
        "parts",
        "remaining",
        "retained",
        "size",
    )

    def __init__(
        self, numbers: JournalNumbers, messages: list[Message], *, awaits_commit: bool
    ) -> None:
        self.number = numbers.group + 1  # of its group
        self.messages = messages
        self.awaits_commit = awaits_commit  # PUBACK, PUBREC and outbound QoS 2 wait for the commit
        self.remaining = 0  # deliveries that have not ended
        self.is_pinned = False  # written even if no delivery remains
        self.acknowledgement: PendingCommit | None = None
        self.inbound_session = 0
        self.inbound_ids: list[int] = []
        self.retained: tuple[int, int] | None = None
        self.size = 0  # approximate bytes in memory, and later in the journal
        self._numbers = numbers
        self._is_numbered = not messages
        self._held: list[PendingCommit] | None = None
        self._refusable: PendingCommit | None = None
        self.parts: list[_Part] = []  # deliveries, to one session each
        self._sent: list[tuple[int, int, int]] | None = None
        self._gone: list[tuple[int, int, int]] | None = None
        self.is_open = False
        self._ended: set[int] | None = None  # sessions that are over, whose end is recorded before

    def open(self) -> None:
        """Be in no group until `close`."""
        self.is_open = True
        self.number = NEVER

    def close(self) -> None:
        """Be in the next group, without what was noted for sessions that have ended."""
        self.is_open = False
        self.number = self._numbers.group + 1
        ended = self._ended
        if ended is not None:
            self.parts = [part for part in self.parts if part[0] not in ended]
            self._sent = [noted for noted in self._sent or () if noted[0] not in ended]
            self._gone = [noted for noted in self._gone or () if noted[0] not in ended]
            self._ended = None

    def on_session_end(self, session_number: int) -> None:
        """Forget what was noted for a session, whose end stands before it."""
        if self._ended is None:
            self._ended = set()
        self._ended.add(session_number)

    def number_messages(self) -> None:
        """Assign the messages their numbers in the store."""
        if not self._is_numbered:
            self._is_numbered = True
            number = self._numbers.message
            for message in self.messages:
                number += 1
                message.message_number = number
            self._numbers.message = number

    def is_recorded(self, message: Message) -> bool:
        """Tell whether deliveries of this message can be recorded: it is or will be stored."""
        self.number_messages()
        return message.message_number > 0

    def deliver(
        self,
        session_number: int,
        place: int,
        messages: list[Message],
        options: DeliveryOptions,
        packet_ids: list[int],
    ) -> None:
        """Add deliveries to a session, from this place on; without packet ids they are queued."""
        group = options.group
        self.remaining += len(messages)
        self.parts.append(
            (
                session_number,
                place,
                messages[0].message_number,
                len(messages),
                messages[0].envelope.size,
                options.qos,
                options.retain,
                options.subscription_ids,
                "" if group is None else group.name,
                packet_ids,
            )
        )

    def retain(self, message: Message | None, before: int) -> None:
        """Note that `message` (None: no message) replaces the retained message `before`."""
        if message is not None:
            self.number_messages()
        self.retained = (0 if message is None else message.message_number, before)
        self.is_pinned = True

    def receive(self, session_number: int, packet_ids: list[int]) -> None:
        """Add the inbound QoS 2 packet ids, which are recorded with the messages."""
        self.inbound_session = session_number
        self.inbound_ids = packet_ids
        self.is_pinned = True

    def pin(self) -> None:
        """Write the transaction even if all deliveries end before."""
        self.is_pinned = True

    def acknowledge_with(self, acknowledgement: PendingCommit) -> None:
        """Release `acknowledgement` when the transaction is on disk, or need not be."""
        self.acknowledgement = acknowledgement

    def hold(self, pending: PendingCommit) -> None:
        """Release `pending` when the transaction is on disk."""
        if self._held is None:
            self._held = []
        self._held.append(pending)

    def refuse_with(self, acknowledgement: PendingCommit) -> None:
        """Refuse `acknowledgement` if the transaction cannot be stored; do not release it."""
        self._refusable = acknowledgement

    @property
    def born_at(self) -> float:
        """The time at which its messages arrived; 0 if it only refers to stored messages."""
        return self.messages[0].envelope.received_at if self.messages else 0.0

    @property
    def is_wanted(self) -> bool:
        """Tell whether it must be written: it is pinned, or has deliveries that have not ended."""
        return self.is_pinned or self.remaining > 0

    @property
    def is_gathered(self) -> bool:
        """Tell whether it is not yet packed."""
        return self.number > self._numbers.group

    def note_sent(self, session_number: int, place: int, packet_id: int) -> None:
        """Add the packet id with which a queued delivery is sent."""
        if self._sent is None:
            self._sent = []
        self._sent.append((session_number, place, packet_id))

    def note_done(self, session_number: int, place: int, message_number: int) -> None:
        """Note the end of a delivery before the transaction is written."""
        if self._gone is None:
            self._gone = []
        self._gone.append((session_number, place, message_number))

    def on_delivered(self, now: float) -> None:
        """Count an ended delivery; after the last one nothing waits for the commit."""
        self.remaining -= 1
        acknowledgement = self.acknowledgement
        if not self.remaining and not self.is_pinned and acknowledgement is not None:
            acknowledgement.is_safe = True
            acknowledgement.release(now)

    def pack(self) -> list[bytes]:
        """Encode its records, with the progress of its deliveries. Changes nothing."""
        out: list[bytes] = []
        if self.messages and self._is_numbered:
            envelope = self.messages[0].envelope
            out.append(
                records.encode_stored(
                    self.messages[0].message_number,
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
        out += [records.encode_delivered(*part) for part in self.parts]
        if self.retained is not None:
            out.append(records.encode_retained(*self.retained))
        if self.inbound_ids:
            out.append(records.encode_ids(records.RECEIVED, self.inbound_session, self.inbound_ids))
        for number, sent in _by_session(self._sent):
            out.append(records.encode_sent(number, sent))
        for number, gone in _by_session(self._gone):
            out.append(records.encode_done(number, records.runs_of(gone)))
        return out

    def pending(self) -> list[PendingCommit]:
        """List the pending commits that wait for it and have not been released."""
        acknowledgement = self.acknowledgement
        found = [] if acknowledgement is None or acknowledgement.is_safe else [acknowledgement]
        return found if self._held is None else [*found, *self._held]

    def on_packed(self, number: int) -> None:
        """Free its contents, which are packed in group `number`."""
        self.number = number
        self._held = None
        self.messages = []
        self.parts = []
        self._sent = self._gone = None

    def discard(self) -> list[PendingCommit]:
        """Discard a transaction that cannot be stored; return the pending commits to refuse.

        Its messages may stay in memory.
        """
        self.number = NEVER
        for message in self.messages:
            message.message_number = 0
        found = self.pending()
        if self._refusable is not None:
            found.append(self._refusable)
        self.acknowledgement = self._held = self._refusable = None
        return found


def _by_session(
    noted: list[tuple[int, int, int]] | None,
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Group consecutive entries of the same session."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for number, first, second in noted or ():
        if not found or found[-1][0] != number:
            found.append((number, []))
        found[-1][1].append((first, second))
    return found


# Message and options, place in the session (0: not stored), and transaction.
Delivery = tuple[Message, DeliveryOptions, int, PublishTransaction | None]
