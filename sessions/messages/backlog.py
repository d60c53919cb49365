"""Limits of waiting messages, for one session and for all, and counts of dropped messages."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from mqtt_broker.recorder.recorder import Recorder
from sessions.messages.large_queues import LargeQueues
from sessions.messages.message import DeliveryOptions, Envelope, Message
from sessions.messages.timings import Timings
from sessions.messages.work import DELIVERY, MORE, Work, WorkItem, WorkQueue


class QueueFull(enum.Enum):
    """The policy of a full queue when another message comes."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEW = "drop_new"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one queue."""

    messages_max: int
    bytes_max: int


class DeadLetterSink(Protocol):
    """Collects messages that could not be delivered, with the reason."""

    def add(self, reason: str, message: Message, client_id: str, why: str = "") -> None:
        """Add a message that was not delivered to this client; `why` may explain the reason."""


class DeliveryTracer(Protocol):
    """Traces what becomes of messages whose trace context asks for it."""

    def delivered(
        self,
        envelope: Envelope,
        options: DeliveryOptions,
        client_id: str,
        count: int,
        now: float,
        *,
        is_repeated: bool,
    ) -> None:
        """Trace messages that were written for this client."""

    def dropped(self, envelope: Envelope, client_id: str, reason: str, now: float) -> None:
        """Trace a message that this client, or group of clients, does not get."""


class StarvedSession(Protocol):
    """A session with messages that wait, though nothing is under way to its client."""

    def pump(self, now: float) -> None:
        """Send waiting messages, as far as the window and the peer allow."""


@dataclass(slots=True)
class Backlog:
    """Limits of waiting messages, and the sums over all sessions that they apply to."""

    queue_messages_max: int = 100_000
    queue_bytes_max: int = 64 << 20
    queue_total_bytes_max: int = 1 << 30
    queue_full: QueueFull = QueueFull.DROP_OLDEST
    queue_qos0: bool = False
    inflight_max: int = 65_535
    memory_bytes_max: int = 0  # of messages that are not in the store; 0: only the limits above
    queued_messages: int = 0
    queued_bytes: int = 0  # of all queued messages, in memory or not
    memory_bytes: int = 0  # of those that are in memory
    inflight_bytes_max: int = 64 << 20  # under way to one client
    inflight_total_bytes_max: int = 256 << 20
    inflight_bytes: int = 0  # under way to all clients; a message to many counts once
    owed_bytes: int = 0  # that queues give up as soon as the store has brought them
    large: LargeQueues = field(default_factory=LargeQueues)
    published: int = 0  # PUBLISH packets sent by sessions,
    published_bytes: int = 0  # and their bytes
    released_first_at: float = 0.0  # the oldest time of receipt of what a window released last
    released_last_at: float = 0.0  # and the newest
    starved: dict[StarvedSession, None] = field(default_factory=dict)  # wait for others' windows
    dropped: dict[str, int] = field(default_factory=dict)
    dead_letters: DeadLetterSink | None = None
    work: Work = field(default_factory=Work)
    recorder: Recorder | None = None  # None: nothing is recorded
    timings: Timings = field(default_factory=Timings)
    tracer: DeliveryTracer | None = None  # None: nothing is traced
    agenda: WorkQueue | None = None  # where sessions go on that have much to send; None: at once
    _limits: QueueLimits | None = None

    @property
    def limits(self) -> QueueLimits:
        """The limits of a queue without limits of its own."""
        if self._limits is None:
            self._limits = QueueLimits(self.queue_messages_max, self.queue_bytes_max)
        return self._limits

    def release(self, size: int, first_at: float, last_at: float) -> None:
        """Count bytes that a window has let go of, of messages received within these times."""
        self.inflight_bytes -= size
        self.released_first_at = first_at
        self.released_last_at = last_at

    def count_queued(self, messages: int, size: int) -> None:
        """Count messages that came into a queue, or (below 0) left it."""
        self.queued_messages += messages
        self.queued_bytes += size

    def count_memory(self, size: int) -> None:
        """Count bytes of queued messages that came into memory, or (below 0) left it."""
        self.memory_bytes += size

    def count_owed(self, size: int) -> None:
        """Count bytes that a queue gives up, or (below 0) has given up."""
        self.owed_bytes += size

    def has_room(self, size: int) -> bool:
        """Tell whether all queues together have room for one more message of `size` bytes."""
        return self.queued_bytes - self.owed_bytes + size <= self.queue_total_bytes_max

    def has_memory(self, size: int) -> bool:
        """Tell whether memory may take one more message of `size` bytes that is not stored."""
        return not self.memory_bytes_max or self.memory_bytes + size <= self.memory_bytes_max

    def leaves_room(self, waiting_bytes: int, size: int) -> bool:
        """Tell whether a queue that drops nothing old leaves as much to the others as it takes."""
        return waiting_bytes + size <= self.queue_total_bytes_max - self.queued_bytes

    @property
    def may_feed(self) -> bool:
        """Tell whether sessions wait until less is under way to others, and that is so now."""
        return len(self.starved) > 0 and self.inflight_bytes * 4 < self.inflight_total_bytes_max * 3

    def feed_starved(self, now: float) -> None:
        """Let sessions send that waited until less was under way to others."""
        for session in list(self.starved):
            if not self.may_feed:
                return
            del self.starved[session]
            self.work.spent += DELIVERY
            session.pump(now)

    def spare(self, waiting_bytes: int, size: int, now: float) -> bool:
        """Let the largest queue give up so much; False when none is larger than `waiting_bytes`."""
        largest = self.large.largest()
        if largest is None or largest.claimed_bytes <= waiting_bytes + size:
            return False
        largest.shed(size, now)
        return True

    def spare_memory(self, memory_bytes: int, size: int, now: float) -> bool:
        """Do the same for memory; False when none has more than `memory_bytes` there."""
        largest = self.large.largest_in_memory()
        if largest is None or largest.memory_bytes <= memory_bytes + size:
            return False
        before = self.memory_bytes
        largest.shed(size, now)
        return self.memory_bytes < before

    def start(self, item: WorkItem, now: float) -> None:
        """Do a slice of this now, and the rest in the next turns."""
        if item.go_on(now) == MORE:
            assert self.agenda is not None, "without an agenda nobody gives shares"
            self.agenda.add(item)

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def drop_message(self, reason: str, message: Message, client_id: str) -> None:
        """Count a message that is not delivered, and pass it on as a dead letter."""
        self.drop(reason)
        if self.dead_letters is not None:
            self.dead_letters.add(reason, message, client_id)
