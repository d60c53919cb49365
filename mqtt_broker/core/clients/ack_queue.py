"""Acknowledgements of one client that wait for the store, in their order.

The journal and its transactions know the `PendingAck` that they release, and nothing more. With
too many of them, or too many bytes, the client is not read from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK, PUBREC
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.strings import decode_varint
from mqtt_broker.core.runtime.backpressure import ACKS_OWED
from qos import Receiver
from sessions.journal.transaction import PendingCommit
from sessions.messages.outbox import Outbox
from sessions.messages.timings import Timings

WAITING_MAX: Final = 4_096
WAITING_BYTES_MAX: Final = 1 << 20
_OF_PUBLISH: Final = (PUBACK << 4, PUBREC << 4)
CHECKED_MAX: Final = 4_096  # queues looked at in one check: at most a millisecond


class AckClient(Protocol):
    """The connection that owes them."""

    last_heard_at: float  # when what they answer came

    def pause(self, reason: int) -> None: ...

    def resume(self, reason: int) -> None: ...

    def end(self, now: float, reason: int = 0, *, say: bool = True, why: str = "") -> None: ...

    def on_error(self, error: Exception, data: bytes, now: float) -> None: ...


class AckQueue:
    """The queue of one client, made when the first of its acknowledgements has to wait."""

    __slots__ = (
        "_client",
        "_is_closed",
        "_is_paused",
        "_outbox",
        "_receiver",
        "_unanswered",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self, client: AckClient, outbox: Outbox, receiver: Receiver, unanswered: Unanswered
    ) -> None:
        self._client = client
        self._outbox = outbox
        self._receiver = receiver
        self._unanswered = unanswered
        self._is_closed = False
        self._is_paused = False
        self.waiting: deque[PendingAck] = deque()
        self.waiting_bytes = 0

    def hold(self, data: bytes) -> PendingAck:
        """Keep an acknowledgement that leaves when it is safe, and all before it are."""
        waiting = self.waiting
        if not waiting:
            self._unanswered.add(self)
        ack = PendingAck(self, data, self._client.last_heard_at)
        if ack.count:
            self._unanswered.timings.hold(ack.count)
        waiting.append(ack)
        self.waiting_bytes += len(data)
        if not self._is_paused and (
            len(waiting) >= WAITING_MAX or self.waiting_bytes >= WAITING_BYTES_MAX
        ):
            self._is_paused = True
            self._client.pause(ACKS_OWED)
        return ack

    def release_ready(self, now: float) -> None:
        """Send those at the front that are safe."""
        waiting = self.waiting
        while waiting and waiting[0].is_safe:
            ack = waiting.popleft()
            self.waiting_bytes -= len(ack.data)
            self._outbox.put(ack.data)
            if ack.count:
                self._unanswered.timings.on_acknowledged(now - ack.at, ack.count)
            if ack.after is not None:
                ack.after(now)
        if (
            self._is_paused
            and len(waiting) < WAITING_MAX // 2
            and self.waiting_bytes < WAITING_BYTES_MAX // 2
        ):
            self._is_paused = False
            self._client.resume(ACKS_OWED)

    def on_error(self, error: Exception, now: float) -> None:
        """End this connection for an error, and no other's."""
        self._client.on_error(error, b"", now)

    def refuse(self, ack: PendingAck, now: float) -> None:
        """Refuse what cannot be stored; 3.x has no code for that, and its connection ends."""
        if self._is_closed:
            return
        if not self._outbox.v5:
            self._client.end(now, reasons.UNSPECIFIED_ERROR, why="its message cannot be stored")
            return
        before = len(ack.data)
        freed = ack.make_refusal()
        self.waiting_bytes += len(ack.data) - before
        for packet_id in freed:
            self._receiver.refuse(packet_id)
        ack.release(now)

    def close(self) -> None:
        """Drop them: the connection is closed. The journal has them until the next commit."""
        self._is_closed = True
        self._unanswered.forget(self)
        for ack in self.waiting:
            ack.drop()
        self.waiting.clear()
        self.waiting_bytes = 0


class PendingAck(PendingCommit):
    """An acknowledgement that waits for the store."""

    __slots__ = ("_queue", "after", "at", "count", "data")

    def __init__(self, queue: AckQueue, data: bytes, at: float) -> None:
        super().__init__()
        self._queue = queue
        self.data = data
        self.at = at  # when what it answers came
        # PUBACK or PUBREC packets, which are all as long as the first; other packets are not timed.
        self.count = len(data) // (data[1] + 2) if data[0] in _OF_PUBLISH else 0
        self.after: Callable[[float], None] | None = None  # what follows it

    def follow(self, after: Callable[[float], None] | None, *, is_safe: bool) -> None:
        """Call `after` when it has been sent; `is_safe`: it only waits for those before it."""
        self.after = after
        self.is_safe = is_safe

    def release(self, now: float) -> None:
        try:
            self._queue.release_ready(now)
        except Exception as error:
            self._queue.on_error(error, now)

    def refuse(self, now: float) -> None:
        self._queue.refuse(self, now)

    def make_refusal(self) -> list[int]:
        """Turn it into a refusal; returns the packet ids that are free again."""
        self.data, freed = refused(self.data)
        return freed

    def drop(self) -> None:
        """Let go of what it holds: the journal may keep it for a while."""
        self.data = b""
        self.after = None


class Unanswered:
    """Measures how long the oldest acknowledgement of all clients has waited.

    The queues are asked, not the journal: an acknowledgement that the journal has lost is still
    owed to its client. Only the first of each queue is noted.
    """

    __slots__ = ("_first", "since", "timings")

    def __init__(self, timings: Timings | None = None) -> None:
        self.timings = Timings() if timings is None else timings
        self.since = 0.0  # the oldest that waits was seen first then; 0: none waits
        # The acknowledgement at the front of each queue at its last check, and since when, in the
        # order of those times: whatever has not changed by the next check is the oldest.
        self._first: dict[AckQueue, tuple[PendingAck | None, float]] = {}

    def __len__(self) -> int:
        """The number of queues in which something waits."""
        return len(self._first)

    def add(self, acks: AckQueue) -> None:
        """Note that one waits from now on."""
        if acks not in self._first:
            self._first[acks] = (None, 0.0)

    def forget(self, acks: AckQueue) -> None:
        """Drop the queue of a connection that is closed: nothing is owed to it."""
        self._first.pop(acks, None)

    def check(self, now: float) -> None:
        """Find the oldest. Called about once a second, which is how exact the times are."""
        first = self._first
        for acks in list(islice(first, CHECKED_MAX)):
            ack, since = first[acks]
            waiting = acks.waiting
            if waiting and waiting[0] is ack:
                self.since = since
                return
            del first[acks]
            if waiting:
                first[acks] = (waiting[0], now)
        self.since = 0.0


def refused(data: bytes) -> tuple[bytes, list[int]]:
    """Turn PUBACKs and PUBRECs into refusals of MQTT 5; returns the ids of those that were PUBREC.

    A refusal stays as it is.
    """
    out: list[bytes] = []
    freed: list[int] = []
    at = 0
    while at < len(data):
        packet_type = data[at] >> 4
        length, start = decode_varint(data, at + 1, len(data))
        packet_id = data[start] << 8 | data[start + 1]
        if length > 2 and data[start + 2] >= 0x80:
            out.append(data[at : start + length])
        else:
            out.append(encode_ack(packet_type, packet_id, reasons.UNSPECIFIED_ERROR))
            if packet_type == PUBREC:
                freed.append(packet_id)
        at = start + length
    return b"".join(out), freed
