"""One client's Session State, and the delivery of messages to it.

    deliver   number and write what the window takes; the rest waits in the queue
    pump      the window has room, or the peer has caught up: send from the queue
    resume    a new connection: repeat what was under way, then pump

A message waits in the queue as (message, grant, n, transaction) and in the window as the same
item: the grant says at which QoS and with which flags it goes to this client, `n` and the
transaction what it is to the store. A session that outlives its connections has a number there,
`sid`, and records what becomes of its deliveries in the journal.

why long: both directions of a session and its queue are one class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from mqtt_broker.codec.constants import NEVER_EXPIRES
from mqtt_broker.codec.encode import ID_BYTES
from mqtt_broker.codec.packets import Will
from qos import PACKET_ID_MAX, Receiver, Sender
from sessions.group_deliveries import finish
from sessions.holds import (
    NOTHING,
    PendingPublish,
    PendingResume,
    deliver_behind,
    repeat,
    send_numbered,
)
from sessions.journal.journal import QUEUE_HEAD_MESSAGES, Item, Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.backlog import Backlog, QueueFull
from sessions.messages.message import DeliveryOptions, Ids, Message
from sessions.messages.outbox import CONGESTED, NOBODY, Outbox
from sessions.queue import MessageQueue
from sessions.session_row import returned, row_of
from sessions.sources import MessageSource, SourcedMessage, end_fed, pump_feeds

_PAGE_BELOW: Final = 200  # messages left in the head when more are asked for


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
        "bounds",
        "budget",
        "client_id",
        "created_at",
        "expires_at",
        "expiry_interval",
        "expiry_timer",
        "feeds",
        "gates",
        "has_group_deliveries",
        "is_plain",
        "is_resuming",
        "journal",
        "order",
        "outbox",
        "overflow",
        "queue",
        "receiver",
        "recorded_expiry",
        "repeats",
        "sid",
        "subscriptions",
        "unsent",
        "username",
        "version",
        "will",
        "will_at",
        "will_sid",
        "will_timer",
        "window",
    )

    def __init__(
        self, client_id: str, budget: Backlog, *, receive_maximum: int, now: float
    ) -> None:
        self.client_id = client_id
        self.budget = budget
        self.bounds = budget.bounds  # of its queue; a client may have less than others
        self.version = 0
        self.is_plain = True  # its last connection took shared bytes as they are
        self.username: str | None = None
        self.created_at = now
        self.expiry_interval = 0
        self.recorded_expiry = 0  # what the journal knows of it
        self.expires_at = 0.0  # when away: the end of the session; inf: never
        self.subscriptions: dict[str, Subscription] = {}
        self.window: Sender[Item] = Sender()
        self.receiver = Receiver(receive_maximum)
        self.queue: MessageQueue | None = None  # made when something waits
        self.journal: Journal | None = None
        self.sid = 0  # its number in the store; 0: it is not there
        self.order = 0  # the n of its newest stored delivery
        self.has_group_deliveries = False  # without a `sid`, it was given what a group stores
        self.gates = 0  # what has to leave before any message may: a Resumption, SUBACKs
        self.is_resuming = False  # one of them is a Resumption
        self.will: Will | None = None
        self.will_at = 0.0  # when away: when the will is due
        self.will_sid = 0  # the number of its will in the store, of a session that is not there
        self.expiry_timer: Cancellable | None = None
        self.will_timer: Cancellable | None = None
        self.outbox = NOBODY
        self.overflow: Callable[[], None] | None = None  # the queue is full and says disconnect
        self.feeds: list[MessageSource] | None = None  # readers of the log, when it has any
        self.repeats = NOTHING  # numbered: of a resumed window, or kept back; still to be written
        self.unsent: set[int] | None = None  # those numbered ones that were never written

    # What others ask.

    @property
    def is_online(self) -> bool:
        return self.outbox is not NOBODY

    @property
    def queued(self) -> int:
        return len(self.queue) if self.queue is not None else 0

    @property
    def queue_bytes(self) -> int:
        return self.queue.bytes if self.queue is not None else 0

    @property
    def load(self) -> int:
        return len(self.window) + self.queued

    @property
    def has_waiting(self) -> bool:
        """Whether there is anything to pump."""
        return self.queue is not None or bool(self.repeats)

    @property
    def never_expires(self) -> bool:
        return self.expiry_interval == NEVER_EXPIRES

    # Messages to the client.

    def deliver(
        self,
        messages: list[Message],
        grant: DeliveryOptions,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Send messages of one envelope at QoS 1 or 2 as far as the window goes; queue the rest.

        Nothing overtakes what waits, on any topic. [MQTT-4.6.0-6]
        """
        box = self.outbox
        window = self.window
        n = 0
        if txn is not None:
            if self.sid and txn.is_recorded(messages[0]):
                n = self.order + 1
                self.order += len(messages)
            else:
                txn = None
        if box.state >= CONGESTED or self.queue is not None or self.repeats or self.gates:
            deliver_behind(self, messages, grant, n, txn, now)
            return
        room = window.limit - len(window.unacked) - len(window.releasing)
        if room < len(messages):  # the send quota is used up. [MQTT-4.9.0-2]
            room = max(room, 0)
            behind = n + room if n else 0
            self.enqueue(messages[room:], grant, behind, txn, now)
            if not room:
                return
            messages = messages[:room]
        if txn is not None:
            self._send_stored(messages, grant, n, txn, now)
            return
        if box.plain and len(messages) == 1:
            message = messages[0]
            head, section = message.envelope.layout(box.v5, grant, now)
            packet_id = window.admit_one((message, grant, 0, None), grant.qos)
            box.pieces += (head, ID_BYTES[packet_id], section, message.payload)
            box.mark()
            self.budget.published += 1
            return
        ids = window.admit([(message, grant, 0, None) for message in messages], grant.qos)
        self.send_run(ids, messages, grant, now)

    def deliver_stored(self, item: Item, now: float) -> None:
        """A message that its group has stored: sent if the window has room, else queued."""
        self.has_group_deliveries = True
        if self.takes_now:
            message, grant, _, _ = item
            self.send_one(self.window.admit_one(item, grant.qos), message, grant, now, dup=False)
        else:
            self._enqueue_items([item], now)

    @property
    def takes_now(self) -> bool:
        """Whether a message at QoS 1 or 2 would leave at once."""
        return (
            self.outbox.state < CONGESTED
            and self.window.room > 0
            and not (self.has_waiting or self.gates)
        )

    def _send_stored(
        self,
        messages: list[Message],
        grant: DeliveryOptions,
        n: int,
        txn: PublishTransaction,
        now: float,
    ) -> None:
        """Number and record them; QoS 2 waits until that is on disk, QoS 1 leaves at once."""
        items: list[Item] = []
        for place, message in enumerate(messages, n):
            items.append((message, grant, place, txn))
        ids = self.window.admit(items, grant.qos)
        txn.deliver(self.sid, n, messages, grant, ids)
        if grant.qos == 2 and txn.awaits_commit:
            txn.hold(PendingPublish(self, list(zip(ids, items, strict=True))))
        else:
            self.send_run(ids, messages, grant, now)

    def send_run(
        self, ids: list[int], messages: list[Message], grant: DeliveryOptions, now: float
    ) -> None:
        box = self.outbox
        if not box.plain:
            for packet_id, message in zip(ids, messages, strict=True):
                self.send_one(packet_id, message, grant, now, dup=False)
            if self.queue is not None:  # what was too large for the peer left room in the window
                self.pump(now)
            return
        head, section = messages[0].envelope.layout(box.v5, grant, now)
        pieces = box.pieces
        for packet_id, message in zip(ids, messages, strict=True):
            pieces += (head, ID_BYTES[packet_id], section, message.payload)
        box.mark()
        self.budget.published += len(messages)

    def deliver_qos0(
        self, messages: list[Message], grant: DeliveryOptions, now: float, *, may_wait: bool = False
    ) -> bool:
        """The long way for a receiver that is not plain; False when it is not sent now.

        `may_wait`: what a subscription brings from the retained messages is not dropped
        only because there is more of it than a peer can read at once.
        """
        box = self.outbox
        if self.budget.queue_qos0 and (self.queue is not None or not self.is_online):
            self.enqueue(messages, grant, 0, None, now)  # behind what waits. [MQTT-4.6.0-5]
            return False
        if may_wait and self.is_online and (self.queue is not None or box.state >= CONGESTED):
            self.enqueue(messages, grant, 0, None, now)
            return False
        if box.state >= CONGESTED:
            if self.is_online:
                self.budget.drop("slow_reader", len(messages))
            return False
        for message in messages:
            self.send_one(0, message, grant, now, dup=False)
        return True

    def pump(self, now: float) -> None:
        """Send what waits, as far as the window and the peer allow."""
        if self.gates or (self.repeats and not send_numbered(self, now)):
            return
        if self.queue is not None and not self.repeats:
            self._pump_queue(self.queue, now)
        if self.feeds is not None:
            pump_feeds(self, now)

    def _pump_queue(self, queue: MessageQueue, now: float) -> None:
        window = self.window
        sent: list[tuple[int, Item]] = []
        parked: list[tuple[int, Item]] = []
        expired: list[Item] = []
        begun: list[Item] = []
        may_park = self.journal is not None and self.journal.awaits_commit
        while queue.head and window.room > 0 and self.outbox.state < CONGESTED:  # [MQTT-4.9.0-2]
            item = self._dequeue(queue)
            message, grant, n, _ = item
            if message.envelope.is_expired(now):  # [MQTT-3.3.2-5]
                window.burn()
                self.budget.lose("expired", message, self.client_id)
                expired.append(item)
            elif grant.qos:
                if n and grant.qos == 2 and not self.sid:
                    begun.append(item)  # no longer the group's to give to another
                    item = (message, grant, 0, None)
                packet_id = window.admit_one(item, grant.qos)
                if n and self.sid:
                    sent.append((packet_id, item))
                if n and grant.qos == 2 and may_park:
                    parked.append((packet_id, item))
                else:
                    self.send_one(packet_id, message, grant, now, dup=False)
            else:
                self.send_one(0, message, grant, now, dup=False)
        if self.queue is queue and not len(queue):
            self.queue = None
        journal = self.journal
        if journal is not None:
            if sent:
                journal.on_sent(self.sid, sent)
            self._forget(begun, now)
            if parked:
                journal.wait(PendingPublish(self, parked))
            self._forget(expired, now)
            if queue.wants_page and len(queue.head) < _PAGE_BELOW and self.is_online:
                self.want_page(queue)

    def want_page(self, queue: MessageQueue) -> None:
        assert self.journal is not None
        queue.is_loading = True
        self.journal.wanted.append(self)

    def on_page(self, items: list[Item], now: float) -> None:
        """The store's answer: what comes behind the head."""
        queue = self.queue
        if queue is None or not queue.is_loading:
            return  # the session ended meanwhile
        before = queue.memory_bytes
        messages, size = queue.load(items)
        self.budget.memory_bytes += queue.memory_bytes - before
        self.budget.queued_messages -= messages
        self.budget.queued_bytes -= size
        if not len(queue):
            self.queue = None
        self.pump(now)

    @property
    def page_after(self) -> int:
        """The stored deliveries that are wanted next have a greater n."""
        return self.queue.stored_after if self.queue is not None else self.order

    def evict(self, folded: int, keep: int) -> bool:
        """Let the store alone have what it has; False when more is left than should be."""
        queue = self.queue
        if queue is None:
            return True
        self.budget.memory_bytes -= queue.evict(folded, keep)
        return queue.in_memory <= QUEUE_HEAD_MESSAGES

    def resume(self, now: float) -> None:
        """A new connection carries on: repeat with DUP and the same ids. [MQTT-4.4.0-1]

        What stands in the journal only goes out when it is on disk: a QoS 2 exchange that is
        repeated from its wrong half would deliver twice.
        """
        journal = self.journal
        self.repeats = NOTHING
        if self.unsent is not None:
            self.unsent &= self.window.unacked.keys()
        if (
            journal is not None
            and journal.awaits_commit
            and len(self.window)
            and not journal.is_settled
        ):
            self.gates += 1
            self.is_resuming = True
            journal.wait(PendingResume(self))
        else:
            repeat(self, now)

    def expire(self, packet_id: int, message: Message, now: float) -> None:
        """It was numbered, and not written in time. [MQTT-3.3.2-5]"""
        item = self.window.forget(packet_id)
        self.budget.lose("expired", message, self.client_id)
        if item is not None:
            self._forget([item], now)

    def send_one(
        self, packet_id: int, message: Message, grant: DeliveryOptions, now: float, *, dup: bool
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
            forgotten = self.window.forget(packet_id)
            self.budget.drop("packet_too_large")
            if isinstance(message, SourcedMessage):
                message.feed.on_done([message], 0, now)
            elif forgotten is not None:
                self._forget([forgotten], now)
            return
        if alias and not known and box.aliases is not None:
            box.aliases.learn(envelope.topic, alias)
        box.pieces += (packet, message.payload)
        box.mark()
        self.budget.published += 1

    @property
    def feed_room(self) -> int:
        """How many messages at QoS 1 a feed may give now: what is live goes first."""
        is_free = self.outbox.state < CONGESTED and not (self.has_waiting or self.gates)
        return max(0, self.window.room) if is_free else 0

    # The queue.

    def enqueue(
        self,
        messages: list[Message],
        grant: DeliveryOptions,
        n: int,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Keep messages for later, and record that they wait."""
        if txn is not None:
            txn.deliver(self.sid, n, messages, grant, [])
        items = [(m, grant, n + index if n else 0, txn) for index, m in enumerate(messages)]
        self._enqueue_items(items, now)

    def _enqueue_items(self, items: list[Item], now: float) -> None:
        """Messages of one size, within the limits of this session and of the broker."""
        queue = self.queue
        if queue is None:
            queue = self.queue = MessageQueue()
        budget = self.budget
        size = items[0][0].envelope.size
        dropped: list[Item] = []
        for item in items:
            if not self._make_room(queue, size, dropped, is_stored=item[2] > 0 and self.sid > 0):
                budget.lose("queue_full", item[0], self.client_id)
                dropped.append(item)
                continue
            queue.append(item)
            budget.memory_bytes += size
            self._count(1, size)
        self._forget(dropped, now)
        if not len(queue):
            self.queue = None
        elif self.journal is not None and queue.in_memory > QUEUE_HEAD_MESSAGES:
            self.journal.grown[self] = None

    def _make_room(
        self, queue: MessageQueue, size: int, dropped: list[Item], *, is_stored: bool
    ) -> bool:
        """Whether one more of `size` bytes may wait, when older ones have gone if need be."""
        budget = self.budget
        if size > self.bounds.bytes_max:  # nothing would be left of the queue
            return False
        while not (
            budget.allows(self.bounds, len(queue), queue.bytes, size)
            and (is_stored or budget.has_memory(size))
        ):
            if budget.queue_full is QueueFull.DROP_OLDEST and len(queue):
                if not queue.head:  # the oldest are in the store: they come, and then they go
                    if not queue.is_loading:
                        self.want_page(queue)
                    return True
                dropped.append(self._dequeue(queue))
                budget.lose("queue_full", dropped[-1][0], self.client_id)
                continue
            if budget.queue_full is QueueFull.DISCONNECT and self.overflow is not None:
                self.overflow()
            return False
        return True

    def _dequeue(self, queue: MessageQueue) -> Item:
        item = queue.popleft()
        size = item[0].envelope.size
        self.budget.memory_bytes -= size
        self._count(-1, -size)
        return item

    def _count(self, messages: int, size: int) -> None:
        self.budget.queued_messages += messages
        self.budget.queued_bytes += size

    def _forget(self, items: list[Item], now: float) -> None:
        """These deliveries are over without the client."""
        if items and self.journal is not None:
            if self.has_group_deliveries:
                finish(self.journal, items, now)
            else:
                self.journal.on_done(self.sid, items, now)

    def clear(self, now: float) -> None:
        """The session ends: nothing waits any longer."""
        items = list(self.window.unacked.values())
        queue = self.queue
        if queue is not None:
            items += queue.items()
            self.budget.memory_bytes -= queue.memory_bytes
            self._count(-len(queue), -queue.bytes)
        if self.sid and self.journal is not None:
            self.journal.on_end(self.sid, items, now)
            self.journal.grown.pop(self, None)
        if self.will_sid and self.journal is not None:
            self.journal.on_end(self.will_sid, [], now)
        self.sid = self.will_sid = 0
        self.queue = None
        self.window = Sender()
        self.repeats = NOTHING
        self.unsent = None

    # Acknowledgements.

    def on_puback(self, ids: list[int], now: float, reason: int = 0) -> None:
        """They are over, and free their place. [MQTT-4.3.2-3]"""
        done = self.window.on_puback(ids)
        if self.feeds is not None:
            end_fed(done, reason, now)
        if done and self.journal is not None:
            if self.sid:
                self.journal.on_done(self.sid, done, now)
            elif self.has_group_deliveries:
                finish(self.journal, done, now)
        if self.queue is not None or self.repeats or self.feeds is not None:
            self.pump(now)

    def on_pubrec(self, ids: list[int], now: float) -> bool:
        """The peer owns them; True when that has to be on disk before they are released."""
        if not self.sid or self.journal is None:
            self.window.on_pubrec(ids)
            return False
        unacked = self.window.unacked
        released = [(i, unacked[i]) for i in dict.fromkeys(ids) if i in unacked]
        self.window.on_pubrec(ids)
        is_stored = bool(released) and self.journal.on_released(self.sid, released, now)
        return is_stored or not self.journal.is_settled

    def on_pubrec_error(self, ids: list[int], now: float) -> None:
        for packet_id in ids:
            item = self.window.on_pubrec_error(packet_id)
            if item is not None:
                self._forget([item], now)
        self.pump(now)

    def on_pubcomp(self, ids: list[int], now: float) -> None:
        ended = self.window.on_pubcomp(ids)
        if ended and self.sid and self.journal is not None:
            self.journal.on_completed(self.sid, ids)
        self.pump(now)

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
        self.gates = 0
        self.is_resuming = False

    # The store.

    def record(self) -> None:
        """Tell the journal what the session is now, beside its deliveries."""
        if self.sid and self.journal is not None:
            self.recorded_expiry = self.expiry_interval
            self.journal.on_session(row_of(self, self.sid))

    def record_return(self, expiry_interval: int, will: Will | None) -> None:
        """Tell the journal that the client is back and asks for this, before the client is told."""
        if self.sid and self.journal is not None:
            self.recorded_expiry = expiry_interval
            self.journal.on_session(returned(row_of(self, self.sid), expiry_interval, will))

    def record_will(self) -> None:
        """Keep the will while the client is connected, of a session that is not stored itself.

        Under a number of its own, so that nothing is delivered to it: a session that was
        connected when the broker died, and whose time is over.
        """
        journal = self.journal
        if self.will is not None and not self.sid and journal is not None:
            self.will_sid = journal.new_sid()
            journal.on_session(row_of(self, self.will_sid))
