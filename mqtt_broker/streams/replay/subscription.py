"""Send the records of a stream to one client, at its pace.

    PartitionCursor      one partition for one client: its position, and what is in flight
    StreamSubscription   one subscription of one session: reads its cursors in turn, and sends
                         what there is room for
    ClientSubscription   reads every partition, for its own client alone

A subscription reads one page ahead, in a thread, and sends it when the client is ready: at QoS 0
while the client has few unread bytes, at QoS 1 within the window. At the end of its partitions it
waits until more is committed, so history continues into live messages without a gap.

The position of a cursor is the next offset to send at QoS 0, and the first unacknowledged offset at
QoS 1, whatever the order of acknowledgements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from mqtt_broker.streams.format.errors import Damaged, OffsetGone, StreamError
from mqtt_broker.streams.replay.context import ReplayContext
from mqtt_broker.streams.replay.pages import (
    OBJECT_BYTES,
    PAGE_BYTES,
    DeliveryFormat,
    Page,
    PageReader,
)
from mqtt_broker.streams.write.stream import Stream
from sessions.messages.message import DeliveryOptions
from sessions.session import Session, Subscription
from sessions.sources import SourcedMessage

IN_FLIGHT_MAX: Final = 1_024  # messages at QoS 1 of one subscription
IN_FLIGHT_BYTES_MAX: Final = 1 << 20  # of them
RETRY_S: Final = 1.0  # until files that could not be opened are tried again
_WRITE_BYTES: Final = 64 << 10  # until it is seen whether the peer takes more


class InFlight:
    """The records of one partition that were sent at QoS 1 and are not acknowledged.

    A failed record stays among them until it is sent again. It holds the position back, but does
    not count in the session's window meanwhile.
    """

    __slots__ = ("_messages", "bytes", "failed")

    def __init__(self) -> None:
        self._messages: dict[int, SourcedMessage] = {}  # by offset, in order
        self.failed: list[int] = []  # offsets that wait to be sent again, in order
        self.bytes = 0  # of payloads in the window

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, offset: int) -> bool:
        return offset in self._messages

    @property
    def in_window(self) -> int:
        """The number of messages in the session's window."""
        return len(self._messages) - len(self.failed)

    def offsets(self) -> list[int]:
        return list(self._messages)

    def first(self) -> int:
        """Return the smallest offset, or -1 if there is none."""
        return next(iter(self._messages), -1)

    def add(self, messages: list[SourcedMessage]) -> None:
        for message in messages:
            self._messages[message.offset] = message
            self.bytes += len(message.payload)

    def end(self, offset: int) -> bool:
        """Remove a record whose exchange has ended. Return False if it is not among them."""
        message = self._messages.pop(offset, None)
        if message is None:
            return False
        if offset in self.failed:
            self.failed.remove(offset)
        else:
            self.bytes -= len(message.payload)
        return True

    def fail(self, offset: int) -> None:
        """Note that a record failed and has to be sent again."""
        insort(self.failed, offset)
        self.bytes -= len(self._messages[offset].payload)

    def take_failed(self) -> SourcedMessage:
        """Return the first failed record, to be sent again now."""
        message = self._messages[self.failed.pop(0)]
        self.bytes += len(message.payload)
        return message

    def clear(self) -> None:
        self._messages.clear()
        self.failed.clear()
        self.bytes = 0


class PartitionCursor:
    """A client's position in a partition, with the current page and the messages in flight."""

    __slots__ = (
        "generation", "in_flight", "is_reading", "is_stuck", "next_read", "next_send", "page",
        "partition", "reader", "recorded", "retry_at",
    )  # fmt: skip

    def __init__(self, partition: int, reader: PageReader, offset: int) -> None:
        self.partition = partition
        self.reader = reader
        self.next_send = offset  # the first offset that was not sent
        self.next_read = offset  # the first offset that was not read
        self.page: Page | None = None  # read and not all sent
        self.in_flight = InFlight()
        self.recorded = -1  # the position that the store has
        self.generation = 0  # counts seeks: pages read before a seek are void
        self.is_reading = False
        self.is_stuck = False  # by damage
        self.retry_at = 0.0  # not read before

    @property
    def position(self) -> int:
        first = self.in_flight.first()
        return self.next_send if first < 0 else first

    def seek(self, offset: int) -> None:
        """Continue from this offset; pages that are being read are void."""
        assert self.page is None
        self.generation += 1
        self.next_send = self.next_read = offset


class StreamSubscription(ABC):
    """A subscription to a stream: the `MessageSource` of its session."""

    def __init__(self, context: ReplayContext, stream: Stream, subscription: Subscription) -> None:
        self.context = context
        self.stream = stream
        self.session: Session = subscription.session
        self.cursors: Sequence[PartitionCursor] = ()
        self.is_begun = False  # its SUBACK has left
        self.is_over = False
        self.buffered_bytes = 0  # of pages
        self._ready: deque[PartitionCursor] = deque()  # cursors with a page
        self._turn = 0  # the index of the cursor that is read next
        self._reads = 0  # that are going on: one, and those that are void
        self._is_pumping = False
        self.adapt(subscription)
        self.session.outbound.add_source(self)

    def adapt(self, subscription: Subscription) -> None:
        """Apply new subscription options, or a new connection."""
        self.subscription = subscription
        session, box = self.session, self.session.outbound.outbox
        self.qos = min(subscription.qos, 1)
        self.options = DeliveryOptions(self.qos, False, subscription.identifiers)
        self.delivery = DeliveryFormat(
            box.v5,
            self.qos,
            subscription.identifiers,
            session.client_id if subscription.no_local else "",
            box.plain,
        )
        self.drop_pages()

    @property
    def is_active(self) -> bool:
        return self.is_begun and not self.is_over and self.session.is_online

    @property
    def in_window(self) -> int:
        """The number of its messages in the session's window."""
        return sum([cursor.in_flight.in_window for cursor in self.cursors])

    def close(self) -> None:
        self.is_over = True
        self.drop_pages()
        self.session.outbound.remove_source(self)

    # Decided by the kind of subscription.

    @abstractmethod
    def may_send(self, cursor: PartitionCursor) -> bool:
        """Tell whether new records of this partition may be read and sent now."""

    @abstractmethod
    def select(
        self, cursor: PartitionCursor, page: Page, room: int, now: float
    ) -> list[SourcedMessage]:
        """Take the next messages of a page to send, `room` at most."""

    @abstractmethod
    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """Note that messages left the session's window."""

    @abstractmethod
    def on_moved(self, cursor: PartitionCursor) -> None:
        """Note that a position may have changed."""

    @abstractmethod
    def end(self, error: Exception, now: float) -> None:
        """End the subscription for this reason."""

    def on_void_read(self, cursor: PartitionCursor, now: float) -> None:
        """Note that a read has finished whose page is void."""
        if self.is_over:
            self.context.read_ahead.close(cursor)

    def resend(self, room: int, now: float) -> None:  # noqa: B027
        """Send failed records again before new ones; only groups have any."""

    def tell(self, error: Exception, now: float) -> None:
        """Send a notice to all clients of this subscription."""
        self.context.tell(self.session, self.stream.name, self.options, error, now)

    # Sending.

    def on_room(self, now: float) -> None:
        self.pump(now)

    def pump(self, now: float) -> None:
        """Send as much as fits, and continue reading."""
        if self._is_pumping or not self.is_active:
            return
        self._is_pumping = True
        try:
            if self.qos:
                self._pump_window(now)
            else:
                self._pump_bytes(now)
        finally:
            self._is_pumping = False
        self.read_on(now)

    def _room(self) -> int:
        """Return how many messages at QoS 1 may be sent now."""
        return min(self.session.outbound.source_room, IN_FLIGHT_MAX - self.in_window)

    def _pump_window(self, now: float) -> None:
        if self.session.outbound.outbox.waiting_bytes >= self.context.unread_bytes_max:
            return  # `on_room` is called when the peer has taken some of it
        self.resend(self._room(), now)
        idle = 0
        while idle < len(self._ready):
            # Computed each time: a message that is too large for the peer takes no space.
            room = self._room()
            if room <= 0:
                break
            cursor, page = self._first()
            if not self.may_send(cursor):
                self.drop_page(cursor)
                continue
            before = page.taken
            messages = self.select(cursor, page, min(room, self._fitting(page)), now)
            idle = idle + 1 if page.taken == before else 0
            if messages:
                self.send(cursor, messages, now)
            self._finish_page(cursor, page)
            self._ready.rotate(-1)

    def _bytes_left(self) -> int:
        """Return how many bytes more may be in flight."""
        return IN_FLIGHT_BYTES_MAX - sum([cursor.in_flight.bytes for cursor in self.cursors])

    def _first(self) -> tuple[PartitionCursor, Page]:
        cursor = self._ready[0]
        assert cursor.page is not None
        return cursor, cursor.page

    def _fitting(self, page: Page) -> int:
        """Return how many messages fit into the bytes in flight; one if nothing is in flight."""
        left = self._bytes_left()
        messages = page.messages
        at = page.taken
        while at < len(messages) and left > 0:
            left -= len(messages[at].payload)
            at += 1
        return at - page.taken

    def send(self, cursor: PartitionCursor, messages: list[SourcedMessage], now: float) -> None:
        """Send new messages at QoS 1."""
        cursor.in_flight.add(messages)
        cursor.next_send = max(cursor.next_send, messages[-1].offset + 1)
        self._put(messages, now)

    def _put(self, messages: list[SourcedMessage], now: float) -> None:
        self.context.counters.messages += len(messages)
        self.session.outbound.send_sourced(messages, self.options, now)

    def _pump_bytes(self, now: float) -> None:
        context = self.context
        box = self.session.outbound.outbox
        written = 0
        while self._ready:
            if written >= _WRITE_BYTES or not written:
                if written:
                    context.write_out(box, now)
                if box.waiting_bytes >= context.unread_bytes_max or not self.is_active:
                    break
                written = 0
            cursor, page = self._first()
            if not self.may_send(cursor):
                self.drop_page(cursor)
                continue
            written += max(1, self._send_some(cursor, page, now))
            self._finish_page(cursor, page)
            if cursor.page is None:
                self._ready.rotate(-1)
        else:
            if written:
                context.write_out(box, now)

    def _send_some(self, cursor: PartitionCursor, page: Page, now: float) -> int:
        """Send the next messages of a page at QoS 0; return their size."""
        session = self.session
        counters = self.context.counters
        if page.taken < len(page.packets):
            packets = page.packets[page.taken]
            session.outbound.outbox.put(packets.data)
            session.outbound.count_published(packets.messages, len(packets.data))
            counters.messages += packets.messages
            cursor.next_send = packets.end
            page.taken += 1
            return len(packets.data)
        size = 0
        while page.taken < len(page.messages) and size < _WRITE_BYTES:
            message = page.messages[page.taken]
            session.outbound.send_one(0, message, self.options, now, dup=False)
            counters.messages += 1
            cursor.next_send = message.offset + 1
            page.taken += 1
            size += len(message.payload) + OBJECT_BYTES // 4
        return size

    def _finish_page(self, cursor: PartitionCursor, page: Page) -> None:
        """Drop a page that has been sent, and advance past offsets that had nothing to send."""
        if page.taken >= len(page.packets) + len(page.messages) and cursor.page is page:
            self._let_go(cursor, page)
            cursor.next_send = max(cursor.next_send, page.end)
        self.on_moved(cursor)

    # Pages.

    def _buffer(self, size: int) -> None:
        self.buffered_bytes += size
        self.context.read_ahead.add(self, size)

    def _let_go(self, cursor: PartitionCursor, page: Page) -> None:
        cursor.page = None
        self._ready.remove(cursor)
        self._buffer(-page.cost_bytes)

    def drop_pages(self) -> None:
        """Drop pages that were read ahead; they are read again when they are needed."""
        for cursor in list(self._ready):
            self.drop_page(cursor)
        self._close_files()

    def _close_files(self) -> None:
        """Close the files, and free the batches of their last pages, which may be megabytes."""
        for cursor in self.cursors:
            self.context.read_ahead.close(cursor)

    def drop_page(self, cursor: PartitionCursor) -> None:
        """Read again from the first record that was not sent."""
        self.seek(cursor, cursor.next_send)

    def seek(self, cursor: PartitionCursor, offset: int) -> None:
        if cursor.page is not None:
            self._let_go(cursor, cursor.page)
        cursor.seek(offset)

    # Reading.

    def read_on(self, now: float) -> None:
        """Read the next page, taking cursors in turn; one read at a time."""
        if self._reads or not self.is_active or self.buffered_bytes >= PAGE_BYTES // 2:
            return
        if self.context.read_ahead.is_tight and not self._has_room():
            self._close_files()
            return  # other subscriptions' reads would drop this page, and this one theirs, for ever
        cursors = self.cursors
        for step in range(len(cursors)):
            at = (self._turn + step) % len(cursors)
            cursor = cursors[at]
            if (
                cursor.page is None
                and cursor.next_read < self.stream.partitions[cursor.partition].committed
                and not cursor.is_reading
                and cursor.retry_at <= now
                and self.may_send(cursor)
            ):
                self._turn = at + 1
                self._read(cursor)
                return

    def _has_room(self) -> bool:
        """Tell whether a message could be sent now, by the rules of sending."""
        if self.session.outbound.outbox.waiting_bytes >= self.context.unread_bytes_max:
            return False
        return not self.qos or (self._room() > 0 and self._bytes_left() > 0)

    def _read(self, cursor: PartitionCursor) -> None:
        self._reads += 1
        cursor.is_reading = True
        self.context.read_ahead.open(cursor)
        work = partial(cursor.reader.page, cursor.next_read, self.delivery, self)
        generation, delivery = cursor.generation, self.delivery
        self.context.reads.read(
            self.session.client_id,
            work,
            partial(self._on_page, cursor, generation, delivery),
            partial(self._wants, cursor, generation, delivery),
        )

    def _wants(self, cursor: PartitionCursor, generation: int, delivery: DeliveryFormat) -> bool:
        """Tell whether a requested page is still wanted."""
        return generation == cursor.generation and not self.is_over and delivery is self.delivery

    def _on_page(
        self, cursor: PartitionCursor, generation: int, delivery: DeliveryFormat, page: Page | None
    ) -> None:
        now = self.context.now
        self._reads -= 1
        cursor.is_reading = False
        if page is None or not self._wants(cursor, generation, delivery):
            if generation == cursor.generation:
                cursor.seek(cursor.next_send)  # the page has a format that is not wanted now
            self.on_void_read(cursor, now)
        else:
            self._take_page(cursor, page, now)
        self.pump(now)

    def _take_page(self, cursor: PartitionCursor, page: Page, now: float) -> None:
        for damage in page.damage:  # it was skipped, as the settings say
            if damage.until > damage.offset:
                self.context.counters.gaps += damage.until - damage.offset
            self.tell(damage, now)
        cursor.next_read = max(cursor.next_read, page.end)
        if page.messages or page.packets:
            cursor.page = page
            self._ready.append(cursor)
            self._buffer(page.cost_bytes)
        else:
            cursor.next_send = max(cursor.next_send, page.end)
            self.on_moved(cursor)
        if page.failure is not None:
            self._on_failure(cursor, page.failure, now)

    def _on_failure(self, cursor: PartitionCursor, failure: Exception, now: float) -> None:
        context = self.context
        if isinstance(failure, OffsetGone):  # retention removed it first: continue with the rest
            behind = max(cursor.next_send, failure.offset)
            context.counters.gaps += max(0, failure.earliest - behind)
            self.tell(failure, now)
            self.seek(cursor, max(cursor.next_send, failure.earliest))
            self.on_moved(cursor)
        elif isinstance(failure, Damaged):
            cursor.is_stuck = True
            self.tell(failure, now)
        elif isinstance(failure, StreamError):
            self.end(failure, now)
        elif isinstance(failure, OSError):
            cursor.retry_at = now + RETRY_S
            context.log(
                f"{self.stream.name} p{cursor.partition}: {failure}; retried in {RETRY_S:g} s"
            )
            context.timers.at(cursor.retry_at, self.on_room)
        else:
            cursor.is_stuck = True
            context.on_bug(failure)


class ClientSubscription(StreamSubscription):
    """A subscription that reads every partition, for its own client alone.

    What is in flight stays in the session's window when the connection is lost, and the session
    sends it again. If the session is stored, the positions are stored too.
    """

    def __init__(
        self,
        context: ReplayContext,
        stream: Stream,
        subscription: Subscription,
        owner: str,
        on_end: Callable[[ClientSubscription, Exception, float], None],
    ) -> None:
        super().__init__(context, stream, subscription)
        self.owner = owner
        self.version = self.session.outbound.version
        self._on_end = on_end

    @property
    def is_stored(self) -> bool:
        return self.session.session_number > 0

    def close(self) -> None:
        super().close()
        for cursor in self.cursors:
            cursor.in_flight.clear()  # messages would keep this alive: see `remove_source`

    def may_send(self, cursor: PartitionCursor) -> bool:
        return not cursor.is_stuck

    def select(
        self, cursor: PartitionCursor, page: Page, room: int, now: float
    ) -> list[SourcedMessage]:
        return page.take(room)

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """End the exchange of messages, whatever the reason code. [MQTT-4.3.2-1]"""
        if self.is_over:  # its entry in the store belongs to the next subscription of its name
            return
        for message in messages:
            self.cursors[message.partition].in_flight.end(message.offset)
        self.context.positions.note(self)

    def on_moved(self, cursor: PartitionCursor) -> None:
        self.context.positions.note(self)

    def end(self, error: Exception, now: float) -> None:
        self._on_end(self, error, now)

    def on_attached(self) -> None:
        """Adapt to another connection; if its version differs, send messages in flight again."""
        session = self.session
        if session.outbound.version != self.version:
            self.version = session.outbound.version
            session.outbound.take_back_sourced(self)
            for cursor in self.cursors:
                position = cursor.position
                cursor.in_flight.clear()
                self.seek(cursor, position)
        self.adapt(self.subscription)
