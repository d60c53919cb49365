"""Published messages on their way into the journal, and what waits for their commit.

PublishTransaction  the messages of one PUBLISH burst: written, unless every stored session
                    has acknowledged them before
PendingCommit       something that happens once the records before it are on disk
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sessions.journal import records
from sessions.messages.message import DeliveryOptions, Message

NEVER: Final = 1 << 62  # the number of a group that is never packed


class JournalNumbers:
    """The numbers given out last. Each counts up and is never used twice."""

    __slots__ = ("group", "message", "session")

    def __init__(self, group: int, message: int, session: int) -> None:
        self.group = group  # packed last
        self.message = message
        self.session = session


class PendingCommit:
    """Something that waits until the records before it are on disk."""

    __slots__ = ("is_safe",)

    def __init__(self) -> None:
        self.is_safe = False

    def release(self, now: float) -> None:
        """Act: everything recorded before is on disk, or need not be."""
        raise AssertionError

    def refuse(self, now: float) -> None:
        """Give up: what it waits for cannot be stored, so nobody may be told that it is safe."""
        raise AssertionError


class PendingCall(PendingCommit):
    """A function to call once what was recorded is on disk."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[float], None]) -> None:
        super().__init__()
        self.then = then

    def release(self, now: float) -> None:
        self.then(now)


_Part = tuple[int, int, int, int, int, int, bool, tuple[int, ...], str, list[int]]


class PublishTransaction:
    """The messages of one PUBLISH burst for stored sessions, from arrival to commit.

    `Journal.begin` gives it its place among the records, whoever delivers the messages notes
    in it what goes where, and `Journal.add` completes it.
    """

    __slots__ = (
        "_gone",
        "_held",
        "_is_numbered",
        "_numbers",
        "_parts",
        "_refusable",
        "_sent",
        "acknowledgement",
        "awaits_commit",
        "inbound_ids",
        "inbound_session",
        "is_pinned",
        "messages",
        "number",
        "remaining",
        "retained",
        "size",
    )

    def __init__(
        self, numbers: JournalNumbers, messages: list[Message], *, awaits_commit: bool
    ) -> None:
        self.number = numbers.group + 1  # of the group that it will be in
        self.messages = messages
        self.awaits_commit = awaits_commit  # PUBACK and PUBREC do, and outbound QoS 2
        self.remaining = 0  # deliveries that are not over
        self.is_pinned = False  # written even if no delivery remains
        self.acknowledgement: PendingCommit | None = None
        self.inbound_session = 0
        self.inbound_ids: list[int] = []
        self.retained: tuple[int, int] | None = None
        self.size = 0  # about what it takes in memory, and then in the journal
        self._numbers = numbers
        self._is_numbered = not messages
        self._held: list[PendingCommit] | None = None
        self._refusable: PendingCommit | None = None
        self._parts: list[_Part] = []
        self._sent: list[tuple[int, int, int]] | None = None
        self._gone: list[tuple[int, int, int]] | None = None

    def number_messages(self) -> None:
        """Give the messages the numbers they have in the store."""
        if not self._is_numbered:
            self._is_numbered = True
            number = self._numbers.message
            for message in self.messages:
                number += 1
                message.message_number = number
            self._numbers.message = number

    def is_recorded(self, message: Message) -> bool:
        """Tell whether deliveries of this message can be recorded: it is stored, or will be now."""
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
        """Note deliveries to a session, from this place on; without packet ids they wait."""
        group = options.group
        self.remaining += len(messages)
        self._parts.append(
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
        """Note that `message` is retained (None: no message is) instead of number `before`."""
        if message is not None:
            self.number_messages()
        self.retained = (0 if message is None else message.message_number, before)
        self.is_pinned = True

    def receive(self, session_number: int, packet_ids: list[int]) -> None:
        """Note the inbound QoS 2 packet ids, which are recorded with the messages."""
        self.inbound_session = session_number
        self.inbound_ids = packet_ids
        self.is_pinned = True

    def pin(self) -> None:
        """Write the transaction even if every delivery is over before."""
        self.is_pinned = True

    def acknowledge_with(self, acknowledgement: PendingCommit) -> None:
        """Release it when the transaction is on disk, or when nothing of it has to be."""
        self.acknowledgement = acknowledgement

    def hold(self, pending: PendingCommit) -> None:
        """Release it when the transaction is on disk."""
        if self._held is None:
            self._held = []
        self._held.append(pending)

    def refuse_with(self, acknowledgement: PendingCommit) -> None:
        """Refuse it if the transaction cannot be stored; somebody else releases it."""
        self._refusable = acknowledgement

    @property
    def born_at(self) -> float:
        """The time its messages came at; 0 if it only refers to stored messages."""
        return self.messages[0].envelope.received_at if self.messages else 0.0

    @property
    def is_wanted(self) -> bool:
        """Tell whether it must be written: it is pinned, or has deliveries that are not over."""
        return self.is_pinned or self.remaining > 0

    @property
    def is_gathered(self) -> bool:
        """Tell whether it is not packed yet."""
        return self.number > self._numbers.group

    def note_sent(self, session_number: int, place: int, packet_id: int) -> None:
        """Note the packet id that a queued delivery is sent under."""
        if self._sent is None:
            self._sent = []
        self._sent.append((session_number, place, packet_id))

    def note_done(self, session_number: int, place: int, message_number: int) -> None:
        """Note a delivery that is over before the transaction is written."""
        if self._gone is None:
            self._gone = []
        self._gone.append((session_number, place, message_number))

    def on_delivered(self, now: float) -> None:
        """Count a delivery that is over; after the last one nothing waits for the disk."""
        self.remaining -= 1
        acknowledgement = self.acknowledgement
        if not self.remaining and not self.is_pinned and acknowledgement is not None:
            acknowledgement.is_safe = True
            acknowledgement.release(now)

    def pack(self) -> list[bytes]:
        """Encode its records and what became of its deliveries until now. Changes nothing."""
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
        out += [records.encode_delivered(*part) for part in self._parts]
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
        """List what waits for it and has not been released."""
        acknowledgement = self.acknowledgement
        found = [] if acknowledgement is None or acknowledgement.is_safe else [acknowledgement]
        return found if self._held is None else [*found, *self._held]

    def on_packed(self, number: int) -> None:
        """Free what was packed into group `number`."""
        self.number = number
        self._held = None
        self.messages = []
        self._parts = []
        self._sent = self._gone = None

    def discard(self) -> list[PendingCommit]:
        """Give up a transaction that cannot be stored: its messages stay in memory, if anywhere.

        Returns what has to be refused.
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


# Its message and options, its place in the session (0: not stored), and its transaction.
Delivery = tuple[Message, DeliveryOptions, int, PublishTransaction | None]
