"""The format of the journal's records: changes, in the order in which they happened.

    encode_*   one change, or a run of equal ones -> bytes
    seal       the records of one group -> the blob that the store commits
    unseal     a blob -> its records, or `Corrupt`

A group is on disk completely or not at all, so records of one group may refer to each other. A
group that is too large for a row is several blobs, all but the last marked as continued
(`is_continued`); the store commits them together. A burst of messages is one record, and so are
its acknowledgements.

Format 1 had signed Message Expiry Intervals and at most 65,535 Subscription Identifiers per
delivery; it can still be read.

    SESSION      a new or changed session              END          a session ended
    SUBSCRIBED   a new or changed subscription         UNSUBSCRIBED
    STORED       messages, without receivers           DELIVERED    stored messages to one session
    SENT         packet ids of queued deliveries       DONE         deliveries ended
    RELEASED     PUBREC: only the id is left           COMPLETED    PUBCOMP: the id is free
    RECEIVED     inbound QoS 2 ids opened              FREED        inbound QoS 2 ids closed
    RETAINED     a retained message replaced another (0: none)
    SHARED       a shared subscription with messages
    STREAM       a new or changed stream               STREAM_GONE  deleted, with its cursors
    CURSOR       positions of an owner in a stream     CURSORS_GONE deleted, of one or all streams
    LEFT         a session moves to another node, and its messages get numbers of their own

A message is kept as long as a delivery or a retained message refers to it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow, WillRow

FORMAT: Final = 2
CONTINUED: Final = 3  # like 2; the next blob belongs to the same group
FORMAT_SIGNED: Final = 1

SESSION: Final = 1
END: Final = 2
SUBSCRIBED: Final = 3
UNSUBSCRIBED: Final = 4
STORED: Final = 5
DELIVERED: Final = 6
SENT: Final = 7
DONE: Final = 8
RELEASED: Final = 9
COMPLETED: Final = 10
RECEIVED: Final = 11
FREED: Final = 12
RETAINED: Final = 13
SHARED: Final = 14
STREAM: Final = 15
STREAM_GONE: Final = 16
CURSOR: Final = 17
CURSORS_GONE: Final = 18
LEFT: Final = 19

SEAL: Final = struct.Struct("<BI")
_SESSION: Final = struct.Struct("<BQBdIBddB")
_SID: Final = struct.Struct("<BQ")
_SUBSCRIBED: Final = struct.Struct("<BQBI")
_STORED: Final = struct.Struct("<BQIIdIB")
_STORED_SIGNED: Final = struct.Struct("<BQIIdiB")
_DELIVERED: Final = struct.Struct("<BQQQIIBBBI")
_DELIVERED_SHORT: Final = struct.Struct("<BQQQIIBBBH")
_RUN: Final = struct.Struct("<QQI")
_LIST: Final = struct.Struct("<BQI")
_SENT: Final = struct.Struct("<QH")
_RELEASED: Final = struct.Struct("<QQH")
_RETAINED: Final = struct.Struct("<BQQ")
_STREAM: Final = struct.Struct("<Bd")
_CURSOR: Final = struct.Struct("<BIHHH")
_OFFSET: Final = struct.Struct("<HQ")
_LEFT: Final = struct.Struct("<BQQI")
_LENGTH: Final = struct.Struct("<I")
_EXPIRES: Final = 8  # flag of STORED: with a Message Expiry Interval


class Corrupt(Exception):
    """Bytes that are not a blob written by `seal`."""


@dataclass(slots=True)
class Ended:
    sid: int


@dataclass(slots=True)
class Unsubscribed:
    sid: int
    filter: str


@dataclass(slots=True)
class Stored:
    """Messages that differ only in payload; their numbers begin with `mid`."""

    mid: int
    topic: str
    qos: int
    retain: bool
    section: bytes
    publisher: str
    received_at: float
    expiry_interval: int
    payloads: list[bytes]


@dataclass(slots=True)
class Delivered:
    """Deliveries of `count` messages, from `mid` on, to one session, at the places from `n` on.

    Deliveries without packet ids are queued; with packet ids, one each, they are in flight.
    """

    sid: int
    n: int
    mid: int
    count: int
    size: int
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    share: str
    packet_ids: tuple[int, ...]


@dataclass(slots=True)
class Sent:
    sid: int
    sent: list[tuple[int, int]]  # n, packet id


@dataclass(slots=True)
class Done:
    sid: int
    runs: list[tuple[int, int, int]]  # first n, its mid, count; both count up


@dataclass(slots=True)
class Released:
    sid: int
    released: list[tuple[int, int, int]]  # n, mid, packet id


@dataclass(slots=True)
class Completed:
    sid: int
    packet_ids: tuple[int, ...]


@dataclass(slots=True)
class Received:
    sid: int
    packet_ids: tuple[int, ...]


@dataclass(slots=True)
class Freed:
    sid: int
    packet_ids: tuple[int, ...]


@dataclass(slots=True)
class Retained:
    mid: int
    before: int


@dataclass(slots=True)
class StreamGone:
    name: str


@dataclass(slots=True)
class Cursor:
    owner: str
    stream: str
    epoch: str
    offsets: list[tuple[int, int]]  # partition, offset of the next record


@dataclass(slots=True)
class CursorsGone:
    owner: str
    stream: str  # empty: all of the owner's


@dataclass(slots=True)
class Left:
    sid: int
    base: int  # its messages get the numbers after this one
    messages: int  # at most


Record = (
    SessionRow
    | Ended
    | SubscriptionRow
    | Unsubscribed
    | Stored
    | Delivered
    | Sent
    | Done
    | Released
    | Completed
    | Received
    | Freed
    | Retained
    | ShareRow
    | StreamRow
    | StreamGone
    | Cursor
    | CursorsGone
    | Left
)


# Writing.


def _blob(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _text(text: str) -> bytes:
    return _blob(text.encode())


def encode_session(row: SessionRow) -> bytes:
    will = row.will
    head = _SESSION.pack(
        SESSION,
        row.sid,
        row.version,
        row.created_at,
        row.expiry_interval,
        row.is_online,
        row.expires_at,
        row.will_at,
        (row.username is not None) | (will is not None) << 1,
    )
    parts = [head, _text(row.client_id)]
    if row.username is not None:
        parts.append(_text(row.username))
    if will is not None:
        flags = bytes((will.qos << 1 | will.retain,))
        parts += (flags, _text(will.topic), _blob(will.payload), _blob(will.section))
    return b"".join(parts)


def encode_end(sid: int) -> bytes:
    return _SID.pack(END, sid)


def encode_subscribed(row: SubscriptionRow) -> bytes:
    flags = row.qos | row.no_local << 2 | row.retain_as_published << 3 | row.retain_handling << 4
    return _SUBSCRIBED.pack(SUBSCRIBED, row.sid, flags, row.identifier) + _text(row.filter)


def encode_unsubscribed(sid: int, text: str) -> bytes:
    return _SID.pack(UNSUBSCRIBED, sid) + _text(text)


def encode_stored(
    mid: int,
    topic: bytes,
    qos: int,
    retain: bool,
    section: bytes,
    publisher: bytes,
    received_at: float,
    expiry_interval: int,
    payloads: list[bytes],
) -> bytes:
    """Encode STORED; `topic` and `publisher` are UTF-8, all payloads have the same length."""
    flags = qos << 1 | retain
    expires = 0
    if expiry_interval >= 0:  # an unsigned number of four bytes; each value is valid
        flags |= _EXPIRES
        expires = expiry_interval
    size = len(payloads[0])
    head = _STORED.pack(STORED, mid, len(payloads), size, received_at, expires, flags)
    length = _LENGTH.pack
    return b"".join(
        (
            head,
            length(len(topic)),
            topic,
            length(len(section)),
            section,
            length(len(publisher)),
            publisher,
            *payloads,
        )
    )


def encode_delivered(
    sid: int,
    n: int,
    mid: int,
    count: int,
    size: int,
    qos: int,
    retain: bool,
    subscription_ids: tuple[int, ...],
    share: str,
    packet_ids: list[int],
) -> bytes:
    ids = len(subscription_ids)
    head = _DELIVERED.pack(
        DELIVERED, sid, n, mid, count, size, qos << 1 | retain, bool(packet_ids), bool(share), ids
    )
    if packet_ids:
        head += struct.pack(f"<{count}H", *packet_ids)
    if ids:
        head += struct.pack(f"<{ids}I", *subscription_ids)
    if share:
        head += _text(share)
    return head


def encode_sent(sid: int, sent: list[tuple[int, int]]) -> bytes:
    return _LIST.pack(SENT, sid, len(sent)) + b"".join([_SENT.pack(n, i) for n, i in sent])


def encode_done(sid: int, runs: list[tuple[int, int, int]]) -> bytes:
    head = _LIST.pack(DONE, sid, len(runs))
    return head + b"".join([_RUN.pack(n, mid, count) for n, mid, count in runs])


def encode_released(sid: int, released: list[tuple[int, int, int]]) -> bytes:
    head = _LIST.pack(RELEASED, sid, len(released))
    return head + b"".join([_RELEASED.pack(n, mid, i) for n, mid, i in released])


def encode_ids(kind: int, sid: int, packet_ids: list[int]) -> bytes:
    """Encode COMPLETED, RECEIVED or FREED."""
    return _LIST.pack(kind, sid, len(packet_ids)) + struct.pack(f"<{len(packet_ids)}H", *packet_ids)


def encode_retained(mid: int, before: int) -> bytes:
    return _RETAINED.pack(RETAINED, mid, before)


def encode_shared(row: ShareRow) -> bytes:
    return _SID.pack(SHARED, row.sid) + _text(row.filter)


def encode_stream(row: StreamRow) -> bytes:
    texts = (row.name, row.epoch, row.filter, row.settings)
    return _STREAM.pack(STREAM, row.created_at) + b"".join([_text(text) for text in texts])


def encode_stream_gone(name: str) -> bytes:
    return bytes((STREAM_GONE,)) + _text(name)


def encode_cursor(owner: str, stream: str, epoch: str, offsets: list[tuple[int, int]]) -> bytes:
    """Encode positions compactly: each acknowledgement of a reader is a record."""
    whose, where, life = owner.encode(), stream.encode(), epoch.encode()
    head = _CURSOR.pack(CURSOR, len(whose), len(where), len(life), len(offsets))
    found = [_OFFSET.pack(partition, offset) for partition, offset in offsets]
    return b"".join((head, whose, where, life, *found))


def encode_cursors_gone(owner: str, stream: str) -> bytes:
    return bytes((CURSORS_GONE,)) + _text(owner) + _text(stream)


def encode_left(sid: int, base: int, messages: int) -> bytes:
    return _LEFT.pack(LEFT, sid, base, messages)


def runs_of(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Group (place, message number) pairs into runs in which both count up by one."""
    runs: list[tuple[int, int, int]] = []
    first_n = first_mid = count = 0
    for n, mid in pairs:
        if count and n == first_n + count and mid == first_mid + count:
            count += 1
            continue
        if count:
            runs.append((first_n, first_mid, count))
        first_n, first_mid, count = n, mid, 1
    if count:
        runs.append((first_n, first_mid, count))
    return runs


def seal(records: list[bytes], *, is_continued: bool = False) -> bytes:
    body = b"".join(records)
    form = CONTINUED if is_continued else FORMAT
    return SEAL.pack(form, zlib.crc32(body, form)) + body


# Reading.


def is_continued(blob: bytes) -> bool:
    """Tell whether the next blob belongs to the same group."""
    return blob[:1] == bytes((CONTINUED,))


def unseal(blob: bytes) -> Iterator[Record]:
    """Decode the records of a blob, all or none. Raises Corrupt."""
    if len(blob) < SEAL.size:
        raise Corrupt("a group is truncated")
    form, crc = SEAL.unpack_from(blob)
    if form not in (FORMAT_SIGNED, FORMAT, CONTINUED):
        raise Corrupt(f"a group has format {form}; this version reads up to {CONTINUED}")
    seed = 0 if form == FORMAT_SIGNED else form  # else one format could be taken for another
    if zlib.crc32(blob[SEAL.size :], seed) != crc:
        raise Corrupt("a group does not match its checksum")
    return RecordReader(blob, SEAL.size, is_signed=form == FORMAT_SIGNED).records()


class RecordReader:
    __slots__ = ("at", "data", "is_signed")

    def __init__(self, data: bytes, at: int, *, is_signed: bool) -> None:
        self.data = data
        self.at = at
        self.is_signed = is_signed  # of format 1

    def records(self) -> Iterator[Record]:
        while self.at < len(self.data):
            try:
                record = self.read()
            except (struct.error, UnicodeDecodeError, IndexError) as error:
                raise Corrupt(f"a record is invalid: {error}") from None
            yield record

    def read(self) -> Record:
        kind = self.data[self.at]
        if kind == STORED:
            return self._stored()
        if kind == DELIVERED:
            return self._delivered()
        if kind in (SENT, DONE, RELEASED, COMPLETED, RECEIVED, FREED):
            return self._list(kind)
        if kind == CURSOR:
            return self._cursor()
        if kind == SESSION:
            return self._session()
        if kind == SUBSCRIBED:
            _, sid, flags, identifier = self._take(_SUBSCRIBED)
            no_local, as_published = bool(flags & 4), bool(flags & 8)
            text = self._text()
            return SubscriptionRow(
                sid, text, flags & 3, no_local, as_published, flags >> 4, identifier
            )
        if kind == RETAINED:
            _, mid, before = self._take(_RETAINED)
            return Retained(mid, before)
        if kind in (END, UNSUBSCRIBED, SHARED):
            _, sid = self._take(_SID)
            if kind == END:
                return Ended(sid)
            return Unsubscribed(sid, self._text()) if kind == UNSUBSCRIBED else ShareRow(
                sid, self._text()
            )  # fmt: skip
        if kind == STREAM:
            _, created_at = _STREAM.unpack_from(self.data, self.at)
            self.at += _STREAM.size
            return StreamRow(self._text(), self._text(), self._text(), self._text(), created_at)
        if kind == LEFT:
            _, sid, base, messages = self._take(_LEFT)
            return Left(sid, base, messages)
        if kind in (STREAM_GONE, CURSORS_GONE):
            self.at += 1
            name = self._text()
            return StreamGone(name) if kind == STREAM_GONE else CursorsGone(name, self._text())
        raise Corrupt(f"unknown type {kind} of a record")

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def _bytes(self, length: int) -> bytes:
        start = self.at
        self.at = start + length
        if self.at > len(self.data):
            raise Corrupt("a record is truncated")
        return self.data[start : self.at]

    def _blob(self) -> bytes:
        (length,) = self._take(_LENGTH)
        return self._bytes(length)

    def _text(self) -> str:
        return self._blob().decode()

    def _numbers(self, code: str, count: int) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{code}")
        return found

    def _session(self) -> SessionRow:
        head = _SESSION.unpack_from(self.data, self.at)
        self.at += _SESSION.size
        _, sid, version, created_at, expiry, is_online, expires_at, will_at, flags = head
        client_id = self._text()
        username = self._text() if flags & 1 else None
        will: WillRow | None = None
        if flags & 2:
            about = self._bytes(1)[0]
            topic, payload, section = self._text(), self._blob(), self._blob()
            will = WillRow(topic, payload, about >> 1, bool(about & 1), section)
        return SessionRow(
            sid,
            client_id,
            username,
            version,
            created_at,
            expiry,
            bool(is_online),
            expires_at,
            will_at,
            will,
        )

    def _stored(self) -> Stored:
        form = _STORED_SIGNED if self.is_signed else _STORED
        head = form.unpack_from(self.data, self.at)
        self.at += form.size
        _, mid, count, size, received_at, expiry_interval, flags = head
        if not self.is_signed and not flags & _EXPIRES:
            expiry_interval = -1
        topic = self._text()
        section = self._blob()
        publisher = self._text()
        start = self.at
        self.at = end = start + count * size
        data = self.data
        if end > len(data):
            raise Corrupt("a record is truncated")
        if size:
            payloads = [data[at : at + size] for at in range(start, end, size)]
        else:
            payloads = [b""] * count
        qos, retain = flags >> 1 & 3, bool(flags & 1)
        return Stored(
            mid, topic, qos, retain, section, publisher, received_at, expiry_interval, payloads
        )

    def _delivered(self) -> Delivered:
        form = _DELIVERED_SHORT if self.is_signed else _DELIVERED
        _, sid, n, mid, count, size, flags, is_sent, is_shared, ids = self._take(form)
        packet_ids = self._numbers("H", count) if is_sent else ()
        subscription_ids = self._numbers("I", ids) if ids else ()
        share = self._text() if is_shared else ""
        qos, retain = flags >> 1, bool(flags & 1)
        return Delivered(sid, n, mid, count, size, qos, retain, subscription_ids, share, packet_ids)

    def _cursor(self) -> Cursor:
        _, whose, where, life, count = self._take(_CURSOR)
        owner = self._bytes(whose).decode()
        stream = self._bytes(where).decode()
        epoch = self._bytes(life).decode()
        found = self._bytes(count * _OFFSET.size)
        return Cursor(owner, stream, epoch, list(_OFFSET.iter_unpack(found)))

    def _list(self, kind: int) -> Record:
        _, sid, count = self._take(_LIST)
        if kind == COMPLETED:
            return Completed(sid, self._numbers("H", count))
        if kind == RECEIVED:
            return Received(sid, self._numbers("H", count))
        if kind == FREED:
            return Freed(sid, self._numbers("H", count))
        form = _SENT if kind == SENT else _RUN if kind == DONE else _RELEASED
        found = list(form.iter_unpack(self._bytes(count * form.size)))
        if kind == SENT:
            return Sent(sid, found)
        if kind == DONE:
            return Done(sid, found)
        return Released(sid, found)
