"""The outbound half of a session: delivery of messages to one client.

    deliver   number and write what the window takes; queue the rest
    pump      the window has room, or the peer has caught up: send what waits
    resume    a new connection: send the window again, then pump

A delivery (`Delivery`) stands in the queue and then in the window. A session that outlives its
connections has a number in the store, and records what becomes of its deliveries in the journal.

Before anything from the queue, the resend list is written: packet ids that were given out and
are still to be written on this connection, of a resumed session or kept back by a barrier. A
barrier keeps messages back until something else has left: a SUBACK, or the window of a resumed
session, which waits until it is on disk as it stands.

why long: every section changes the same window and queue, which one connection drains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqtt_broker.codec.constants import PUBREL
from mqtt_broker.codec.encode import ID_BYTES, encode_ack
from qos import PACKET_ID_MAX, Sender
from sessions.journal.journal import QUEUE_HEAD_MESSAGES, Journal
from sessions.journal.transaction import Delivery, PendingCommit, PublishTransaction
from sessions.messages.backlog import Backlog, QueueFull, QueueLimits
from sessions.messages.message import DeliveryOptions, Message
from sessions.messages.outbox import CONGESTED, NO_CONNECTION, Outbox
from sessions.queue import MessageQueue
from sessions.sources import NO_SOURCE, MessageSource, SourcedMessage, end_sourced

_PAGE_BELOW: Final = 200  # messages left in the head when more are asked for
_NONE: Final[deque[int]] = deque(maxlen=0)  # shared by all with nothing to resend: one is 600 bytes


class PendingPublish(PendingCommit):
    """QoS 2 messages that are sent once their packet ids are on disk.

    A crash could otherwise send them again under other ids.
    """

    __slots__ = ("box", "outbound", "sent")

    def __init__(self, outbound: Outbound, sent: list[tuple[int, Delivery]]) -> None:
        super().__init__()
        self.outbound = outbound
        self.box = outbound.outbox
        self.sent = sent

    def release(self, now: float) -> None:
        try:
            if self.outbound.outbox is self.box:  # a later connection sends them as it resumes
                self.outbound.send_committed(self.sent, now)
        except Exception as error:  # it costs this client its connection: the next one repeats
            self.box.owner.on_error(error, b"", now)

    def refuse(self, now: float) -> None:
        """Forget them: their publisher is told that they are refused."""
        self.outbound.forget_refused(self.sent, now)


class PendingResume(PendingCommit):
    """A resumed session's window, sent again once all of it is on disk as it stands."""

    __slots__ = ("box", "outbound")

    def __init__(self, outbound: Outbound) -> None:
        super().__init__()
        self.outbound = outbound
        self.box = outbound.outbox

    def release(self, now: float) -> None:
        if self.outbound.outbox is self.box:
            try:
                self.outbound.resume_committed(now)
            except Exception as error:
                self.box.owner.on_error(error, b"", now)


class Outbound:
    """The window, the queue and the way out of one session."""

    __slots__ = (
        "backlog",
        "barriers",
        "client_id",
        "has_group_deliveries",
        "is_plain",
        "is_resuming",
        "journal",
        "last_place",
        "never_sent",
        "on_overflow",
        "outbox",
        "queue",
        "queue_limits",
        "resend",
        "session_number",
        "sources",
        "version",
        "window",
    )

    def __init__(self, client_id: str, backlog: Backlog, journal: Journal | None) -> None:
        self.client_id = client_id
        self.backlog = backlog
        self.journal = journal
        self.queue_limits = backlog.limits  # a client may have less than others
        self.session_number = 0  # in the store; 0: it is not there
        self.last_place = 0  # of its newest stored delivery
        self.has_group_deliveries = False  # without a number, it was given what a group stores
        self.window: Sender[Delivery] = Sender()
        self.queue: MessageQueue | None = None  # made when something waits
        # Of the connection, or of the last one.
        self.outbox = NO_CONNECTION
        self.version = 0
        self.is_plain = True  # it takes shared bytes as they are
        self.on_overflow: Callable[[], None] | None = None  # when a full queue disconnects
        self.barriers = 0
        self.is_resuming = False  # one of the barriers is a PendingResume
        self.resend = _NONE
        self.never_sent: set[int] | None = None  # those of `resend` that go without DUP
        self.sources: list[MessageSource] | None = None  # readers of the log, when it has any

    @property
    def is_online(self) -> bool:
        return self.outbox is not NO_CONNECTION

    @property
    def queued(self) -> int:
        return len(self.queue) if self.queue is not None else 0

    @property
    def queue_bytes(self) -> int:
        return self.queue.bytes if self.queue is not None else 0

    @property
    def load(self) -> int:
        """Messages that wait or are under way: strategies of shared subscriptions compare it."""
        return len(self.window) + self.queued

    @property
    def has_waiting(self) -> bool:
        """Tell whether there is anything to pump."""
        return self.queue is not None or bool(self.resend)

    # Deliveries.

    def deliver(
        self,
        messages: list[Message],
        options: DeliveryOptions,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Send messages of one envelope at QoS 1 or 2 as far as the window goes; queue the rest.

        Nothing overtakes what waits, on any topic. [MQTT-4.6.0-6]
        """
        box = self.outbox
        window = self.window
        place = 0
        if txn is not None:
            if self.session_number and txn.is_recorded(messages[0]):
                place = self.last_place + 1
                self.last_place += len(messages)
            else:
                txn = None
        if box.state >= CONGESTED or self.queue is not None or self.resend or self.barriers:
            self._deliver_behind(messages, options, place, txn, now)
            return
        room = window.limit - len(window.unacked) - len(window.releasing)
        if room < len(messages):  # the send quota is used up. [MQTT-4.9.0-2]
            room = max(room, 0)
            behind = place + room if place else 0
            self._enqueue(messages[room:], options, behind, txn, now)
            if not room:
                return
            messages = messages[:room]
        if txn is not None:
            self._send_stored(messages, options, place, txn, now)
            return
        if box.plain and len(messages) == 1:
            message = messages[0]
            head, section = message.envelope.layout(box.v5, options, now)
            packet_id = window.admit_one((message, options, 0, None), options.qos)
            box.pieces += (head, ID_BYTES[packet_id], section, message.payload)
            box.mark()
            self.backlog.published += 1
            return
        ids = window.admit([(message, options, 0, None) for message in messages], options.qos)
        self.send_run(ids, messages, options, now)

    def _send_stored(
        self,
        messages: list[Message],
        options: DeliveryOptions,
        first: int,
        txn: PublishTransaction,
        now: float,
    ) -> None:
        """Number and record them; QoS 2 waits until that is on disk, QoS 1 leaves at once."""
        items: list[Delivery] = []
        for place, message in enumerate(messages, first):
            items.append((message, options, place, txn))
        ids = self.window.admit(items, options.qos)
        txn.deliver(self.session_number, first, messages, options, ids)
        if options.qos == 2 and txn.awaits_commit:
            txn.hold(PendingPublish(self, list(zip(ids, items, strict=True))))
        else:
            self.send_run(ids, messages, options, now)

    def _deliver_behind(
        self,
        messages: list[Message],
        options: DeliveryOptions,
        first: int,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Keep messages that may not leave now: in the queue, or in the window if only a SUBACK
        keeps them back, for then they have the window that they would have behind it."""
        room = 0
        if (
            self.barriers
            and not self.is_resuming
            and self.queue is None
            and self.outbox.state < CONGESTED
        ):
            room = max(0, min(self.window.room, len(messages)))
        if room < len(messages):
            self._enqueue(messages[room:], options, first + room if first else 0, txn, now)
        if not room:
            return
        messages = messages[:room]
        items: list[Delivery] = []
        for index, message in enumerate(messages):
            items.append((message, options, first + index if first else 0, txn))
        ids = self.window.admit(items, options.qos)
        if txn is not None:
            txn.deliver(self.session_number, first, messages, options, ids)
            # Retained messages of a SUBSCRIBE are stored already, and SUBACK waits for the disk.
            if options.qos == 2 and txn.awaits_commit and txn.messages:
                txn.hold(PendingPublish(self, list(zip(ids, items, strict=True))))
                return
        self._send_later(ids)

    def deliver_lent(self, item: Delivery, now: float) -> None:
        """Send a message that its group has stored if it can leave at once; queue it otherwise."""
        self.has_group_deliveries = True
        if self.can_send_now:
            message, options, _, _ = item
            packet_id = self.window.admit_one(item, options.qos)
            self.send_one(packet_id, message, options, now, dup=False)
        else:
            self._enqueue_items([item], now)

    @property
    def can_send_now(self) -> bool:
        """Tell whether a message at QoS 1 or 2 would leave at once."""
        return (
            self.outbox.state < CONGESTED
            and self.window.room > 0
            and not (self.has_waiting or self.barriers)
        )

    def deliver_qos0(
        self,
        messages: list[Message],
        options: DeliveryOptions,
        now: float,
        *,
        may_queue: bool = False,
    ) -> bool:
        """Send QoS 0 messages to a receiver that is not plain; False when that is not now.

        `may_queue`: retained messages of a subscription are not dropped only because there are
        more of them than a peer can read at once.
        """
        box = self.outbox
        if self.backlog.queue_qos0 and (self.queue is not None or not self.is_online):
            self._enqueue(messages, options, 0, None, now)  # behind what waits. [MQTT-4.6.0-5]
            return False
        if may_queue and self.is_online and (self.queue is not None or box.state >= CONGESTED):
            self._enqueue(messages, options, 0, None, now)
            return False
        if box.state >= CONGESTED:
            if self.is_online:
                self.backlog.drop("slow_reader", len(messages))
            return False
        for message in messages:
            self.send_one(0, message, options, now, dup=False)
        return True

    # Writing.

    def send_run(
        self, ids: list[int], messages: list[Message], options: DeliveryOptions, now: float
    ) -> None:
        """Write numbered messages of one envelope for the first time."""
        box = self.outbox
        if not box.plain:
            for packet_id, message in zip(ids, messages, strict=True):
                self.send_one(packet_id, message, options, now, dup=False)
            if self.queue is not None:  # what was too large for the peer left room in the window
                self.pump(now)
            return
        head, section = messages[0].envelope.layout(box.v5, options, now)
        pieces = box.pieces
        for packet_id, message in zip(ids, messages, strict=True):
            pieces += (head, ID_BYTES[packet_id], section, message.payload)
        box.mark()
        self.backlog.published += len(messages)

    def send_one(
        self, packet_id: int, message: Message, options: DeliveryOptions, now: float, *, dup: bool
    ) -> None:
        """Write one PUBLISH with everything this peer asked for: aliases, size limit, DUP."""
        box = self.outbox
        envelope = message.envelope
        if dup or box.aliases is not None:
            alias, known = (0, False) if box.aliases is None else box.aliases.get(envelope.topic)
            head, section = envelope.encode(
                box.v5, options, now, alias=alias, known=known, dup=dup and options.qos > 0
            )
        else:
            alias, known = 0, False
            head, section = envelope.layout(box.v5, options, now)
        if (
            alias
            and not known
            and not box.fits(len(head) + 2 + len(section) + len(message.payload))
        ):
            alias = 0  # the introduction of the alias alone makes it too large
            head, section = envelope.layout(box.v5, options, now)
        packet = b"".join((head, ID_BYTES[packet_id] if packet_id else b"", section))
        if not box.fits(len(packet) + len(message.payload)):
            # As if it had been sent and acknowledged. [MQTT-3.1.2-25]
            forgotten = self.window.forget(packet_id)
            self.backlog.drop("packet_too_large")
            if isinstance(message, SourcedMessage):
                message.source.on_done([message], 0, now)
            elif forgotten is not None:
                self._end([forgotten], now)
            return
        if alias and not known and box.aliases is not None:
            box.aliases.learn(envelope.topic, alias)
        box.pieces += (packet, message.payload)
        box.mark()
        self.backlog.published += 1

    def pump(self, now: float) -> None:
        """Send what waits, as far as the window and the peer allow."""
        if self.barriers or (self.resend and not self.send_resends(now)):
            return
        if self.queue is not None and not self.resend:
            self._pump_queue(self.queue, now)
        if self.sources is not None:
            self.pump_sources(now)

    def _pump_queue(self, queue: MessageQueue, now: float) -> None:
        window = self.window
        sent: list[tuple[int, Delivery]] = []
        held: list[tuple[int, Delivery]] = []
        expired: list[Delivery] = []
        begun: list[Delivery] = []
        may_hold = self.journal is not None and self.journal.awaits_commit
        while queue.head and window.room > 0 and self.outbox.state < CONGESTED:  # [MQTT-4.9.0-2]
            item = queue.popleft()
            message, options, place, _ = item
            if message.envelope.is_expired(now):  # [MQTT-3.3.2-5]
                window.skip_id()
                self.backlog.lose("expired", message, self.client_id)
                expired.append(item)
            elif options.qos:
                if place and options.qos == 2 and not self.session_number:
                    begun.append(item)  # no longer the group's to give to another
                    item = (message, options, 0, None)
                packet_id = window.admit_one(item, options.qos)
                if place and self.session_number:
                    sent.append((packet_id, item))
                if place and options.qos == 2 and may_hold:
                    held.append((packet_id, item))
                else:
                    self.send_one(packet_id, message, options, now, dup=False)
            else:
                self.send_one(0, message, options, now, dup=False)
        if self.queue is queue and not len(queue):
            self.queue = None
        journal = self.journal
        if journal is not None:
            if sent:
                journal.on_sent(self.session_number, sent)
            self._end(begun, now)
            if held:
                journal.wait(PendingPublish(self, held))
            self._end(expired, now)
            if queue.wants_page and len(queue.head) < _PAGE_BELOW and self.is_online:
                self._want_page(queue)

    # The resend list.

    def resume(self, now: float) -> None:
        """Carry on with a new connection: repeat with DUP and the same ids. [MQTT-4.4.0-1]

        What stands in the journal only goes out when it is on disk: a QoS 2 exchange that is
        repeated from its wrong half would deliver twice.
        """
        journal = self.journal
        self.resend = _NONE
        if self.never_sent is not None:
            self.never_sent &= self.window.unacked.keys()
        if (
            journal is not None
            and journal.awaits_commit
            and len(self.window)
            and not journal.is_settled
        ):
            self.barriers += 1
            self.is_resuming = True
            journal.wait(PendingResume(self))
        else:
            self.resend_window(now)

    def resume_committed(self, now: float) -> None:
        """Carry on with `resume`: the window is on disk as it stands."""
        self.barriers -= 1
        self.is_resuming = False
        self.resend_window(now)

    def resend_window(self, now: float) -> None:
        """Send a resumed session's window again, the PUBRELs first."""
        for packet_id in self.window.releasing:
            self.outbox.put(encode_ack(PUBREL, packet_id))
        self.resend = deque(self.window.unacked) or _NONE
        self.pump(now)

    def _send_later(self, packet_ids: list[int]) -> None:
        """Put packet ids into the resend list that are written for the first time from there."""
        if self.resend is _NONE:
            self.resend = deque()
        self.resend.extend(packet_ids)
        if self.never_sent is None:
            self.never_sent = set()
        self.never_sent.update(packet_ids)

    def send_resends(self, now: float, bytes_max: int = 1 << 62) -> bool:
        """Write the resend list as far as the peer allows; False when its window is full, or
        `bytes_max` are written."""
        window = self.window
        resend = self.resend
        while resend and self.outbox.state < CONGESTED:
            if bytes_max < 0 or (
                len(window.unacked) - len(resend) + len(window.releasing) >= window.limit
            ):
                return False
            packet_id = resend.popleft()
            is_first = self.never_sent is not None and packet_id in self.never_sent
            if is_first and self.never_sent is not None:
                self.never_sent.remove(packet_id)
            entry = window.unacked.get(packet_id)
            if entry is None:
                continue
            message, options, _, _ = entry
            if is_first and message.envelope.is_expired(now):
                self._expire(packet_id, message, now)
                continue
            # What was sent once does not expire. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
            self.send_one(packet_id, message, options, now, dup=not is_first)
            bytes_max -= message.envelope.size
        return True

    def send_committed(self, sent: list[tuple[int, Delivery]], now: float) -> None:
        """Send QoS 2 messages whose packet ids are on disk, behind what is kept back before."""
        unacked = self.window.unacked
        ids: list[int] = []
        messages: list[Message] = []
        options = sent[0][1][1]
        for packet_id, item in sent:
            entry = unacked.get(packet_id)
            if entry is None or entry[0] is not item[0]:
                continue  # compiled, a tuple has no identity, so the message has to do
            if item[0].envelope.is_expired(now):
                self._expire(packet_id, item[0], now)
                continue
            if self.barriers or self.resend:
                self._send_later([packet_id])
                continue
            if messages and (
                item[1] is not options or item[0].envelope is not messages[0].envelope
            ):
                self.send_run(ids, messages, options, now)
                ids, messages = [], []
            options = item[1]
            ids.append(packet_id)
            messages.append(item[0])
        if messages:
            self.send_run(ids, messages, options, now)
        if self.has_waiting:
            self.pump(now)

    def forget_refused(self, sent: list[tuple[int, Delivery]], now: float) -> None:
        """Take messages out of the window that could not be stored."""
        for packet_id, item in sent:
            entry = self.window.unacked.get(packet_id)
            if entry is not None and entry[0] is item[0]:
                self.window.forget(packet_id)
                self.backlog.drop("not_stored")
        self.pump(now)

    def _expire(self, packet_id: int, message: Message, now: float) -> None:
        """Drop a message that was numbered, and not written in time. [MQTT-3.3.2-5]"""
        item = self.window.forget(packet_id)
        self.backlog.lose("expired", message, self.client_id)
        if item is not None:
            self._end([item], now)

    # The queue.

    def _enqueue(
        self,
        messages: list[Message],
        options: DeliveryOptions,
        first: int,
        txn: PublishTransaction | None,
        now: float,
    ) -> None:
        """Keep messages for later, and record that they wait."""
        if txn is not None:
            txn.deliver(self.session_number, first, messages, options, [])
        items: list[Delivery] = []
        for index, message in enumerate(messages):
            items.append((message, options, first + index if first else 0, txn))
        self._enqueue_items(items, now)

    def _enqueue_items(self, items: list[Delivery], now: float) -> None:
        """Queue messages of one size, within the limits of this client and of the broker."""
        queue = self.queue
        if queue is None:
            queue = self.queue = MessageQueue(self.backlog)
        size = items[0][0].envelope.size
        dropped: list[Delivery] = []
        for item in items:
            is_stored = item[2] > 0 and self.session_number > 0
            if self._make_room(queue, size, dropped, is_stored=is_stored):
                queue.append(item)
            else:
                self.backlog.lose("queue_full", item[0], self.client_id)
                dropped.append(item)
        self._end(dropped, now)
        if not len(queue):
            self.queue = None
        elif self.journal is not None and queue.in_memory > QUEUE_HEAD_MESSAGES:
            self.journal.unload_later(self)

    def _make_room(
        self, queue: MessageQueue, size: int, dropped: list[Delivery], *, is_stored: bool
    ) -> bool:
        """Drop older messages if need be; True when one more of `size` bytes may wait."""
        backlog = self.backlog
        if size > self.queue_limits.bytes_max:  # nothing would be left of the queue
            return False
        while not (
            queue.allows(self.queue_limits, size) and (is_stored or backlog.has_memory(size))
        ):
            if backlog.queue_full is QueueFull.DROP_OLDEST and len(queue):
                if not queue.head:  # the oldest are in the store: they come, and then they go
                    if not queue.is_loading:
                        self._want_page(queue)
                    return True
                dropped.append(queue.popleft())
                backlog.lose("queue_full", dropped[-1][0], self.client_id)
                continue
            if backlog.queue_full is QueueFull.DISCONNECT and self.on_overflow is not None:
                self.on_overflow()
            return False
        return True

    def _want_page(self, queue: MessageQueue) -> None:
        assert self.journal is not None
        queue.load_later()
        self.journal.want_page(self)

    def on_page(self, items: list[Delivery], now: float) -> None:
        """Take the store's answer: what comes behind the head."""
        queue = self.queue
        if queue is None or not queue.is_loading:
            return  # the session ended meanwhile
        queue.load(items)
        if not len(queue):
            self.queue = None
        self.pump(now)

    @property
    def page_after(self) -> int:
        """The place behind which the stored deliveries begin that are wanted next."""
        return self.queue.stored_after if self.queue is not None else self.last_place

    def unload(self, folded: int, keep: int) -> bool:
        """Free what the store has up to group `folded`; False when more is left than should be."""
        queue = self.queue
        if queue is None:
            return True
        queue.unload(folded, keep)
        return queue.in_memory <= QUEUE_HEAD_MESSAGES

    def limit_queue(self, limits: QueueLimits) -> None:
        """Hold the queue to these limits from now on."""
        self.queue_limits = limits

    def take_back(self, groups: list[object]) -> list[Delivery]:
        """Take out what came from these shared subscriptions and may go to another member.

        Everything that waits, and QoS 1 messages under way; a QoS 2 exchange that began is
        finished with this client or not at all. [MQTT-4.8.2-4], [MQTT-4.8.2-5]
        """
        taken: list[Delivery] = []
        window = self.window
        for packet_id, entry in list(window.unacked.items()):
            if packet_id not in window.qos2 and self._is_of(entry, groups):
                window.forget(packet_id)
                taken.append(entry)
        queue = self.queue
        if queue is not None:  # the store alone never has any of these
            taken += queue.take(lambda item: self._is_of(item, groups))
            if not len(queue):
                self.queue = None
        return taken

    def _is_of(self, item: Delivery, groups: list[object]) -> bool:
        """Tell whether one of the groups, or one that it left and that still stores it, gave it."""
        group = item[1].group
        return group in groups or (group is not None and item[2] > 0 and not self.session_number)

    def _end(self, items: list[Delivery], now: float) -> None:
        """Record that these deliveries are over without the client."""
        if items and self.journal is not None:
            if self.has_group_deliveries:
                self.journal.on_group_done(items, now)
            else:
                self.journal.on_done(self.session_number, items, now)

    # Acknowledgements.

    def on_puback(self, ids: list[int], now: float, reason: int = 0) -> None:
        """End these deliveries, which frees their place in the window. [MQTT-4.3.2-3]"""
        done = self.window.on_puback(ids)
        if self.sources is not None:
            end_sourced(done, reason, now)
        if done and self.journal is not None:
            if self.session_number:
                self.journal.on_done(self.session_number, done, now)
            elif self.has_group_deliveries:
                self.journal.on_group_done(done, now)
        if self.queue is not None or self.resend or self.sources is not None:
            self.pump(now)

    def on_pubrec(self, ids: list[int], now: float) -> bool:
        """Note that the peer owns them; True when PUBREL has to wait until that is on disk."""
        if not self.session_number or self.journal is None:
            self.window.on_pubrec(ids)
            return False
        unacked = self.window.unacked
        released = [(i, unacked[i]) for i in dict.fromkeys(ids) if i in unacked]
        self.window.on_pubrec(ids)
        is_stored = bool(released) and self.journal.on_released(self.session_number, released, now)
        return is_stored or not self.journal.is_settled

    def on_pubrec_error(self, ids: list[int], now: float) -> None:
        for packet_id in ids:
            item = self.window.on_pubrec_error(packet_id)
            if item is not None:
                self._end([item], now)
        self.pump(now)

    def on_pubcomp(self, ids: list[int], now: float) -> None:
        ended = self.window.on_pubcomp(ids)
        if ended and self.session_number and self.journal is not None:
            self.journal.on_completed(self.session_number, ids)
        self.pump(now)

    # Sources.

    @property
    def source_room(self) -> int:
        """The number of QoS 1 messages that a source may give now: live messages go first."""
        is_free = self.outbox.state < CONGESTED and not (self.has_waiting or self.barriers)
        return max(0, self.window.room) if is_free else 0

    def add_source(self, source: MessageSource) -> None:
        if self.sources is None:
            self.sources = []
        self.sources.append(source)

    def remove_source(self, source: MessageSource) -> None:
        """Take a source out; messages it gave stay in the window without it.

        A message that still knew its source, which knows the session, would keep all three until
        the collector comes, which it hardly ever does: a megabyte for each reader that went.
        """
        for entry in self.window.unacked.values():
            message = entry[0]
            if isinstance(message, SourcedMessage) and message.source is source:
                message.source = NO_SOURCE
        sources = self.sources
        if sources is not None and source in sources:
            sources.remove(source)
            if not sources:
                self.sources = None

    def pump_sources(self, now: float) -> None:
        """Let sources give what there is room for; each of them is first in turn."""
        sources = self.sources
        if sources is None or not self.is_online:
            return
        for source in list(sources):
            source.on_room(now)
        if len(sources) > 1:
            sources.append(sources.pop(0))

    def send_sourced(
        self, messages: list[SourcedMessage], options: DeliveryOptions, now: float
    ) -> None:
        """Send messages of a source at QoS 1, at most `source_room` of them."""
        box = self.outbox
        window = self.window
        if not box.plain:
            for message in messages:
                packet_id = window.admit_one((message, options, 0, None), 1)
                self.send_one(packet_id, message, options, now, dup=False)
            return
        pieces = box.pieces
        v5 = box.v5
        for message in messages:
            head, section = message.envelope.layout(v5, options, now)
            packet_id = window.admit_one((message, options, 0, None), 1)
            pieces += (head, ID_BYTES[packet_id], section, message.payload)
        box.mark()
        self.backlog.published += len(messages)

    def take_back_sourced(self, source: MessageSource, partition: int = -1) -> list[SourcedMessage]:
        """Take out what a source gave and the client has not acknowledged, of one partition or
        (-1) of all."""
        taken: list[SourcedMessage] = []
        for packet_id, entry in list(self.window.unacked.items()):
            message = entry[0]
            if isinstance(message, SourcedMessage) and message.source is source:
                if partition in (-1, message.partition):
                    self.window.forget(packet_id)
                    taken.append(message)
        return taken

    # Connections, and the end.

    def attach(
        self, box: Outbox, receive_maximum: int, on_overflow: Callable[[], None] | None
    ) -> None:
        """Send through this outbox from now on.

        The send quota begins at the peer's Receive Maximum, or at our own. [MQTT-4.9.0-1]
        """
        self.outbox = box
        self.version = box.version
        self.is_plain = box.plain and not self.backlog.queue_qos0
        self.window.limit = min(receive_maximum, self.backlog.inflight_max, PACKET_ID_MAX - 1)
        self.on_overflow = on_overflow

    def detach(self) -> None:
        self.outbox = NO_CONNECTION
        self.on_overflow = None
        self.barriers = 0
        self.is_resuming = False

    def add_barrier(self) -> None:
        """Keep messages back until `remove_barrier`: something else has to leave before them."""
        self.barriers += 1

    def remove_barrier(self) -> None:
        self.barriers -= 1

    def clear(self, now: float) -> None:
        """Forget everything that waits or is under way: the session ends."""
        items = list(self.window.unacked.values())
        if self.queue is not None:
            items += self.queue.clear()
        if self.session_number and self.journal is not None:
            self.journal.on_end(self.session_number, items, now)
            self.journal.forget_queue(self)
        self.session_number = 0
        self.queue = None
        self.window = Sender()
        self.resend = _NONE
        self.never_sent = None

    # The store.

    def store(self) -> None:
        """Give the session a number, under which its deliveries are stored from now on."""
        if self.journal is not None and not self.session_number:
            self.session_number = self.journal.new_session_number()

    def restore(self, session_number: int, version: int) -> None:
        """Stand in the store under this number; `version` is that of the last connection."""
        self.session_number = session_number
        self.version = version

    def restore_place(self, place: int) -> None:
        """Give new deliveries places behind this one."""
        self.last_place = max(self.last_place, place)

    def restore_queue(self, messages: int, size: int, last_place: int) -> None:
        """Make a queue of messages that are in the store only."""
        self.queue = MessageQueue(self.backlog)
        self.queue.restore(messages, size, last_place)
        self.restore_place(last_place)

    def renumber(self, item: Delivery, qos: int) -> None:
        """Put a message into the window under a new packet id, and record that."""
        packet_id = self.window.admit_one(item, qos)
        if self.journal is not None:
            self.journal.on_sent(self.session_number, [(packet_id, item)])
