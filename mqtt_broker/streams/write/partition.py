"""Write one partition: append batches to the active segment, and seal it when it is due.

A write has three steps, and fails as a whole: `write` (the bytes), `sync` (they are on disk),
`settle` (they belong to the log). Bytes that were not settled are cut before the next write, so a
failed write can be repeated without duplicates.

A segment is sealed only when the journal has all of its records, since sealed segments are never
cut. It is sealed before a write, so that one write goes to one file.

The caller holds the lock of the log. Readers need no lock: they only read files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import times_of
from mqtt_broker.streams.format.batch_builder import BatchBuilder
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.segment import PartitionFiles
from mqtt_broker.streams.format.segment_catalog import Catalog
from mqtt_broker.streams.format.segment_index import IndexBuilder
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.recovery import OpenedPartition, SegmentScan


class Partition:
    def __init__(
        self, disk: Disk, files: PartitionFiles, settings: StreamSettings, opened: OpenedPartition
    ) -> None:
        self._disk = disk
        self.files = files
        self.follow(settings)
        self.catalog = opened.catalog
        self._active = opened.active  # up to what is settled
        self.path = self._active_path()  # the file that is written to
        self.committed = opened.active.end  # readers may go there
        self.recorded = opened.active.end  # the journal knows it
        self._file = -1
        self._index_file = -1
        self._index_bytes = len(opened.active.index)
        self._is_torn = False  # bytes may follow that are not settled
        self._next_catalog: Catalog | None = None  # a roll that was begun
        self._written: list[tuple[bytes, int]] = []  # headers and lengths, not settled

    def follow(self, settings: StreamSettings) -> None:
        """Apply the current settings of the stream."""
        self.settings = settings
        self._seal_bytes = settings.seal_bytes
        self._seal_us = settings.seal_s * 1_000_000

    @property
    def end(self) -> int:
        return self._active.end

    @property
    def active(self) -> SegmentScan:
        """The segment that is written to; callers must not change it."""
        return self._active

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return self.catalog.size + self._active.size

    # A write.

    def write(self, builders: Sequence[BatchBuilder], *, stands_alone: bool = False) -> None:
        """Write batches after the settled bytes; `settle` adds them to the log."""
        self.finish_roll()
        if self._is_due(builders[0].received_us):
            self.roll()
        if self._file < 0:
            self._open()
        if self._is_torn:
            self._disk.truncate(self._file, self._active.size)
        self._is_torn = True
        base = self._active.end
        buffers: list[bytes] = []
        written: list[tuple[bytes, int]] = []
        for builder in builders:
            parts = builder.encode(self.files.seed, base, stands_alone=stands_alone)
            buffers += parts
            written.append((parts[0], sum(map(len, parts))))
            base += builder.count
        self._disk.write(self._file, buffers, self._active.size)
        self._written = written

    def sync(self) -> None:
        self._disk.sync(self._file)

    def settle(self, counts: Sequence[int]) -> None:
        """Add the batches that were written to the log."""
        active = self._active
        entries = bytearray()
        for (header, length), count in zip(self._written, counts, strict=True):
            min_us, max_us = times_of(header)
            entries += active.marks.add(active.end, max_us, active.size)
            active.min_us = min(active.min_us, min_us)
            active.max_us = max(active.max_us, max_us)
            active.end += count
            active.size += length
        self._written = []
        self._is_torn = False
        if entries:
            self._write_index(bytes(entries))

    def _open(self) -> None:
        path = self.path
        is_new = not path.exists()
        self._file = self._disk.open(path)
        if is_new:
            try:
                self._disk.sync_directory(path.parent)
            except OSError:
                self.close()
                path.unlink(missing_ok=True)
                raise

    def _write_index(self, entries: bytes) -> None:
        """Write index entries; a failure only makes searches slower."""
        with contextlib.suppress(OSError):
            if self._index_file < 0:
                self._index_file = self._disk.open(file_names.index(self.path))
            self._disk.write(self._index_file, [entries], self._index_bytes)
            self._index_bytes += len(entries)

    def _sync_index(self) -> None:
        with contextlib.suppress(OSError):
            if self._index_file < 0:
                self._index_file = self._disk.open(file_names.index(self.path))
            self._disk.sync(self._index_file)

    # Sealing.

    def _is_due(self, now_us: int) -> bool:
        active = self._active
        return active.size > 0 and (
            active.size >= self._seal_bytes or now_us - active.min_us >= self._seal_us
        )

    def wants_record(self, now_us: int) -> bool:
        """Tell whether a segment is due for sealing but has records that the journal lacks."""
        return self.recorded < self._active.end and self._is_due(now_us)

    def roll_if_due(self, now_us: int) -> None:
        self.finish_roll()
        if self._is_due(now_us):
            self.roll()

    def roll(self) -> bool:
        """Seal the active segment. Return False if it is empty, or the journal lacks records."""
        active = self._active
        if not active.size or min(self.committed, self.recorded) < active.end:
            return False
        if self._file < 0:
            self._open()
        if self._is_torn:
            self._disk.truncate(self._file, active.size)
            self._is_torn = False
        self._disk.sync(self._file)
        self._sync_index()
        self._next_catalog = self.catalog.sealed(active.sealed(), active.end)
        self.finish_roll()
        return True

    def finish_roll(self) -> None:
        """Finish a roll that was started, before anything else is written."""
        if self._next_catalog is None:
            return
        self.save(self._next_catalog)
        self._next_catalog = None
        self.close()
        base = self.catalog.next_base
        self._active = SegmentScan(base, base, marks=IndexBuilder(self.files.seed))
        self.path = self._active_path()
        self._index_bytes = 0

    def _active_path(self) -> Path:
        return self.files.directory / file_names.segment(self._active.base)

    def save(self, catalog: Catalog) -> None:
        """Write the next catalog to disk, then use it."""
        self._disk.replace(
            self.files.directory / file_names.CATALOG, catalog.encode(self.files.seed)
        )
        self.catalog = catalog

    # Removing.

    def remove_first(self, count: int) -> None:
        """Remove the first `count` sealed segments, first from the catalog, then from the disk."""
        if not count:
            return
        for at in range(count):  # offsets are found without it, and a full disk has room then
            self._disk.remove(file_names.index(self.files.directory / self.catalog[at].name))
        self.finish_roll()
        gone = [self.catalog[at] for at in range(count)]
        self.save(self.catalog.without(count))
        for segment in gone:
            self.remove_file(segment.name)

    def remove_file(self, name: str) -> None:
        path = self.files.directory / name
        self._disk.remove(file_names.index(path))
        self._disk.remove(path)

    def close(self) -> None:
        for file in (self._file, self._index_file):
            if file >= 0:
                os.close(file)
        self._file = self._index_file = -1
