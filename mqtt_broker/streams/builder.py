"""A batch that is being filled: runs of messages go in, columns come out.

A run is what a publisher sent in one burst to one topic, and costs the same however long it is;
each payload costs an entry in a list. Columns are made once, when the batch is written, by loops
that run in C: about 0.1 us a message in runs of twenty, 0.5 us one by one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import mul
from typing import Final, NamedTuple

from mqtt_broker.streams.batch import NEVER, NULL, Column, encode

# A batch that has reached either is full; readers hold one or two in memory.
ROWS_MAX: Final = 16_384
BYTES_MAX: Final = 4 << 20
ROW_BYTES: Final = 32  # what a row needs beside its texts, about


class Run(NamedTuple):
    """Messages that differ only in payload."""

    rows: int
    topic: bytes
    client_id: bytes
    properties: bytes
    flags: int
    received_us: int


class Builder:
    """Rows in the order in which they came."""

    __slots__ = ("_events", "_payloads", "_runs", "_sents", "count", "size")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._payloads: list[bytes] = []
        self._events: list[int] = []  # empty: no row has one; else one a row
        self._sents: list[int] = []
        self.count = 0
        self.size = 0

    @property
    def is_full(self) -> bool:
        return self.count >= ROWS_MAX or self.size >= BYTES_MAX

    @property
    def received_us(self) -> int:
        """When the last row was received."""
        return self._runs[-1].received_us

    def append_run(
        self,
        run: Run,
        payloads: Sequence[bytes],
        size: int,
        events: Sequence[int] = (),
        sents: Sequence[int] = (),
    ) -> None:
        """`size` is what it counts; times are one a payload, or none at all."""
        if events or self._events:
            _extend(self._events, self.count, run.rows, events)
        if sents or self._sents:
            _extend(self._sents, self.count, run.rows, sents)
        self._runs.append(run)
        self._payloads += payloads
        self.count += run.rows
        self.size += size

    def takes(self, other: Builder) -> bool:
        """Whether another may be joined to it."""
        return self.count + other.count <= ROWS_MAX and self.size + other.size <= BYTES_MAX

    def join(self, other: Builder) -> None:
        if other._events or self._events:
            _extend(self._events, self.count, other.count, other._events)
        if other._sents or self._sents:
            _extend(self._sents, self.count, other.count, other._sents)
        self._runs += other._runs
        self._payloads += other._payloads
        self.count += other.count
        self.size += other.size

    def encode(self, seed: int, base: int) -> bytes:
        """The batch, its rows at `base` and on."""
        return self._encode(seed, base, self.count, None)

    def encode_sparse(self, seed: int, base: int, offsets: Sequence[int], end: int) -> bytes:
        """The batch that covers `base` to `end`, each row at its own offset; rows may be none."""
        deltas = struct.pack(f"<{len(offsets)}I", *[offset - base for offset in offsets])
        return self._encode(seed, base, end - base, deltas)

    def _encode(self, seed: int, base: int, span: int, deltas: bytes | None) -> bytes:
        received: Sequence[int] = ()
        flags: Sequence[int] = ()
        topic = client = properties = _column((), ())
        if self._runs:
            counts, topics, clients, sections, flags, received = zip(*self._runs, strict=True)
            if len(counts) == self.count:
                counts = ()  # a row a run
            else:
                flags = list(_spread(flags, counts))
                received = list(_spread(received, counts))
            topic = _column(topics, counts)
            client = _column(clients, counts)
            properties = _column(sections, counts)
        return encode(
            seed,
            base,
            span,
            self.count,
            struct.pack(f"<{len(received)}q", *received),
            _times(self._events),
            _times(self._sents),
            deltas,
            bytes(flags),
            (topic, client, _column(self._payloads, ()), properties),
            min(received, default=NEVER),
            max(received, default=NULL),
        )


def _extend(times: list[int], rows: int, count: int, more: Sequence[int]) -> None:
    """Add the times of `count` rows to those of `rows` rows; none stands for no time each."""
    if not times:
        times += repeat(NULL, rows)
    times += more or repeat(NULL, count)


def _times(times: list[int]) -> bytes:
    return array("q", times).tobytes() if times else b""


def _spread(values: Iterable[int], counts: Sequence[int]) -> Iterable[int]:
    return chain.from_iterable(map(repeat, values, counts))


def _column(cells: Sequence[bytes], counts: Sequence[int]) -> Column:
    """Offsets and blob of cells; with counts, of each so many."""
    lengths: Sequence[int] = list(map(len, cells))
    count = sum(counts) if counts else len(cells)
    blob = b"".join(map(mul, cells, counts)) if counts else b"".join(cells)
    first = lengths[0] if lengths else 0
    if not blob:
        return Column(bytes(4 * count + 4), blob)
    if lengths.count(first) == len(lengths):  # the rule: 13 ns a row, not 23
        steps: Iterable[int] = range(0, count * first + 1, first)
    else:
        steps = accumulate(_spread(lengths, counts) if counts else lengths, initial=0)
    return Column(struct.pack(f"<{count + 1}i", *steps), blob)
