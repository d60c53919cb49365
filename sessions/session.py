"""One client's Session State, and the delivery of messages to it.

    deliver   number and write what the window takes; the rest waits in the queue
    pump      the window has room, or the peer has caught up: send from the queue
    resume    a new connection: repeat what was under way, then pump

A message waits in the queue as (message, grant) and in the window as the same pair: the
grant says at which QoS and with which flags it goes to this client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mqtt_broker.codec.constants import NEVER_EXPIRES, PUBREL
from mqtt_broker.codec.encode import ID_BYTES, encode_ack
from mqtt_broker.codec.packets import Will
from qos import PACKET_ID_MAX, Receiver, Sender
from sessions.budget import Budget, QueueFull
from sessions.message import Grant, Ids, Message
from sessions.outbox import CONGESTED, NOBODY, Outbox

Waiting = tuple[Message, Grant]


class Cancellable(Protocol):
    """A deadline that somebody keeps for the session."""

    def cancel(self) -> None: ...


@dataclass(slots=True)
class Subscription:
    """What a client asked for under one Topic Filter, and for whom."""

    session: Session
    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0  # 0: none

    @property
    def identifiers(self) -> Ids:
        return (self.identifier,) if self.identifier else ()


class Session:
    """State that outlives connections: subscriptions, window, queue, inbound QoS 2 ids."""

    __slots__ = (
        "_repeats",
        "budget",
        "client_id",
        "created_at",
        "expires_at",
        "expiry_interval",
        "expiry_timer",
        "is_plain",
        "outbox",
        "overflow",
        "queue",
        "queue_bytes",
        "receiver",
        "subscriptions",
        "username",
        "version",
        "will",
        "will_at",
        "will_timer",
        "window",
    )

    def __init__(self, client_id: str, budget: Budget, *, receive_maximum: int, now: float) -> None:
        self.client_id = client_id
        self.budget = budget
        self.version = 0
        self.is_plain = True  # its last connection took shared bytes as they are
        self.username: str | None = None
        self.created_at = now
        self.expiry_interval = 0
        self.expires_at = 0.0  # when away: the end of the session; inf: never
        self.subscriptions: dict[str, Subscription] = {}
        self.window: Sender[Waiting] = Sender()
        self.receiver = Receiver(receive_maximum)
        self.queue: deque[Waiting] | None = None  # made when something waits: 600 bytes empty
        self.queue_bytes = 0
        self.will: Will | None = None
        self.will_at = 0.0  # when away: when the will is due
        self.expiry_timer: Cancellable | None = None
        self.will_timer: Cancellable | None = None
        self.outbox = NOBODY
        self.overflow: Callable[[], None] | None = None  # the queue is full and says disconnect
        self._repeats: deque[int] = (
            deque()
        )  # ids of a resumed window that the peer has no room for yet

    # What others ask.

    @property
    def is_online(self) -> bool:
        return self.outbox is not NOBODY

    @property
    def queued(self) -> int:
        return len(self.queue) if self.queue is not None else 0

    @property
    def load(self) -> int:
        return len(self.window) + self.queued

    @property
    def has_waiting(self) -> bool:
        """Whether there is anything to pump."""
        return self.queue is not None or bool(self._repeats)

    @property
    def never_expires(self) -> bool:
        return self.expiry_interval == NEVER_EXPIRES

    # Messages to the client.

    def deliver(self, messages: list[Message], grant: Grant, now: float) -> None:
        """Messages of one envelope at QoS 1 or 2: sent as far as the window goes, else queued.

        Nothing overtakes what waits, on any topic. [MQTT-4.6.0-6]
        """
        box = self.outbox
        window = self.window
        if box.state >= CONGESTED or self.queue or self._repeats:
            self._enqueue(messages, grant)
            return
        room = window.limit - len(window.unacked) - len(window.releasing)
        if room < len(messages):  # the send quota is used up. [MQTT-4.9.0-2]
            self._enqueue(messages[room:] if room > 0 else messages, grant)
            if room <= 0:
                return
            messages = messages[:room]
        if box.plain and len(messages) == 1:
            message = messages[0]
            head, section = message.envelope.layout(box.v5, grant, now)
            packet_id = window.admit_one((message, grant), grant.qos)
            box.pieces += (head, ID_BYTES[packet_id], section, message.payload)
            box.mark()
            self.budget.published += 1
            return
        ids = window.admit([(message, grant) for message in messages], grant.qos)
        if not box.plain:
            for packet_id, message in zip(ids, messages, strict=True):
                self._send_one(packet_id, message, grant, now, dup=False)
            if self.queue:  # what was too large for the peer left room in the window
                self.pump(now)
            return
        head, section = messages[0].envelope.layout(box.v5, grant, now)
        pieces = box.pieces
        for packet_id, message in zip(ids, messages, strict=True):
            pieces += (head, ID_BYTES[packet_id], section, message.payload)
        box.mark()
        self.budget.published += len(messages)

    def deliver_qos0(
        self, messages: list[Message], grant: Grant, now: float, *, may_wait: bool = False
    ) -> bool:
        """The long way for a receiver that is not plain; False when it is not sent now.

        `may_wait`: what a subscription brings from the retained messages is not dropped
        only because there is more of it than a peer can read at once.
        """
        box = self.outbox
        if self.budget.queue_qos0 and (self.queue or not self.is_online):
            self._enqueue(messages, grant)  # behind what waits already. [MQTT-4.6.0-5]
            return False
        if may_wait and self.is_online and (self.queue or box.state >= CONGESTED):
            self._enqueue(messages, grant)
            return False
        if box.state >= CONGESTED:
            if self.is_online:
                self.budget.drop("slow_reader", len(messages))
            return False
        for message in messages:
            self._send_one(0, message, grant, now, dup=False)
        return True

    def pump(self, now: float) -> None:
        """Send what waits, as far as the window and the peer allow."""
        window = self.window
        while self._repeats and self.outbox.state < CONGESTED:
            if len(window.unacked) - len(self._repeats) + len(window.releasing) >= window.limit:
                return
            packet_id = self._repeats.popleft()
            entry = window.unacked.get(packet_id)
            if entry is not None:
                # What was sent once does not expire. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
                self._send_one(packet_id, *entry, now, dup=True)
        queue = self.queue
        while queue and window.room > 0 and self.outbox.state < CONGESTED:  # [MQTT-4.9.0-2]
            message, grant = self._dequeue()
            if message.envelope.is_expired(now):  # [MQTT-3.3.2-5]
                window.burn()
                self.budget.drop("expired")
            elif grant.qos:
                packet_id = window.admit_one((message, grant), grant.qos)
                self._send_one(packet_id, message, grant, now, dup=False)
            else:
                self._send_one(0, message, grant, now, dup=False)
        if queue is not None and not queue:
            self.queue = None

    def resume(self, now: float) -> None:
        """A new connection carries on: repeat with DUP and the same ids. [MQTT-4.4.0-1]"""
        for packet_id in self.window.releasing:
            self.outbox.put(encode_ack(PUBREL, packet_id))
        self._repeats = deque(self.window.unacked)
        self.pump(now)

    def _send_one(
        self, packet_id: int, message: Message, grant: Grant, now: float, *, dup: bool
    ) -> None:
        """One PUBLISH with everything this peer asked for: aliases, size limit, DUP."""
        box = self.outbox
        envelope = message.envelope
        if dup or box.aliases is not None:
            alias, known = (0, False) if box.aliases is None else box.aliases.get(envelope.topic)
            head, section = envelope.write(
                box.v5, grant, now, alias=alias, known=known, dup=dup and grant.qos > 0
            )
        else:
            alias, known = 0, False
            head, section = envelope.layout(box.v5, grant, now)
        if (
            alias
            and not known
            and not box.fits(len(head) + 2 + len(section) + len(message.payload))
        ):
            alias = 0  # the introduction of the alias alone makes it too large
            head, section = envelope.layout(box.v5, grant, now)
        packet = b"".join((head, ID_BYTES[packet_id] if packet_id else b"", section))
        if not box.fits(len(packet) + len(message.payload)):
            # As if it had been sent and acknowledged. [MQTT-3.1.2-25]
            self.window.forget(packet_id)
            self.budget.drop("packet_too_large")
            return
        if alias and not known and box.aliases is not None:
            box.aliases.learn(envelope.topic, alias)
        box.pieces += (packet, message.payload)
        box.mark()
        self.budget.published += 1

    # The queue.

    def _enqueue(self, messages: list[Message], grant: Grant) -> None:
        """Keep messages for later, within the limits of this session and of the broker."""
        queue = self.queue
        if queue is None:
            queue = self.queue = deque()
        budget = self.budget
        for message in messages:
            size = message.envelope.size
            if size > budget.queue_bytes_max:  # nothing would be left of the queue
                budget.drop("queue_full")
                continue
            while not budget.allows(len(queue), self.queue_bytes, size):
                if budget.queue_full is QueueFull.DROP_OLDEST and queue:
                    self._dequeue()
                    budget.drop("queue_full")
                    continue
                budget.drop("queue_full")
                if budget.queue_full is QueueFull.DISCONNECT and self.overflow is not None:
                    self.overflow()
                break
            else:
                queue.append((message, grant))
                self._count(1, size)

    def _dequeue(self) -> Waiting:
        assert self.queue is not None
        waiting = self.queue.popleft()
        self._count(-1, -waiting[0].envelope.size)
        return waiting

    def _count(self, messages: int, size: int) -> None:
        self.queue_bytes += size
        self.budget.queued_messages += messages
        self.budget.queued_bytes += size

    def take_shared(self, groups: list[object]) -> list[Waiting]:
        """Hand back what came from these shared subscriptions and may go to another member.

        Everything that waits, and QoS 1 messages under way; a QoS 2 exchange that began is
        finished with this client or not at all. [MQTT-4.8.2-4], [MQTT-4.8.2-5]
        """
        taken: list[Waiting] = []
        for packet_id, entry in list(self.window.unacked.items()):
            if entry[1].group in groups and packet_id not in self.window.qos2:
                self.window.forget(packet_id)
                taken.append(entry)
        if self.queue:
            kept: deque[Waiting] = deque()
            for waiting in self.queue:
                if waiting[1].group not in groups:
                    kept.append(waiting)
                else:
                    taken.append(waiting)
                    self._count(-1, -waiting[0].envelope.size)
            self.queue = kept or None
        return taken

    def clear(self) -> None:
        """The session ends: nothing waits any longer."""
        while self.queue:
            self._dequeue()
        self.queue = None
        self.window = Sender()
        self._repeats = deque()

    # Connections.

    def attach(self, box: Outbox, receive_maximum: int) -> None:
        """The send quota begins at the peer's Receive Maximum, or at our own. [MQTT-4.9.0-1]"""
        self.outbox = box
        self.version = box.version
        self.is_plain = box.plain and not self.budget.queue_qos0
        self.window.limit = min(receive_maximum, self.budget.inflight_max, PACKET_ID_MAX - 1)

    def cancel_timers(self) -> None:
        """The client is back, or the session is over."""
        for timer in (self.expiry_timer, self.will_timer):
            if timer is not None:
                timer.cancel()
        self.expiry_timer = self.will_timer = None

    def detach(self) -> None:
        self.outbox = NOBODY
        self.overflow = None
