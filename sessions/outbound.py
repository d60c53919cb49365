"""The outbound half of a session: delivery of messages to one client.

    deliver   number and write as many messages as the window takes; queue the rest
    pump      send waiting messages: the window has room, or the peer has read
    resume    on a new connection, send the window again, then pump

A session sends no more than a share of its waiting messages in a turn, and the agenda goes on with
the next ones: new messages wait behind them, as they do behind a full window.

A delivery (`Delivery`) is first in the queue and then in the window. A session that outlives its
connections has a number in the store, and records the progress of its deliveries in the journal.

The resend list is written before the queue. It has packet ids that are assigned and still to be
written on this connection: those of a resumed session, and those held back by a barrier. A barrier
holds messages back until something else has been sent: a SUBACK, or the window of a resumed
session, which must be on disk first.

why long: every section changes the same window and queue, which one connection drains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqtt_broker.codec.constants import PUBREL
from mqtt_broker.codec.encode import ID_BYTES, encode_ack
from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.runs import ClientRuns
from qos import PACKET_ID_MAX
from sessions.forgotten import ForgottenDeliveries
from sessions.journal.journal import QUEUE_HEAD_MESSAGES, Journal
from sessions.journal.transaction import Delivery, PendingCommit, PublishTransaction
from sessions.messages.backlog import Backlog, QueueFull, QueueLimits
from sessions.messages.message import DeliveryOptions, Message
from sessions.messages.outbox import CONGESTED, NO_CONNECTION, Outbox
from sessions.messages.work import DELIVERY, DONE
from sessions.queue import MessageQueue
from sessions.sources import NO_SOURCE, MessageSource, SourcedMessage, end_sourced
from sessions.window import FREE_BYTES, Window

_PAGE_BELOW: Final = 200  # messages left in the head when the next page is requested
_WRITE_BYTES: Final = 256 << 10  # of the queue, sent before a check whether the peer reads
_NONE: Final[deque[int]] = deque(maxlen=0)  # the empty resend list, shared: a deque has 600 bytes


class PendingPublish(PendingCommit):
    """QoS 2 messages that are sent once their packet ids are on disk.

    Otherwise the broker could send them again with other ids after a crash.
    """

    __slots__ = ("box", "outbound", "sent")

    def __init__(self, outbound: Outbound, sent: list[tuple[int, Delivery]]) -> None:
        super().__init__()
        self.outbound = outbound
        self.box = outbound.outbox
        self.sent = sent

    def release(self, now: float) -> None:
        try:
            if self.outbound.outbox is self.box:  # else `resume` of the later connection sends them
                self.outbound.send_committed(self.sent, now)
        except Exception as error:  # close this connection; the next one sends again
            self.box.owner.on_error(error, b"", now)

    def refuse(self, now: float) -> None:
        """Forget the messages: their publisher gets a refusal."""
        self.outbound.forget_refused(self.sent, now)


class PendingResume(PendingCommit):
    """The window of a resumed session, sent again once its state is on disk."""

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


def _is_open(item: Delivery) -> bool:
    """Tell whether a delivery belongs to a transaction that has no place in the journal yet."""
    txn = item[3]
    return txn is not None and txn.is_open


class Outbound(ClientRuns):
    """The window, the queue and the outbox of one session."""

    __slots__ = (
        "backlog",
        "barriers",
        "dropped",
        "has_group_deliveries",
        "is_clearing",
        "is_on_agenda",
        "is_over",
        "is_plain",
        "is_restored",
        "is_resuming",
        "journal",
        "last_place",
        "may_read",
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
        super().__init__(client_id)
        self.backlog = backlog
        self.journal = journal
        self.queue_limits = backlog.limits  # a client may have limits of its own
        self.session_number = 0  # in the store; 0: not stored
        self.last_place = 0  # of its newest stored delivery
        self.dropped = 0  # messages for it, whatever the reason
        self.has_group_deliveries = False  # without a number, it has messages that a group stores
        self.is_over = False  # the session has ended: nothing is delivered to it
        self.is_clearing = False  # an operator drops what waits
        self.is_on_agenda = False  # it has more to send than one turn allowed
        self.window = Window(backlog)
        self.queue: MessageQueue | None = None  # created with the first message that waits
        self.is_restored = False  # its queue is from before the client's rights were known
        self.may_read: Callable[[str], bool] | None = None  # checks the topics of such a queue
        # Of the current connection, or of the last one.
        self.outbox = NO_CONNECTION
        self.version = 0
        self.is_plain = True  # it takes the shared bytes of a QoS 0 message unchanged
        self.on_overflow: Callable[[], None] | None = None  # when a full queue disconnects
        self.barriers = 0
        self.is_resuming = False  # one of the barriers is a PendingResume
        self.resend = _NONE
        self.never_sent: set[int] | None = None  # those of `resend` that are sent without DUP
        self.sources: list[MessageSource] | None = None  # readers of the telemetry log, if any

    @property
    def is_online(self) -> bool:
        return self.outbox is not NO_CONNECTION

    def count_dropped(self, count: int) -> None:
        """Count messages for this client that were dropped before they came here."""
        self.dropped += count

    @property
    def queued(self) -> int:
        return len(self.queue) if self.queue is not None else 0

    @property
    def queue_bytes(self) -> int:
        return self.queue.bytes if self.queue is not None else 0

    @property
    def load(self) -> int:
        """The messages queued or in flight, for strategies of shared subscriptions."""
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
        """Send messages of one envelope at QoS 1 or 2 while the window has room; queue the rest.

        No message overtakes waiting ones, on any topic. [MQTT-4.6.0-6]
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
        backlog = self.backlog
        if (
            window.bytes > FREE_BYTES
            or backlog.inflight_bytes * 2 > backlog.inflight_total_bytes_max
        ):
            room = window.room_for(messages[0].envelope.size)
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
            box.messages_out += 1
            backlog.published += 1
            backlog.published_bytes += len(head) + 2 + len(section) + len(message.payload)
            tracer = backlog.tracer
            if tracer is not None:
                tracer.delivered(
                    message.envelope, options, self.client_id, 1, now, is_repeated=False
                )
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
        """Number and record messages; QoS 1 is sent at once, QoS 2 after the commit."""
        items: list[Delivery] = []
        for place, message in enumerate(messages, first):
            items.append((message, options, place, txn))
        ids = self.window.admit(items, options.qos)
        txn.deliver(self.session_number, first, messages, options, ids)
        if options.qos == 2 and (txn.awaits_commit or txn.is_open):
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
        """Keep messages that may not be sent now.

        They go into the queue, or into the window if only a SUBACK holds them back: after it they
        would be in the window.
        """
        room = 0
        if (
            self.barriers
            and not self.is_resuming
            and self.queue is None
            and self.outbox.state < CONGESTED
        ):
            room = min(self.window.room_for(messages[0].envelope.size), len(messages))
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
            # Retained messages of a SUBSCRIBE are stored already; SUBACK waits for their commit.
            if options.qos == 2 and (txn.awaits_commit or txn.is_open) and txn.messages:
                txn.hold(PendingPublish(self, list(zip(ids, items, strict=True))))
                return
        self._send_later(ids)

    def deliver_lent(self, item: Delivery, now: float) -> None:
        """Send a message that its group has stored, or queue it if it cannot be sent at once."""
        self.has_group_deliveries = True
        if self.can_send_now:
            message, options, _, _ = item
            packet_id = self.window.admit_one(item, options.qos)
            self.send_one(packet_id, message, options, now, dup=False)
        else:
            self._enqueue_items([item], now)

    @property
    def can_send_now(self) -> bool:
        """Tell whether a message at QoS 1 or 2 would be sent at once."""
        return (
            self.outbox.state < CONGESTED
            and self.window.room_for(1) > 0
            and not (self.has_waiting or self.barriers)
        )

    def deliver_qos0(self, messages: list[Message], options: DeliveryOptions, now: float) -> bool:
        """Send QoS 0 messages to a receiver that is not plain; return False if it cannot be now."""
        box = self.outbox
        if self.backlog.queue_qos0 and (self.queue is not None or not self.is_online):
            self._enqueue(messages, options, 0, None, now)  # in order. [MQTT-4.6.0-5]
            return False
        if box.state >= CONGESTED:
            if self.is_online:
                self.dropped += len(messages)
                self.backlog.drop("slow_reader", len(messages))
                self._record_dropped("slow_reader", messages[0], now, len(messages))
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
        box.messages_out += len(messages)
        size = len(head) + 2 + len(section) + messages[0].envelope.payload_bytes
        self.count_published(len(messages), size * len(messages))
        tracer = self.backlog.tracer
        if tracer is not None:
            tracer.delivered(
                messages[0].envelope, options, self.client_id, len(messages), now, is_repeated=False
            )

    def count_published(self, packets: int, size: int) -> None:
        """Count PUBLISH packets that were written, and their bytes."""
        backlog = self.backlog
        backlog.published += packets
        backlog.published_bytes += size

    def send_one(
        self, packet_id: int, message: Message, options: DeliveryOptions, now: float, *, dup: bool
    ) -> None:
        """Write one PUBLISH, with its Topic Alias, if the peer's maximum size allows it."""
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
            alias = 0  # only the new alias makes the packet too large
            head, section = envelope.layout(box.v5, options, now)
        packet = b"".join((head, ID_BYTES[packet_id] if packet_id else b"", section))
        if not box.fits(len(packet) + len(message.payload)):
            # As if it had been sent and acknowledged. [MQTT-3.1.2-25]
            forgotten = self.window.forget(packet_id)
            self.dropped += 1
            self.backlog.drop("packet_too_large")
            self._record_dropped("packet_too_large", message, now)
            if isinstance(message, SourcedMessage):
                message.source.on_done([message], 0, now)
            elif forgotten is not None:
                self._end([forgotten], now)
            return
        if alias and not known and box.aliases is not None:
            box.aliases.learn(envelope.topic, alias)
        box.pieces += (packet, message.payload)
        box.mark()
        box.messages_out += 1
        self.count_published(1, len(packet) + len(message.payload))
        tracer = self.backlog.tracer
        if tracer is not None:
            tracer.delivered(envelope, options, self.client_id, 1, now, is_repeated=dup)

    def go_on(self, now: float) -> int:
        """Send more of what was too much for one turn; see `WorkItem`."""
        self.is_on_agenda = False
        try:
            self.pump(now)
        except Exception as error:  # it costs this client its connection
            self.outbox.owner.on_error(error, b"", now)
        return DONE

    def _go_on_later(self) -> bool:
        """Stop here if the share of work is used up, and go on in the next turn."""
        agenda = self.backlog.agenda
        if agenda is None or not self.backlog.work.is_over:
            return False
        if not self.is_on_agenda:
            self.is_on_agenda = True
            agenda.add(self)
        return True

    def pump(self, now: float) -> None:
        """Send waiting messages, as far as the window, the peer and the share of work allow."""
        if self.barriers or (self.resend and not self.send_resends(now)):
            return
        if self.queue is not None and not self.resend:
            self._pump_queue(self.queue, now)
        if self.sources is not None:
            self.pump_sources(now)

    def _pump_queue(self, queue: MessageQueue, now: float) -> None:
        window = self.window
        work = self.backlog.work
        timings = self.backlog.timings
        sent: list[tuple[int, Delivery]] = []
        held: list[tuple[int, Delivery]] = []
        expired: list[Delivery] = []
        begun: list[Delivery] = []
        may_hold = self.journal is not None and self.journal.awaits_commit
        may_read = self.may_read
        room = self._room_until_seen()
        numbered = 0  # in the window now, received from `first_at` to `last_at`
        first_at = last_at = 0.0
        while queue.head and self.outbox.state < CONGESTED:
            if not window.room_for(queue.head[0][0].envelope.size):  # [MQTT-4.9.0-2]
                self._wait_for_others(window)
                break
            item = queue.popleft()
            work.spent += DELIVERY
            message, options, place, _ = item
            if message.envelope.is_expired(now):  # [MQTT-3.3.2-5]
                window.skip_id()
                self.dropped += 1
                self.backlog.drop_message("expired", message, self.client_id)
                self._record_dropped("expired", message, now)
                expired.append(item)
            elif may_read is not None and not may_read(message.envelope.topic):
                self.dropped += 1
                self.backlog.drop("not_authorized")
                self._record_dropped("not_authorized", message, now)
                expired.append(item)
            elif options.qos:
                if place and options.qos == 2 and not self.session_number:
                    begun.append(item)  # from now on the group may not give it to another member
                    item = (message, options, 0, None)
                packet_id = window.admit_one(item, options.qos)
                received_at = message.envelope.received_at
                first_at = min(first_at, received_at) if numbered else received_at
                last_at = max(last_at, received_at)
                numbered += 1
                if place and self.session_number:
                    sent.append((packet_id, item))
                if place and options.qos == 2 and (may_hold or _is_open(item)):
                    held.append((packet_id, item))
                else:
                    self.send_one(packet_id, message, options, now, dup=False)
                    timings.on_late(now - message.envelope.received_at)
            else:
                self.send_one(0, message, options, now, dup=False)
                timings.on_late(now - message.envelope.received_at)
            room -= len(message.payload)
            if room < 0:
                room = self._see_whether_it_reads(now)
            if work.spent >= work.limit and self._go_on_later():
                break
        self._drop_queue_if_empty()
        recorder = self.backlog.recorder
        if recorder is not None and numbered:
            recorder.sent(self, numbered, first_at, last_at, now)
        journal = self.journal
        if journal is not None:
            if sent and self.session_number:
                journal.on_sent(self.session_number, sent)
            self._end(begun, now)
            if held:
                self._hold_until_stored(held, journal)
            self._end(expired, now)
            if queue.wants_page and len(queue.head) < _PAGE_BELOW and self.is_online:
                self.want_page(queue)

    def _hold_until_stored(self, held: list[tuple[int, Delivery]], journal: Journal) -> None:
        """Send these QoS 2 messages when they are on disk, those of open transactions too."""
        others: list[tuple[int, Delivery]] = []
        for sent in held:
            txn = sent[1][3]
            if txn is not None and txn.is_open:
                txn.hold(PendingPublish(self, [sent]))
            else:
                others.append(sent)
        if others:
            journal.wait(PendingPublish(self, others))

    def _wait_for_others(self, window: Window) -> None:
        """Be pumped when others have less under way: no acknowledgement of its own will do it."""
        if not window.unacked and not window.releasing:
            self.backlog.starved[self] = None

    # The resend list.

    def resume(self, now: float) -> None:
        """Resume on a new connection: send again with DUP and the same ids. [MQTT-4.4.0-1]

        State that is in the journal only must be on disk first: a QoS 2 exchange that resumed in
        the wrong half after a crash would deliver twice.
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
        """Continue `resume` after the commit of the window's state."""
        self.barriers -= 1
        self.is_resuming = False
        self.resend_window(now)

    def resend_window(self, now: float) -> None:
        """Send the window of a resumed session again, PUBREL packets first."""
        for packet_id in self.window.releasing:
            self.outbox.put(encode_ack(PUBREL, packet_id))
        unacked = self.window.unacked
        if self.journal is not None and self.journal.has_open:
            held = [
                (i, unacked[i]) for i in unacked if i in self.window.qos2 and _is_open(unacked[i])
            ]
            self._hold_until_stored(held, self.journal)
            kept_back = {packet_id for packet_id, _ in held}
            self.resend = deque(i for i in unacked if i not in kept_back) or _NONE
        else:
            self.resend = deque(unacked) or _NONE
        self.pump(now)

    def _send_later(self, packet_ids: list[int]) -> None:
        """Append packet ids to the resend list that have not been sent before."""
        if self.resend is _NONE:
            self.resend = deque()
        self.resend.extend(packet_ids)
        if self.never_sent is None:
            self.never_sent = set()
        self.never_sent.update(packet_ids)

    def send_resends(self, now: float, bytes_max: int = 1 << 62) -> bool:
        """Write the resend list; return False if the peer is congested or `bytes_max` written."""
        window = self.window
        resend = self.resend
        room = self._room_until_seen()
        work = self.backlog.work
        recorder = self.backlog.recorder
        next_id = 0  # of a message that was sent behind the last one
        while resend and self.outbox.state < CONGESTED:
            if bytes_max < 0 or (
                len(window.unacked) - len(resend) + len(window.releasing) >= window.limit
            ):
                return False
            packet_id = resend.popleft()
            work.spent += DELIVERY
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
            # A message that was sent before does not expire. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
            self.send_one(packet_id, message, options, now, dup=not is_first)
            if recorder is not None and not is_first:
                received_at = message.envelope.received_at
                recorder.resent(self, received_at, now, follows=packet_id == next_id)
                next_id = packet_id + 1
            bytes_max -= message.envelope.size
            room -= len(message.payload)
            if room < 0:
                room = self._see_whether_it_reads(now)
            if work.spent >= work.limit and resend and self._go_on_later():
                return False
        return True

    def _room_until_seen(self) -> int:
        """Return how many bytes to send before the next check whether the peer reads."""
        return min(_WRITE_BYTES, self.outbox.outboxes.share_bytes)

    def _see_whether_it_reads(self, now: float) -> int:
        """Write the outbox, which becomes congested if the peer does not read."""
        box = self.outbox
        try:
            box.outboxes.write(box, now)
        except Exception as error:  # close this connection, as at the end of the turn
            box.owner.on_error(error, b"", now)
        return self._room_until_seen()

    def send_committed(self, sent: list[tuple[int, Delivery]], now: float) -> None:
        """Send QoS 2 messages whose packet ids are on disk, after those that are held back."""
        unacked = self.window.unacked
        ids: list[int] = []
        messages: list[Message] = []
        options = sent[0][1][1]
        for packet_id, item in sent:
            entry = unacked.get(packet_id)
            if entry is None or entry[0] is not item[0]:
                continue  # a compiled tuple has no identity, so compare the message
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
        """Remove messages from the window that could not be stored."""
        for packet_id, item in sent:
            entry = self.window.unacked.get(packet_id)
            if entry is not None and entry[0] is item[0]:
                self.window.forget(packet_id)
                self.backlog.drop("not_stored")
                self._record_dropped("not_stored", item[0], now)
        self.pump(now)

    def _expire(self, packet_id: int, message: Message, now: float) -> None:
        """Drop a message that has a packet id and expired before it was sent. [MQTT-3.3.2-5]"""
        item = self.window.forget(packet_id)
        self.dropped += 1
        self.backlog.drop_message("expired", message, self.client_id)
        self._record_dropped("expired", message, now)
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
        """Queue messages, and record that they wait."""
        if txn is not None:
            txn.deliver(self.session_number, first, messages, options, [])
        items: list[Delivery] = []
        for index, message in enumerate(messages):
            items.append((message, options, first + index if first else 0, txn))
        self._enqueue_items(items, now)

    def _enqueue_items(self, items: list[Delivery], now: float) -> None:
        """Queue messages of one size, within the limits of this client and of the broker."""
        if self.is_over:
            self._end(items, now)
            return
        queue = self.queue
        is_first = queue is None
        if queue is None:
            queue = self.queue = MessageQueue(self.backlog, self)
        if self.backlog.recorder is not None:
            self._record_queued(items, now, is_first=is_first)
        size = items[0][0].envelope.size
        dropped: list[Delivery] = []
        for item in items:
            is_stored = item[2] > 0 and self.session_number > 0
            if queue.make_room(self.queue_limits, size, dropped, now, is_stored=is_stored):
                queue.append(item)
                continue
            dropped.append(item)
            is_too_large = size > self.queue_limits.bytes_max
            if self.backlog.queue_full is QueueFull.DISCONNECT and not is_too_large:
                if self.on_overflow is not None:
                    self.on_overflow()
        self.on_shed(dropped, now)
        if self.queue is not None and self.outbox.state < CONGESTED and not self.barriers:
            self._wait_for_others(self.window)
        if (
            self.queue is not None
            and self.journal is not None
            and queue.in_memory > QUEUE_HEAD_MESSAGES
        ):
            self.journal.unload_later(self)

    def on_shed(self, items: list[Delivery], now: float) -> None:
        """Record that these waited in vain: the queue, or all of them together, are full."""
        self.dropped += len(items)
        reason = "queue_cleared" if self.is_clearing else "queue_full"
        for item in items:
            self.backlog.drop_message(reason, item[0], self.client_id)
            self._record_dropped(reason, item[0], now)
        self._end(items, now)
        self._drop_queue_if_empty()

    def clear_queue(self, size: int, now: float) -> int:
        """Drop the oldest of what waits, of about `size` bytes; return the bytes that are left.

        Messages that are in the store only go when the store has brought them.
        """
        queue = self.queue
        if queue is None:
            return 0
        self.is_clearing = True
        before = queue.claimed_bytes
        queue.shed(min(size, before) if queue.head else before, now)
        return queue.claimed_bytes if self.queue is queue else 0

    # The recorder.

    def _record_queued(self, items: list[Delivery], now: float, *, is_first: bool) -> None:
        recorder = self.backlog.recorder
        assert recorder is not None
        why = kinds.AWAY
        if self.is_online:
            why = kinds.READS_SLOWLY if self.outbox.state >= CONGESTED else kinds.BEHIND_OTHERS
            if is_first and why == kinds.BEHIND_OTHERS:
                why = kinds.WINDOW_FULL
        envelope = items[0][0].envelope
        recorder.queued(
            self, why, envelope.topic, len(items), envelope.received_at, now, is_first=is_first
        )

    def _record_acknowledged(self, done: list[Delivery], now: float) -> None:
        """Record acknowledgements, by when the messages that were just released were received."""
        backlog = self.backlog
        recorder = backlog.recorder
        if recorder is not None:
            first_at = backlog.released_first_at
            if recorder.acknowledged(self, len(done), first_at, backlog.released_last_at, now):
                topic = done[0][0].envelope.topic
                recorder.note_slow(self, topic, now - first_at, now)

    def _record_dropped(self, reason: str, message: Message, now: float, count: int = 1) -> None:
        recorder = self.backlog.recorder
        if recorder is not None:
            envelope = message.envelope
            recorder.dropped(
                self, reason, envelope.topic, envelope.publisher, count, envelope.received_at, now
            )
        tracer = self.backlog.tracer
        if tracer is not None:
            tracer.dropped(message.envelope, self.client_id, reason, now)

    def _drop_queue_if_empty(self) -> None:
        """Let go of a queue in which nothing waits any more: the next message need not wait."""
        if self.queue is not None and not len(self.queue):
            self.queue = None
            self.is_clearing = False
            self.is_restored = False
            self.may_read = None

    def want_page(self, queue: MessageQueue) -> None:
        """Ask the store for the next page of the queue."""
        assert self.journal is not None
        queue.load_later()
        self.journal.want_page(self)

    def on_page(self, items: list[Delivery], now: float) -> None:
        """Append a page from the store to the head of the queue."""
        queue = self.queue
        if queue is None or not queue.is_loading:
            return  # the session has ended
        queue.load(items)
        queue.pay_owed(now)
        self._drop_queue_if_empty()
        self.pump(now)

    @property
    def page_after(self) -> int:
        """The place after which the next page of stored deliveries begins."""
        return self.queue.stored_after if self.queue is not None else self.last_place

    def unload(self, folded: int, keep: int) -> bool:
        """Free deliveries that the tables have up to group `folded`; return True if enough."""
        queue = self.queue
        if queue is None:
            return True
        queue.unload(folded, keep)
        return queue.in_memory <= QUEUE_HEAD_MESSAGES

    def limit_queue(self, limits: QueueLimits) -> None:
        """Set the limits of the queue."""
        self.queue_limits = limits

    def take_back(self, packet_id: int, groups: list[object]) -> Delivery | None:
        """Remove and return a message in flight of these shared subscriptions, for another member.

        A QoS 2 exchange that has begun is completed with this client or not at all.
        [MQTT-4.8.2-4], [MQTT-4.8.2-5]
        """
        window = self.window
        item = window.unacked.get(packet_id)
        if item is None or packet_id in window.qos2 or not self._is_of(item, groups):
            return None
        return window.forget(packet_id)

    def take_back_queued(self, groups: list[object]) -> list[Delivery]:
        """Remove and return messages of these shared subscriptions that wait."""
        queue = self.queue
        if queue is None:
            return []
        taken = queue.take(lambda item: self._is_of(item, groups))  # these are always in memory
        if not len(queue):
            self.queue = None
        return taken

    def _is_of(self, item: Delivery, groups: list[object]) -> bool:
        """Tell whether a delivery is from one of these groups, or from one that the client left."""
        group = item[1].group
        return group in groups or (group is not None and item[2] > 0 and not self.session_number)

    def _end(self, items: list[Delivery], now: float) -> None:
        """Record that these deliveries have ended without an acknowledgement."""
        if items and self.journal is not None:
            if self.has_group_deliveries:
                self.journal.on_group_done(items, now)
            else:
                self.journal.on_done(self.session_number, items, now)

    # Acknowledgements.

    def on_puback(self, ids: list[int], now: float, reason: int = 0) -> None:
        """End these deliveries, which makes room in the window. [MQTT-4.3.2-3]"""
        done = self.window.on_puback(ids)
        if done:
            self._record_acknowledged(done, now)
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
        """Note that the peer owns the messages; return True if PUBREL must wait for the commit."""
        if not self.session_number or self.journal is None:
            done, _ = self.window.on_pubrec(ids)
            if done:
                self._record_acknowledged(done, now)
            return False
        unacked = self.window.unacked
        released = [(i, unacked[i]) for i in dict.fromkeys(ids) if i in unacked]
        done, _ = self.window.on_pubrec(ids)
        if done:
            self._record_acknowledged(done, now)
        is_stored = bool(released) and self.journal.on_released(self.session_number, released, now)
        return is_stored or not self.journal.is_settled

    def on_pubrec_error(self, ids: list[int], now: float) -> None:
        for packet_id in ids:
            item = self.window.on_pubrec_error(packet_id)
            if item is not None:
                self._record_acknowledged([item], now)
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
        """The number of QoS 1 messages that a source may send now: live messages come first."""
        is_free = self.outbox.state < CONGESTED and not (self.has_waiting or self.barriers)
        return self.window.room_for(1) if is_free else 0

    def add_source(self, source: MessageSource) -> None:
        if self.sources is None:
            self.sources = []
        self.sources.append(source)

    def remove_source(self, source: MessageSource) -> None:
        """Remove a source; its messages stay in the window, without a reference to it.

        The reference would be a cycle with the session, which the rare runs of the garbage
        collector would leave in memory: a megabyte for each reader that has gone.
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
        """Let sources send as many messages as there is room for; each of them is first in turn."""
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
        size = 0
        for message in messages:
            head, section = message.envelope.layout(v5, options, now)
            packet_id = window.admit_one((message, options, 0, None), 1)
            pieces += (head, ID_BYTES[packet_id], section, message.payload)
            size += len(head) + 2 + len(section) + len(message.payload)
        box.mark()
        box.messages_out += len(messages)
        self.count_published(len(messages), size)

    def take_back_sourced(self, source: MessageSource, partition: int = -1) -> list[SourcedMessage]:
        """Remove and return a source's unacknowledged messages, of one partition or (-1) of all."""
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
        """Use the outbox of a new connection.

        The send quota is the smaller of the peer's Receive Maximum and ours. [MQTT-4.9.0-1]
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
        """Hold messages back until `remove_barrier`: something else must be sent before them."""
        self.barriers += 1

    def remove_barrier(self) -> None:
        self.barriers -= 1

    @property
    def has_open_deliveries(self) -> bool:
        """Tell whether a delivery belongs to a transaction without a place in the journal."""
        if self.journal is None or not self.journal.has_open:
            return False
        items = [] if self.queue is None else self.queue.items()
        return any(map(_is_open, items)) or any(map(_is_open, self.window.unacked.values()))

    def give_away(self) -> None:
        """Forget all messages queued or in flight: another broker goes on with what is stored.

        Their transactions are not told that they have ended: they have to be written.
        """
        assert self.journal is not None and self.session_number, "it is not stored"
        self.journal.on_left(self.session_number, len(self.window.unacked) + self.queued)
        self.journal.forget_queue(self)
        self.is_over = True
        self.backlog.starved.pop(self, None)
        self.window.clear()
        if self.queue is not None:
            self.queue.clear()
        self.session_number = 0
        self.queue = None
        self.window = Window(self.backlog)
        self.resend = _NONE
        self.never_sent = None

    def clear(self, now: float) -> None:
        """Forget all messages queued or in flight: the session ends."""
        self.is_over = True
        self.backlog.starved.pop(self, None)
        items = self.window.clear()
        if self.queue is not None:
            items += self.queue.clear()
        if self.session_number and self.journal is not None:
            self.journal.on_end(self.session_number)
            self.journal.forget_queue(self)
        self.backlog.start(ForgottenDeliveries(items, self.backlog.work), now)
        self.session_number = 0
        self.queue = None
        self.window = Window(self.backlog)
        self.resend = _NONE
        self.never_sent = None

    # The store.

    def store(self) -> None:
        """Give the session a number in the store; its deliveries are stored from now on."""
        if self.journal is not None and not self.session_number:
            self.session_number = self.journal.new_session_number()

    def restore(self, session_number: int, version: int) -> None:
        """Restore the number in the store, and the protocol version of the last connection."""
        self.session_number = session_number
        self.version = version
        self.is_restored = True

    def check_queue(self, may_read: Callable[[str], bool] | None) -> None:
        """Send messages of a restored queue only on topics that the client may read now.

        Its rights are known once it has connected; messages that waited over a restart may be on
        topics that it may no longer read.
        """
        if self.queue is None:
            self.is_restored = False
            may_read = None
        self.may_read = may_read

    def restore_place(self, place: int) -> None:
        """Give new deliveries places after this one."""
        self.last_place = max(self.last_place, place)

    def restore_queue(self, messages: int, size: int, last_place: int) -> None:
        """Make a queue of messages that are in the store only."""
        self.queue = MessageQueue(self.backlog, self)
        self.queue.restore(messages, size, last_place)
        self.restore_place(last_place)

    def renumber(self, item: Delivery, qos: int) -> None:
        """Move a message into the window with a new packet id, and record it."""
        packet_id = self.window.admit_one(item, qos)
        if self.journal is not None:
            self.journal.on_sent(self.session_number, [(packet_id, item)])
