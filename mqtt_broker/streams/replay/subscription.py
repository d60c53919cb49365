"""Who takes records of a stream, and how far: on the loop, at the pace of each client.

    Lane    one partition on its way to one client: where it is, and what is under way
    Taker   one subscription of one session: reads its lanes in turn, sends what there is room for

A taker reads ahead one page, in a thread, and sends it when the client can have it: at QoS 0
while little is unread, at QoS 1 as far as the window goes. At the end of its lanes it sleeps
until more is committed, so history becomes what is live without a seam.

How far a lane is taken (`position`) is, at QoS 0, what was sent; at QoS 1, everything before
the first record that is not acknowledged, in whatever order acknowledgements came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from mqtt_broker.streams.format.errors import Damaged, OffsetGone, StreamError
from mqtt_broker.streams.replay.pages import (
    OBJECT_BYTES,
    PAGE_BYTES,
    DeliveryFormat,
    Page,
    PageReader,
)
from sessions.messages.message import DeliveryOptions
from sessions.session import Session, Subscription
from sessions.sources import SourcedMessage, add_feed, remove_feed, send_fed, take_back

if TYPE_CHECKING:
    from mqtt_broker.streams.replay.service import ReplayService
    from mqtt_broker.streams.write.stream import Stream

UNREAD_BYTES_MAX: Final = 256 << 10  # that a client has been sent and has not taken
UNDER_WAY_MAX: Final = 1_024  # messages at QoS 1 of one taker
UNDER_WAY_BYTES_MAX: Final = 1 << 20  # of them
RETRY_S: Final = 1.0  # until files that could not be opened are tried again
_WRITE_BYTES: Final = 64 << 10  # until it is seen whether the peer takes more


class PartitionCursor:
    """One partition. `life` counts how often it was set back: what was read before is void."""

    __slots__ = (
        "cursor", "is_reading", "is_stuck", "life", "next", "page", "partition", "read",
        "recorded", "retry_at", "under_way",
    )  # fmt: skip

    def __init__(self, partition: int, cursor: PageReader, offset: int) -> None:
        self.partition = partition
        self.cursor = cursor
        self.next = offset  # the first offset that was not sent
        self.read = offset  # the first offset that was not read
        self.page: Page | None = None  # read and not all sent
        self.under_way: dict[int, SourcedMessage] = {}  # by offset: sent and not acknowledged
        self.recorded = -1  # the position that the store has
        self.life = 0
        self.is_reading = False
        self.is_stuck = False  # by damage
        self.retry_at = 0.0  # not read before

    @property
    def position(self) -> int:
        for offset in self.under_way:  # which are in order: the first is the least
            return offset
        return self.next

    def seek(self, offset: int) -> None:
        """Go on from there; what was read before is not wanted any longer."""
        assert self.page is None
        self.life += 1
        self.next = self.read = offset


class StreamSubscription(ABC):
    """One subscription that reads."""

    def __init__(self, replay: ReplayService, stream: Stream, subscription: Subscription) -> None:
        self.replay = replay
        self.stream = stream
        self.session: Session = subscription.session
        self.lanes: list[PartitionCursor] = []
        self.is_begun = False  # its SUBACK has left
        self.is_over = False
        self.buffered_bytes = 0  # of pages
        self.sent = 0  # messages at QoS 1 that are in the session's window
        self.sent_bytes = 0  # of them
        self._ready: deque[PartitionCursor] = deque()  # lanes with a page
        self._turn = 0  # of its lanes, whose is the next to be read
        self._reads = 0  # under way: one, and those that are void
        self._is_pumping = False
        self.adapt(subscription)
        add_feed(self.session, self)

    def adapt(self, subscription: Subscription) -> None:
        """The subscription, or what the connection takes, is another."""
        self.subscription = subscription
        session, box = self.session, self.session.outbox
        self.qos = min(subscription.qos, 1)
        self.grant = DeliveryOptions(self.qos, False, subscription.identifiers)
        self.style = DeliveryFormat(
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

    def close(self) -> None:
        self.is_over = True
        self.drop_pages()
        remove_feed(self.session, self)

    # What its kind decides.

    @abstractmethod
    def is_open(self, lane: PartitionCursor) -> bool:
        """Whether anything new of this lane may be read and sent now."""

    @abstractmethod
    def select(
        self, lane: PartitionCursor, page: Page, room: int, now: float
    ) -> list[SourcedMessage]:
        """The next messages of a page to be sent now; `page.taken` goes on behind them."""

    @abstractmethod
    def on_over(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """They left the window."""

    @abstractmethod
    def on_moved(self, lane: PartitionCursor, now: float) -> None:
        """Its position may be another."""

    @abstractmethod
    def on_ended(self, error: Exception, now: float) -> None:
        """There is nothing more to be read, for this reason."""

    def on_free(self, lane: PartitionCursor, now: float) -> None:
        """A read is over that nobody waited for any longer."""
        if self.is_over:
            self.replay.ahead.close(lane)

    def send_again(self, room: int, now: float) -> int:
        """What has to be repeated goes first; how many were sent."""
        return 0

    # Sending.

    def on_room(self, now: float) -> None:
        self.pump(now)

    def pump(self, now: float) -> None:
        """Send what there is room for, and read on."""
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

    def _unread_max(self) -> int:
        """How much may wait for the peer until nothing more is sent to it."""
        return 1 if self.replay.is_pressed else self.replay.unread_bytes_max

    def _pump_window(self, now: float) -> None:
        session = self.session
        box = session.outbox
        if box.waiting_bytes >= self._unread_max():
            return  # it is told when the peer has taken some of it
        self.send_again(min(session.feed_room, UNDER_WAY_MAX - self.sent), now)
        idle = 0
        while idle < len(self._ready):
            # Asked each time: what is too large for the peer takes no room.
            room = min(session.feed_room, UNDER_WAY_MAX - self.sent)
            if room <= 0:
                break
            lane, page = self._first()
            if not self.is_open(lane):
                self.set_back(lane)
                continue
            before = page.taken
            messages = self.select(lane, page, min(room, self._fitting(page)), now)
            idle = idle + 1 if page.taken == before else 0
            if messages:
                self.send(lane, messages, now)
            self._settle_page(lane, page, now)
            self._ready.rotate(-1)

    def _first(self) -> tuple[PartitionCursor, Page]:
        lane = self._ready[0]
        assert lane.page is not None
        return lane, lane.page

    def _fitting(self, page: Page) -> int:
        """How many messages go before so many bytes are under way; one if nothing is."""
        left = UNDER_WAY_BYTES_MAX - self.sent_bytes
        messages = page.messages
        at = page.taken
        while at < len(messages) and left > 0:
            left -= len(messages[at].payload)
            at += 1
        return at - page.taken

    def send(self, lane: PartitionCursor, messages: list[SourcedMessage], now: float) -> None:
        for message in messages:
            lane.under_way[message.offset] = message
            self.sent_bytes += len(message.payload)
        self.sent += len(messages)
        lane.next = max(lane.next, messages[-1].offset + 1)
        self.replay.messages += len(messages)
        send_fed(self.session, messages, self.grant, now)

    def forget(self, messages: list[SourcedMessage]) -> None:
        """They are in the window no longer."""
        self.sent -= len(messages)
        self.sent_bytes -= sum([len(message.payload) for message in messages])

    def _pump_bytes(self, now: float) -> None:
        session = self.session
        box = session.outbox
        written = 0
        while self._ready:
            if written >= _WRITE_BYTES or not written:
                if written:
                    self.replay.broker.write_out(box, now)
                if box.waiting_bytes >= self._unread_max() or not self.is_active:
                    break
                written = 0
            lane, page = self._first()
            if not self.is_open(lane):
                self.set_back(lane)
                continue
            written += max(1, self._send_piece(lane, page, now))
            self._settle_page(lane, page, now)
            if lane.page is None:
                self._ready.rotate(-1)
        else:
            if written:
                self.replay.broker.write_out(box, now)

    def _send_piece(self, lane: PartitionCursor, page: Page, now: float) -> int:
        """The next bytes of a page; how many."""
        session = self.session
        if page.taken < len(page.pieces):
            piece = page.pieces[page.taken]
            session.outbox.put(piece.data)
            session.budget.published += piece.messages
            self.replay.messages += piece.messages
            lane.next = piece.end
            page.taken += 1
            return len(piece.data)
        size = 0
        while page.taken < len(page.messages) and size < _WRITE_BYTES:
            message = page.messages[page.taken]
            session.send_one(0, message, self.grant, now, dup=False)
            self.replay.messages += 1
            lane.next = message.offset + 1
            page.taken += 1
            size += len(message.payload) + OBJECT_BYTES // 4
        return size

    def _settle_page(self, lane: PartitionCursor, page: Page, now: float) -> None:
        """When all of a page is sent, so is what it looked at and found nothing in."""
        if page.taken >= len(page.pieces) + len(page.messages) and lane.page is page:
            self._let_go(lane, page)
            lane.next = max(lane.next, page.end)
        self.on_moved(lane, now)

    # Pages.

    def _buffer(self, size: int) -> None:
        self.buffered_bytes += size
        self.replay.ahead.add(self, size)

    def _let_go(self, lane: PartitionCursor, page: Page) -> None:
        lane.page = None
        self._ready.remove(lane)
        self._buffer(-page.cost_bytes)

    def drop_pages(self) -> None:
        """What was read ahead is read again when it is wanted."""
        for lane in list(self._ready):
            self.set_back(lane)
        self._close_files()

    def _close_files(self) -> None:
        """With a file goes the batch that its last page was cut from, which may be megabytes."""
        for lane in self.lanes:
            self.replay.ahead.close(lane)

    def set_back(self, lane: PartitionCursor) -> None:
        """Read it again from the first record that was not sent."""
        self.seek(lane, lane.next)

    def seek(self, lane: PartitionCursor, offset: int) -> None:
        if lane.page is not None:
            self._let_go(lane, lane.page)
        lane.seek(offset)

    # Reading.

    def read_on(self, now: float) -> None:
        """Read the next page, of the lanes in turn; one read at a time."""
        if self._reads or not self.is_active or self.buffered_bytes >= PAGE_BYTES // 2:
            return
        if self.replay.ahead.is_tight and not self._has_room():
            self._close_files()
            return  # what others read now would push it out again, and so on for ever
        lanes = self.lanes
        for step in range(len(lanes)):
            at = (self._turn + step) % len(lanes)
            lane = lanes[at]
            if (
                lane.page is None
                and lane.read < self.stream.partitions[lane.partition].committed
                and not lane.is_reading
                and lane.retry_at <= now
                and self.is_open(lane)
            ):
                self._turn = at + 1
                self._read(lane)
                return

    def _has_room(self) -> bool:
        """Whether a message could be sent now."""
        if self.qos:
            return min(self.session.feed_room, UNDER_WAY_MAX - self.sent) > 0
        return self.session.outbox.waiting_bytes < self._unread_max()

    def _read(self, lane: PartitionCursor) -> None:
        self._reads += 1
        lane.is_reading = True
        self.replay.ahead.open(lane)
        work = partial(lane.cursor.page, lane.read, self.style, self)
        self.replay.read(work, partial(self._on_page, lane, lane.life, self.style))

    def _on_page(self, lane: PartitionCursor, life: int, style: DeliveryFormat, page: Page) -> None:
        now = self.replay.now
        self._reads -= 1
        lane.is_reading = False
        if life != lane.life or self.is_over or style is not self.style:
            if life == lane.life:
                lane.seek(lane.next)  # read in a style that nobody wants any longer
            self.on_free(lane, now)
        else:
            self._take_page(lane, page, now)
        self.pump(now)

    def _take_page(self, lane: PartitionCursor, page: Page, now: float) -> None:
        for damage in page.damage:
            self.replay.on_damage(self, damage, now)
        lane.read = max(lane.read, page.end)
        if page.messages or page.pieces:
            lane.page = page
            self._ready.append(lane)
            self._buffer(page.cost_bytes)
        else:
            lane.next = max(lane.next, page.end)
            self.on_moved(lane, now)
        if page.failure is not None:
            self._on_failure(lane, page.failure, now)

    def _on_failure(self, lane: PartitionCursor, failure: Exception, now: float) -> None:
        replay = self.replay
        if isinstance(failure, OffsetGone):
            replay.on_gap(self, lane, failure, now)
            self.seek(lane, max(lane.next, failure.earliest))
            self.on_moved(lane, now)
        elif isinstance(failure, Damaged):
            lane.is_stuck = True
            replay.tell(self, failure, now)
        elif isinstance(failure, StreamError):
            self.on_ended(failure, now)
        elif isinstance(failure, OSError):
            lane.retry_at = now + RETRY_S
            replay.log(f"{self.stream.name} p{lane.partition}: {failure}; it is tried again")
            replay.broker.timers.at(lane.retry_at, self.on_room)
        else:
            lane.is_stuck = True
            replay.broker.on_bug(None, b"", failure)


class ClientSubscription(StreamSubscription):
    """A subscription that reads every partition, for its own client alone.

    What the client has under way stays in its window when the connection is lost, and is
    repeated by the session. Of a session that is stored, the positions are stored too.
    """

    def __init__(
        self, replay: ReplayService, stream: Stream, subscription: Subscription, owner: str
    ) -> None:
        super().__init__(replay, stream, subscription)
        self.owner = owner
        self.version = self.session.version

    def close(self) -> None:
        super().close()
        for lane in self.lanes:
            lane.under_way.clear()  # these know us, and would keep us: see `remove_feed`

    def is_open(self, lane: PartitionCursor) -> bool:
        return not lane.is_stuck

    def select(
        self, lane: PartitionCursor, page: Page, room: int, now: float
    ) -> list[SourcedMessage]:
        taken = page.taken
        messages = page.messages[taken : taken + room]
        page.taken = taken + len(messages)
        return messages

    def on_over(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """Whatever the reason, the exchange is over. [MQTT-4.3.2-1]"""
        if self.is_over:  # its place in the store belongs to the next one of its name
            return
        for message in messages:
            lane = self.lanes[message.partition]
            if lane.under_way.pop(message.offset, None) is not None:
                self.forget([message])
        self.replay.note(self)

    def on_moved(self, lane: PartitionCursor, now: float) -> None:
        self.replay.note(self)

    def on_ended(self, error: Exception, now: float) -> None:
        self.replay.on_reader_ended(self, error, now)

    def on_attached(self) -> None:
        """Another connection: of another version, it reads anew what was not acknowledged."""
        session = self.session
        if session.version != self.version:
            self.version = session.version
            taken = take_back(session, self)
            self.forget(taken)
            for lane in self.lanes:
                position = lane.position
                lane.under_way.clear()
                self.seek(lane, position)
        self.adapt(self.subscription)
