"""Pack the records of a group into blobs that each fit into a row of a database.

Packing changes nothing, so it may fail anywhere and be repeated. A transaction that cannot be
packed is left out alone. If memory does not suffice for all entries, the first half is packed, and
so on; the blobs then say that the rest belongs to the same group.
"""

from __future__ import annotations

from typing import Final

from sessions.journal import records
from sessions.journal.transaction import PendingCommit, PublishTransaction

# SQLite and PostgreSQL allow 1 GB in a row. An entry may be larger than this limit: a packet has
# up to 268 MB.
PART_BYTES_MAX: Final = 64 << 20

Entry = bytes | PublishTransaction | PendingCommit


class Packed:
    """The result of packing the first `count` entries."""

    __slots__ = ("blobs", "cancelled", "count", "failed", "records", "waits")

    def __init__(self, count: int) -> None:
        self.count = count
        self.blobs: list[bytes] = []
        # The transactions in the blobs, and the pending commits, in order.
        self.waits: list[PublishTransaction | PendingCommit] = []
        self.failed: list[tuple[PublishTransaction, Exception]] = []
        self.records = 0
        self.cancelled = 0  # messages acknowledged before


def pack(entries: list[Entry], part_bytes_max: int) -> Packed:
    """Pack the first entries, as many as memory allows. Raises MemoryError if that is none."""
    count = len(entries)
    while True:
        try:
            return _pack(entries, count, part_bytes_max)
        except MemoryError:
            if count <= 1:
                raise
            count = (count + 1) // 2


def _pack(entries: list[Entry], count: int, part_bytes_max: int) -> Packed:
    packed = Packed(count)
    out: list[bytes] = []
    size = 0
    is_all = count == len(entries)
    for entry in entries[:count]:
        if isinstance(entry, PendingCommit):
            packed.waits.append(entry)
            continue
        found: list[bytes]
        if isinstance(entry, PublishTransaction):
            if not entry.is_wanted:
                packed.cancelled += len(entry.messages)
                continue
            try:
                found = entry.pack()
            except MemoryError:
                raise
            except Exception as error:  # leave this one out
                packed.failed.append((entry, error))
                continue
            packed.waits.append(entry)
        else:
            found = [entry]
        if size >= part_bytes_max:
            packed.blobs.append(records.seal(out, is_continued=True))
            out, size = [], 0
        packed.records += 1
        out += found
        size += sum(map(len, found))
    if out:
        packed.blobs.append(records.seal(out, is_continued=not is_all))
    return packed
