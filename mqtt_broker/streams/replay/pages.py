"""Read pages of a stream in a thread, and prepare them for sending to one client.

    reader = PageReader(sources, stream, 0, skips_damage)
    page = reader.page(offset, delivery, source)     # the next page from there, or a failure

A page has messages as objects (at QoS 1, or for a client with aliases or a size limit), or encoded
packets that only have to be written (at QoS 0 for all others). Encoded packets cost about a
microsecond a message, and the loop appends some hundred of them at once.

Each message gets the user properties `stream-partition`, `stream-offset` and `stream-timestamp`
after its own, so the last one of each name is the broker's. MQTT 3.1.1 gets topic and payload only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.encode import publish_head
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.codec.strings import encode_string, encode_varint
from mqtt_broker.streams.format.batch import Batch
from mqtt_broker.streams.format.errors import Damaged, StreamGone
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.stream import Stream
from sessions.messages.message import Envelope
from sessions.sources import MessageSource, SourcedMessage

PAGE_BYTES: Final = 256 << 10
ROWS_MAX: Final = 2_048  # of a page
ENCODED_BYTES: Final = 32 << 10  # of packets that are written at a time
OBJECT_BYTES: Final = 700  # the same when it is an object

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# An envelope writes its section only when it has properties; their values matter to publishers.
_SOME: Final = Properties({prop.USER_PROPERTY: []})
_USER: Final = bytes((prop.USER_PROPERTY,))
_OFFSET: Final = _USER + encode_string("stream-offset")
_STAMP: Final = _USER + encode_string("stream-timestamp") + b"\x00\x1b"
_STAMP_BYTES: Final = len(_STAMP) + 27


@dataclass(frozen=True, slots=True)
class DeliveryFormat:
    """The form in which one client gets its messages."""

    v5: bool
    qos: int
    ids: tuple[int, ...]  # Subscription Identifiers
    not_from: str = ""  # No Local: leave out messages that this client has published
    is_plain: bool = True  # neither aliases nor a size limit


class EncodedPackets(NamedTuple):
    """Some encoded packets at QoS 0."""

    data: bytes
    messages: int
    end: int  # the first offset behind it


@dataclass(slots=True)
class Page:
    """A range of offsets of one partition, ready to be sent."""

    partition: int
    start: int
    end: int  # the first offset behind the range
    messages: list[SourcedMessage] = field(default_factory=list)
    packets: list[EncodedPackets] = field(default_factory=list)
    damage: list[Damaged] = field(default_factory=list)  # that was skipped
    failure: Exception | None = None
    cost_bytes: int = 0
    taken: int = 0  # messages or encoded packets that were sent

    def take(self, count: int) -> list[SourcedMessage]:
        """Return the next messages to be sent, `count` at most."""
        taken = self.taken
        messages = self.messages[taken : taken + count]
        self.taken = taken + len(messages)
        return messages


class LiveSource(Source):
    """A stream of this process, for reading: its end is in memory, not in a file."""

    def __init__(self, stream: Stream, clock_us: Callable[[], int]) -> None:
        super().__init__(stream.directory, clock_us)
        self._stream = stream
        self._committed.close()

    @property
    def retain_s(self) -> int:
        return self._stream.settings.retain_s

    def end(self, partition: int) -> int:
        if self._stream.is_deleted:
            raise StreamGone(self._stream.name)
        return self._stream.partitions[partition].committed

    def ends(self) -> Offsets:
        return self._stream.committed()


class LiveSources:
    """The sources of streams: the first reader of a stream opens it, and others share it."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._sources: dict[str, LiveSource] = {}
        self._lock = threading.Lock()

    def get(self, stream: Stream) -> LiveSource:
        with self._lock:
            source = self._sources.get(stream.epoch)
            if source is None:
                if stream.is_deleted:
                    raise StreamGone(stream.name)
                source = self._sources[stream.epoch] = LiveSource(stream, self._clock_us)
            return source

    def forget(self, stream: Stream) -> None:
        with self._lock:
            self._sources.pop(stream.epoch, None)


class PageReader:
    """Reads one partition for one client: an open file, and batches not yet in pages.

    One thread at a time may use it.
    """

    __slots__ = (
        "_at",
        "_batches",
        "_damage",
        "_reader",
        "_skips",
        "_sources",
        "_stream",
        "partition",
    )

    def __init__(
        self, sources: LiveSources, stream: Stream, partition: int, skips_damage: Callable[[], bool]
    ) -> None:
        self._sources = sources
        self._stream = stream
        self.partition = partition
        self._skips = skips_damage
        self._reader: Reader | None = None
        self._batches: list[Batch] = []  # read, and not yet completely in pages
        self._damage: list[Damaged] = []
        self._at = -1  # the next offset

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._batches.clear()
        self._at = -1

    def page(self, offset: int, delivery: DeliveryFormat, source: MessageSource) -> Page:
        """Read the next page from this offset; at the end of the partition it is empty."""
        page = Page(self.partition, offset, offset)
        try:
            self._read(page, offset, delivery, source)
        except Exception as error:  # handled on the loop
            page.failure = error
            self.close()
        page.damage = list(self._damage)
        self._damage.clear()
        return page

    def _read(
        self, page: Page, offset: int, delivery: DeliveryFormat, source: MessageSource
    ) -> None:
        stream = self._sources.get(self._stream)
        if self._reader is None or self._at != offset:
            self.close()
            on_damage = self._damage.append if self._skips() else None
            self._reader = Reader(stream, self.partition, offset, on_damage=on_damage)
            self._at = offset
        if not self._batches:
            self._batches = self._reader.read(PAGE_BYTES)
            self._batches.reverse()
        rows = ROWS_MAX
        while self._batches and rows > 0 and page.cost_bytes < PAGE_BYTES:
            batch = self._batches[-1]
            first = batch.row_at(max(self._at, batch.start))
            last = min(batch.row_at(batch.until), first + rows)
            whole = last >= batch.row_at(batch.until)
            end = batch.until if whole else batch.offsets()[last]
            _fill(page, _Rows(batch, first, last), delivery, source)
            page.end = self._at = end
            rows -= last - first
            if whole:
                self._batches.pop()
        if not self._batches:
            # Skipped damage may be after the last batch.
            page.end = self._at = max(self._at, self._reader.offset)
        else:
            page.cost_bytes += len(self._batches[-1].data)


class _Rows:
    """Some rows of a batch; only their part of each column is decoded."""

    __slots__ = ("_batch", "_first", "_last")

    def __init__(self, batch: Batch, first: int, last: int) -> None:
        self._batch = batch
        self._first = first
        self._last = last

    def __len__(self) -> int:
        return self._last - self._first

    def offsets(self) -> range | list[int]:
        return self._batch.offsets()[self._first : self._last]

    def received(self) -> list[int]:
        at = self._batch.places()[0]
        data = self._batch.data[at + 8 * self._first : at + 8 * self._last]
        return data.cast("q").tolist()

    def cells(self, which: int) -> list[bytes]:
        """Return a column: topics (0), client ids (1), payloads (2) or properties (3)."""
        batch = self._batch
        places = batch.places()
        at = places[5 + which]
        bounds = batch.data[at + 4 * self._first : at + 4 * (self._last + 1)].cast("i").tolist()
        origin = bounds[0]
        if bounds[-1] == origin:
            return [b""] * len(self)
        base = places[9 + which]
        blob = bytes(batch.data[base + origin : base + bounds[-1]])
        start = 0
        found = []
        for bound in bounds[1:]:
            end = bound - origin
            found.append(blob[start:end])
            start = end
        return found


class _Stamps:
    """Formats microseconds for `stream-timestamp`, always as 27 characters."""

    __slots__ = ("_last_us", "_prefix", "_second", "_text")

    def __init__(self) -> None:
        self._last_us = -1
        self._second = -1
        self._prefix = b""
        self._text = b""

    def property_of(self, at_us: int) -> bytes:
        """Return the whole user property."""
        if at_us != self._last_us:
            second, rest = divmod(at_us, 1_000_000)
            if second != self._second:
                self._second = second
                at = _EPOCH + timedelta(seconds=second)
                self._prefix = _STAMP + at.replace(tzinfo=None).isoformat().encode()
            self._last_us = at_us
            self._text = b"%b.%06dZ" % (self._prefix, rest)
        return self._text


def _fill(page: Page, rows: _Rows, delivery: DeliveryFormat, source: MessageSource) -> None:
    if not len(rows):
        return
    if delivery.qos == 0 and delivery.is_plain:
        _encode_packets(page, rows, delivery)
    else:
        _make_messages(page, rows, delivery, source)


def _encode_packets(page: Page, rows: _Rows, delivery: DeliveryFormat) -> None:
    """Encode whole packets at QoS 0.

    The bytes before the offset are the same for all messages of a topic with the same properties,
    and with payloads and offsets of the same length: they are made once.
    """
    payloads = rows.cells(2)
    clients = rows.cells(1) if delivery.not_from else payloads
    not_from = delivery.not_from.encode()
    partition = _partition_property(page.partition)
    ids = _identifiers(delivery)
    stamps = _Stamps()
    v5 = delivery.v5
    front = topic_before = section_before = b""
    size_before = -1
    digits_end = 0  # offsets below it have the same number of digits
    out: list[bytes] = []
    size = count = 0
    columns = zip(
        rows.offsets(),
        rows.received(),
        rows.cells(0),
        rows.cells(3),
        payloads,
        clients,
        strict=True,
    )
    for offset, received, topic, section, payload, client in columns:
        if not_from and client == not_from:
            continue
        length = len(payload)
        if (
            length != size_before
            or topic != topic_before
            or section != section_before
            or offset >= digits_end
        ):
            topic_before, section_before, size_before = topic, section, length
            if v5:
                digits = len(str(offset))
                digits_end = 10**digits
                own = section + ids + partition + _OFFSET + digits.to_bytes(2, "big")
                body = len(own) + digits + _STAMP_BYTES
                own = encode_varint(body) + own
                behind = len(own) + digits + _STAMP_BYTES + length
            else:
                digits_end = 1 << 64
                own, behind = b"", length
            front = publish_head(_length(topic) + topic, 0, False, False, behind) + own
        if v5:
            out += (front, b"%d" % offset, stamps.property_of(received), payload)
        else:
            out += (front, payload)
        count += 1
        size += len(front) + length
        if size >= ENCODED_BYTES:
            page.packets.append(EncodedPackets(b"".join(out), count, offset + 1))
            page.cost_bytes += size
            out.clear()
            size = count = 0
    if count:
        page.packets.append(EncodedPackets(b"".join(out), count, offset + 1))
        page.cost_bytes += size


def _make_messages(
    page: Page, rows: _Rows, delivery: DeliveryFormat, source: MessageSource
) -> None:
    """Make messages as objects. For MQTT 3.1.1, those of one topic and length share bytes."""
    partition = _partition_property(page.partition)
    stamps = _Stamps()
    texts: dict[bytes, str] = {}
    shared: dict[tuple[bytes, int, bytes], Envelope] = {}
    v5 = delivery.v5
    not_from = delivery.not_from.encode()
    adopts = v5 and not delivery.ids
    messages = page.messages
    columns = zip(
        rows.offsets(),
        rows.received(),
        rows.cells(0),
        rows.cells(1),
        rows.cells(2),
        rows.cells(3),
        strict=True,
    )
    for offset, received, topic, client, payload, properties in columns:
        if not_from and client == not_from:
            continue
        page.cost_bytes += OBJECT_BYTES + len(payload) + len(properties)
        name = texts.get(topic)
        if name is None:
            name = texts[topic] = topic.decode()
        if v5:
            number = b"%d" % offset
            stamp = stamps.property_of(received)
            body = b"".join((properties, partition, _OFFSET, _length(number), number, stamp))
            section = encode_varint(len(body)) + body
            publisher = client.decode()
            envelope = Envelope(
                name, delivery.qos, False, _SOME, section, len(payload), publisher, 0.0
            )
            if adopts:
                behind = (2 if delivery.qos else 0) + len(section) + len(payload)
                head = publish_head(_length(topic) + topic, delivery.qos, False, False, behind)
                envelope.use_layout(True, delivery.qos, head, section)
        else:
            key = (topic, len(payload), client)
            found = shared.get(key)
            if found is None:
                publisher = client.decode()
                found = shared[key] = Envelope(
                    name, delivery.qos, False, NO_PROPERTIES, b"", len(payload), publisher, 0.0
                )
            envelope = found
        messages.append(
            SourcedMessage(envelope, payload, source, page.partition, offset, properties)
        )


def _length(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big")


def _partition_property(partition: int) -> bytes:
    return _USER + encode_string("stream-partition") + encode_string(str(partition))


def _identifiers(delivery: DeliveryFormat) -> bytes:
    number = bytes((prop.SUBSCRIPTION_IDENTIFIER,))
    return b"".join(number + encode_varint(identifier) for identifier in delivery.ids)
