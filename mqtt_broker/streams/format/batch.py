"""Encode and decode batches: a header and columns, little-endian, all padded to 8 bytes.

    0  magic "FM"        2   the format, 1        3   flags
    4  header crc32          of bytes 0-3 and 8-63, begun with the partition's seed
    8  body crc32            of everything after the header
    12 length                of the whole batch, a multiple of 8
    16 base                  the first offset
    24 count                 rows                 28  span: offsets covered, count or more
    32 min, 40 max           broker timestamps; of a batch without rows, max is before min
    48 topic, 52 client id, 56 payload, 60 properties: bytes of these blobs

The columns, in this order: broker timestamp i64; event timestamp i64 if flagged; send timestamp
i64 if flagged; offset minus base u32 if flagged; QoS and retain u8; for topic, client id,
payload and properties count + 1 offsets i32 each; then the four blobs.

Timestamps are microseconds of Unix time; `NULL` means that there is none. The u8 is QoS | retain <<
2. Properties are those of the PUBLISH in the encoding of MQTT 5, without their length. A batch
whose offsets have gaps (compaction) lists them; otherwise row i has offset base + i.

The header has its own checksum, so batches can be walked and served without reading their
columns. Its seed, derived from epoch and partition, detects files of another stream or partition,
and bytes in a payload that look like a batch.

The messages of a batch that stands alone are acknowledged once it is on disk: after a crash it is
kept even if the journal does not have it. Any other batch that the journal does not have is cut.
"""

from __future__ import annotations

import struct
import sys
import zlib
from bisect import bisect_left
from itertools import pairwise
from typing import Final, Literal, NamedTuple

MAGIC: Final = b"FM"
VERSION: Final = 1
HEADER_BYTES: Final = 64
NULL: Final = -(1 << 63)
NEVER: Final = (1 << 63) - 1
# Flags. Others belong to a later format and are refused.
HAS_EVENT: Final = 1
HAS_SENT: Final = 2
IS_SPARSE: Final = 4
STANDS_ALONE: Final = 8
_FLAGS: Final = HAS_EVENT | HAS_SENT | IS_SPARSE | STANDS_ALONE
SPAN_MAX: Final = (1 << 32) - 1
LENGTH_MAX: Final = 1 << 31

_HEADER: Final = struct.Struct("<2sBBIIIqIIqqIIII")
_TIMES: Final = struct.Struct("<qq")
_CHECKED: Final = struct.Struct("<4sI")
_PADDING: Final = tuple(b"\0" * n for n in range(8))

if sys.byteorder != "little":  # columns are used without conversion
    raise ImportError("the telemetry log needs a little-endian machine")


class Malformed(Exception):
    """The bytes are not valid; the reason is one line."""


class Header(NamedTuple):
    flags: int
    body_crc: int
    length: int
    base: int
    rows: int
    span: int
    min_us: int
    max_us: int
    topic_bytes: int
    client_bytes: int
    payload_bytes: int
    property_bytes: int

    @property
    def end(self) -> int:
        """The first offset after the batch."""
        return self.base + self.span

    @property
    def stands_alone(self) -> bool:
        return bool(self.flags & STANDS_ALONE)


def seed_of(epoch: str, partition: int) -> int:
    return zlib.crc32(f"{epoch}/p{partition}".encode())


def padding(length: int) -> bytes:
    return _PADDING[-length % 8]


def decode_header(data: bytes | memoryview, at: int, seed: int) -> Header:
    """Decode the header at `at` and verify its checksum. Raises Malformed."""
    if len(data) - at < HEADER_BYTES:
        raise Malformed("a header is cut short")
    fields = _HEADER.unpack_from(data, at)
    magic, version, flags, crc = fields[:4]
    if magic != MAGIC:
        raise Malformed("no batch begins here")
    head = zlib.crc32(data[at : at + 4], seed)
    if zlib.crc32(data[at + 8 : at + HEADER_BYTES], head) != crc:
        raise Malformed("a header does not match its checksum")
    if version != VERSION or flags & ~_FLAGS:
        raise Malformed(
            f"a batch has format {version} and flags {flags}, which this program is too old for"
        )
    header = Header(flags, *fields[4:])
    if header.length != length_of(header):
        raise Malformed("the lengths in a header contradict each other")
    return header


def length_of(header: Header) -> int:
    """Compute the length from the other fields. Unrolled, because every batch needs it."""
    flags, _, _, _, n, _, _, _, topic, client, payload, properties = header
    length = HEADER_BYTES + 8 * n + (n + 7 & -8) + 4 * (4 * n + 11 & -8)
    length += (topic + 7 & -8) + (client + 7 & -8) + (payload + 7 & -8) + (properties + 7 & -8)
    if flags:
        if flags & HAS_EVENT:
            length += 8 * n
        if flags & HAS_SENT:
            length += 8 * n
        if flags & IS_SPARSE:
            length += 4 * n + 7 & -8
    return length


def times_of(header: bytes) -> tuple[int, int]:
    """Return the earliest and latest broker timestamp of a header that was verified."""
    return _TIMES.unpack_from(header, 32)


def check_body(header: Header, data: memoryview, at: int = 0) -> None:
    """Raise Malformed if the batch at `at`, which is complete, fails its checksum."""
    if zlib.crc32(data[at + HEADER_BYTES : at + header.length]) != header.body_crc:
        raise Malformed("a batch does not match its checksum")


class Column(NamedTuple):
    """Strings or bytes: count + 1 offsets as they are written, and the blob they point into."""

    offsets: bytes
    blob: bytes


def encode(
    seed: int,
    base: int,
    span: int,
    count: int,
    received: bytes,
    event: bytes,
    sent: bytes,
    deltas: bytes | None,
    flags: bytes,
    columns: tuple[Column, Column, Column, Column],
    min_us: int,
    max_us: int,
    *,
    stands_alone: bool = False,
) -> list[bytes]:
    """Encode a batch from columns in their final layout; return its header and the other parts.

    Empty columns of event and send times are left out. The parts are not joined: at 1 MB a copy
    costs more than everything else, and `pwritev` takes many parts.
    """
    parts = [received, event, sent]
    shape = (HAS_EVENT if event else 0) | (HAS_SENT if sent else 0)
    if stands_alone:
        shape |= STANDS_ALONE
    if deltas is not None:
        shape |= IS_SPARSE
        parts += (deltas, padding(len(deltas)))
    parts += (flags, padding(count))
    for column_ in columns:
        parts += (column_.offsets, padding(len(column_.offsets)))
    for column_ in columns:
        parts += (column_.blob, padding(len(column_.blob)))
    parts = [part for part in parts if part]
    body_crc = 0
    length = HEADER_BYTES
    for part in parts:
        body_crc = zlib.crc32(part, body_crc)
        length += len(part)
    if length > LENGTH_MAX or span > SPAN_MAX:
        raise ValueError(f"a batch of {length} bytes and {span} offsets")
    blobs = [len(column_.blob) for column_ in columns]
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        shape,
        0,
        body_crc,
        length,
        base,
        count,
        span,
        min_us,
        max_us,
        *blobs,
    )
    crc = zlib.crc32(header[8:], zlib.crc32(header[:4], seed))
    return [_CHECKED.pack(header[:4], crc) + header[8:], *parts]


def split(data: bytes | memoryview, seed: int) -> list[Header]:
    """Return the headers of consecutive whole batches. Raises Malformed.

    Bodies are not checked.
    """
    headers: list[Header] = []
    at = 0
    while at < len(data):
        header = decode_header(data, at, seed)
        if at + header.length > len(data):
            raise Malformed("a batch is cut short")
        if headers and header.base != headers[-1].end:
            raise Malformed(f"a batch has offset {header.base} where {headers[-1].end} belongs")
        headers.append(header)
        at += header.length
    return headers


class Batch:
    """A whole batch in memory or in a mapped file; its columns are views."""

    __slots__ = ("_places", "data", "header", "start", "until")

    def __init__(self, header: Header, data: memoryview) -> None:
        self.header = header
        self.data = data  # from the header to the end of the batch
        # The offsets that a reader wants: batches are never cut.
        self.start = header.base
        self.until = header.end
        self._places: tuple[int, ...] | None = None

    @property
    def base(self) -> int:
        return self.header.base

    @property
    def end(self) -> int:
        """The first offset after it."""
        return self.header.end

    @property
    def count(self) -> int:
        return self.header.rows

    def places(self) -> tuple[int, ...]:
        """Return the positions of received, event, sent, deltas, flags, four offsets, four blobs.

        A column that is left out has position 0.
        """
        if self._places is None:
            flags, _, _, _, n, _, _, _, topic, client, payload, _ = self.header
            at = HEADER_BYTES + 8 * n
            event = sent = deltas = 0
            if flags & HAS_EVENT:
                event, at = at, at + 8 * n
            if flags & HAS_SENT:
                sent, at = at, at + 8 * n
            if flags & IS_SPARSE:
                deltas, at = at, at + (4 * n + 7 & -8)
            bounds = at + (n + 7 & -8)
            step = 4 * n + 11 & -8
            topics = bounds + 4 * step
            clients = topics + (topic + 7 & -8)
            payloads = clients + (client + 7 & -8)
            properties = payloads + (payload + 7 & -8)
            self._places = (
                HEADER_BYTES, event, sent, deltas, at,
                bounds, bounds + step, bounds + 2 * step, bounds + 3 * step,
                topics, clients, payloads, properties,
            )  # fmt: skip
        return self._places

    def _numbers(
        self, place: int, code: Literal["q", "i", "I"], width: int, count: int
    ) -> list[int]:
        at = self.places()[place]
        return self.data[at : at + width * count].cast(code).tolist()

    def received(self) -> list[int]:
        return self._numbers(0, "q", 8, self.count)

    def event(self) -> list[int] | None:
        return self._numbers(1, "q", 8, self.count) if self.header.flags & HAS_EVENT else None

    def sent(self) -> list[int] | None:
        return self._numbers(2, "q", 8, self.count) if self.header.flags & HAS_SENT else None

    def flags(self) -> bytes:
        at = self.places()[4]
        return bytes(self.data[at : at + self.count])

    def _cells(self, which: int) -> list[bytes]:
        bounds = self._numbers(5 + which, "i", 4, self.count + 1)
        at = self.places()[9 + which]
        blob = bytes(self.data[at : at + self.header[8 + which]])
        return [blob[a:b] for a, b in pairwise(bounds)]

    def topics(self) -> list[bytes]:
        return self._cells(0)

    def client_ids(self) -> list[bytes]:
        return self._cells(1)

    def payloads(self) -> list[bytes]:
        return self._cells(2)

    def properties(self) -> list[bytes]:
        if not self.header.property_bytes:
            return [b""] * self.count
        return self._cells(3)

    def offsets(self) -> range | list[int]:
        base = self.base
        if self.header.flags & IS_SPARSE:
            return [base + delta for delta in self._numbers(3, "I", 4, self.count)]
        return range(base, base + self.count)

    def wanted(self) -> slice:
        """Return the rows between `start` and `until`."""
        return slice(self.row_at(self.start), self.row_at(self.until))

    def row_at(self, offset: int) -> int:
        """Return the first row with this offset or a later one, or `count` if there is none."""
        if self.header.flags & IS_SPARSE:
            return bisect_left(self.offsets(), offset)
        return min(max(0, offset - self.base), self.count)

    def row_since(self, at_us: int) -> int:
        """Return the first row received at this time or later, or `count` if there is none."""
        if self.header.min_us >= at_us:
            return 0
        for row, received in enumerate(self.received()):
            if received >= at_us:
                return row
        return self.count

    def check(self) -> None:
        """Raise Malformed if columns contradict each other, which checksums cannot detect."""
        n, span = self.count, self.header.span
        bounds_at, blobs = self.places()[5:9], self.header[8:]
        for which, size in enumerate(blobs):
            bounds = self._numbers(5 + which, "i", 4, n + 1)
            if bounds[0] or bounds[-1] != size or any(a > b for a, b in pairwise(bounds)):
                raise Malformed(
                    f"the offsets at byte {bounds_at[which]} of a batch are not in order"
                )
        if self.header.flags & IS_SPARSE:
            deltas = self._numbers(3, "I", 4, n)
            rising = all(a < b for a, b in pairwise(deltas))
            if not rising or (deltas and deltas[-1] >= span):
                raise Malformed("the sparse offsets of a batch are not in order")
        elif n != span:
            raise Malformed(f"a batch of {n} rows covers {span} offsets")
        received = self.received()
        if received and (min(received), max(received)) != (self.header.min_us, self.header.max_us):
            raise Malformed("the times in a header are not those of its rows")
