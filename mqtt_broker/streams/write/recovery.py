"""Open a partition after a crash: decide what is kept, what is cut, and what is refused.

The journal decides where the log ends: records after its end were never acknowledged, and are cut.
Without a journal the last whole batch is the end, and the `committed` file has the end that readers
may have seen.

- A torn tail is cut at the last whole batch.
- Damage before the end is reported and kept: readers get an error when they reach it.
- A log that ends before the journal's end is not opened, unless `salvage` is given: then the lost
  offsets stay a gap, and are never given to other messages.
- After the journal's end, batches that stand alone are kept, up to the first that does not.
- A log with more records than that, which readers have seen, is not cut: the journal is old.

All of this is decided before any file is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import NEVER, NULL, Malformed
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import CorruptBatch, JournalBehind, LostTail
from mqtt_broker.streams.format.segment import BatchPosition, PartitionFiles, Segment, damage_of
from mqtt_broker.streams.format.segment_catalog import Catalog, SealedSegment
from mqtt_broker.streams.format.segment_index import IndexBuilder

Report = Callable[[str], None]


@dataclass(slots=True)
class SegmentScan:
    """The result of walking one segment: its whole batches, up to the limit."""

    base: int
    end: int
    size: int = 0
    min_us: int = NEVER
    max_us: int = NULL
    damage: list[CorruptBatch] = field(default_factory=list)
    marks: IndexBuilder = field(default_factory=lambda: IndexBuilder(0))
    index: bytearray = field(default_factory=bytearray)
    goes_on: bool = False  # whole batches follow that the journal should have

    def sealed(self, generation: int = 0) -> SealedSegment:
        return SealedSegment(self.base, self.end, self.size, self.min_us, self.max_us, generation)


@dataclass(frozen=True, slots=True)
class OpenedPartition:
    """A partition that is ready to be written to."""

    catalog: Catalog
    active: SegmentScan


def scan(
    files: PartitionFiles, base: int, generation: int, until: int, *, is_whole: bool, seen: int = 0
) -> SegmentScan:
    """Walk a segment to its end, or to `until` and the batches that stand alone after it.

    A missing segment is empty. Damage before `until` or `seen` does not end the walk: records
    there were acknowledged or seen.
    """
    found = SegmentScan(base, base, marks=IndexBuilder(files.seed))
    path = files.directory / file_names.segment(base, generation)
    if not path.exists():
        return found
    promised = max(until, seen)
    with Segment(path, base, files.seed) as segment:
        for item in segment.walk(BatchPosition(base, 0), is_whole=is_whole):
            header = item.header
            if header is None:
                if found.end >= promised:
                    break  # a torn tail
                found.damage.append(damage_of(files, path.name, item))
                if until != NEVER and item.next is not None and item.next.base <= promised:
                    found.end, found.size = item.next  # it was acknowledged, so it was whole once
                continue
            is_next = header.base == found.end
            if header.end > until and not (header.stands_alone and is_next):
                found.goes_on = is_next
                break
            found.end = header.end
            found.size = item.position + header.length
            found.min_us = min(found.min_us, header.min_us)
            found.max_us = max(found.max_us, header.max_us)
            found.index += found.marks.add(header.base, header.max_us, item.position)
    return found


class Recovery:
    """Opens one partition."""

    def __init__(self, disk: Disk, files: PartitionFiles, report: Report, *, salvage: bool) -> None:
        self._disk = disk
        self._files = files
        self._report = report
        self._salvage = salvage
        self._found: set[tuple[int, int]] = set()  # segments: base and generation

    def open(self, recorded: int | None, seen: int | None) -> OpenedPartition:
        """Open it. `recorded` is the end in the journal, `seen` the end that readers have seen."""
        self._list()
        catalog, is_new = self._catalog()
        catalog, is_new = self._follow(catalog, is_new)
        recorded = self._check_behind(recorded, catalog.next_base)
        seen = seen or 0
        active = self._scan(catalog, recorded, seen)
        if recorded is not None and active.end < seen and active.goes_on:
            recorded = self._check_behind(recorded, seen)
            active = self._scan(catalog, recorded, seen)
        for damage in active.damage:
            if recorded is not None or damage.until >= 0:  # otherwise it is a torn tail
                self._report(str(damage))
        promised = max(recorded or 0, seen)
        is_short = active.end < promised
        if is_short and recorded is not None and not self._salvage:
            raise LostTail(self._files.stream, self._files.partition, active.end, promised)
        self._cut(active)
        if is_short:
            catalog = self._leave_hole(catalog, active, promised)
            active = SegmentScan(promised, promised, marks=IndexBuilder(self._files.seed))
        if is_new or is_short:
            self._save(catalog)
        self._tidy(catalog)
        return OpenedPartition(catalog, active)

    def _scan(self, catalog: Catalog, recorded: int | None, seen: int) -> SegmentScan:
        until = NEVER if recorded is None else recorded
        return scan(self._files, catalog.next_base, 0, until, is_whole=True, seen=seen)

    def _list(self) -> None:
        if not self._files.directory.exists():
            self._disk.make_directory(self._files.directory)
            self._disk.sync_directory(self._files.directory.parent)
        for name in os.listdir(self._files.directory):
            if name.endswith(file_names.UNFINISHED):
                self._disk.remove(self._files.directory / name)
            elif (found := file_names.parse_segment(name)) is not None:
                self._found.add(found)

    def _catalog(self) -> tuple[Catalog, bool]:
        """Return the catalog, and whether it has to be written."""
        try:
            found = Catalog.read(self._files.directory, self._files.seed)
            if found is not None:
                return found, False
            why = "is missing"
        except Malformed as bad:
            why = f"is damaged: {bad}"
        if self._found:
            self._say(f"the catalog {why}; it is rebuilt from the segments")
        return self._rebuilt(), True

    def _rebuilt(self) -> Catalog:
        """Build the catalog from the files; of files with the same offsets the latest counts."""
        segments: list[SealedSegment] = []
        end = 0
        for base, generation in sorted(self._found, key=lambda file: (file[0], -file[1])):
            if segments and base < end:
                continue  # it was compacted or left behind
            found = scan(self._files, base, generation, NEVER, is_whole=False)
            segments.append(found.sealed(generation))
            end = max(found.end, base + 1)
        if segments and segments[-1].generation == 0:
            return Catalog.of(segments[:-1], segments[-1].base)
        return Catalog.of(segments, segments[-1].end if segments else 0)

    def _follow(self, catalog: Catalog, is_new: bool) -> tuple[Catalog, bool]:
        """Add segments after the active one, which an old catalog lacks."""
        later = sorted(
            base for base, generation in self._found if base > catalog.next_base and not generation
        )
        for base in later:
            found = scan(self._files, catalog.next_base, 0, NEVER, is_whole=False)
            if found.end == found.base:  # it is empty
                catalog = Catalog.of(catalog.segments(), base)
            else:
                catalog = catalog.sealed(found.sealed(), base)
            self._say(
                f"the catalog is older than segment {file_names.segment(base)}; that is added"
            )
        return catalog, is_new or bool(later)

    def _check_behind(self, recorded: int | None, end: int) -> int | None:
        """Return the journal's end, or None if the journal is older than the log and is ignored."""
        if recorded is None or recorded >= end:
            return recorded
        behind = JournalBehind(self._files.stream, self._files.partition, end, recorded)
        if not self._salvage:
            raise behind
        self._report(str(behind))
        return None

    def _cut(self, active: SegmentScan) -> None:
        """Cut everything after the end, and sync everything before it, with its name.

        The process that wrote it may have died between a write and its sync, and records that
        readers are shown from now on must survive a power loss.
        """
        path = self._files.directory / file_names.segment(active.base)
        if not path.exists():
            return
        size = path.stat().st_size
        if size > active.size:
            self._say(f"{size - active.size} bytes after offset {active.end} are cut")
        file = self._disk.open(path)
        try:
            if size > active.size:
                self._disk.truncate(file, active.size)
            self._disk.sync(file)
        finally:
            os.close(file)
        self._disk.sync_directory(path.parent)
        self._write_index(path, bytes(active.index))

    def _write_index(self, path: Path, data: bytes) -> None:
        file = self._disk.open(file_names.index(path))
        try:
            self._disk.truncate(file, 0)
            self._disk.write(file, [data], 0)
        finally:
            os.close(file)

    def _leave_hole(self, catalog: Catalog, active: SegmentScan, promised: int) -> Catalog:
        """Leave a gap in place of lost records, and report it."""
        lost = LostTail(self._files.stream, self._files.partition, active.end, promised)
        self._report(str(lost))
        if active.size:
            return catalog.sealed(active.sealed(), promised)
        return Catalog.of(catalog.segments(), promised)

    def _save(self, catalog: Catalog) -> None:
        path = self._files.directory / file_names.CATALOG
        self._disk.replace(path, catalog.encode(self._files.seed))

    def _tidy(self, catalog: Catalog) -> None:
        """Remove files that retention and compaction no longer used when the process died."""
        kept = {(segment.base, segment.generation) for segment in catalog.segments()}
        kept.add((catalog.next_base, 0))
        self._remove(sorted(self._found - kept))
        for base, generation in sorted(kept - self._found - {(catalog.next_base, 0)}):
            self._say(f"{file_names.segment(base, generation)} is missing")

    def _remove(self, files: Iterable[tuple[int, int]]) -> None:
        for base, generation in files:
            path = self._files.directory / file_names.segment(base, generation)
            self._disk.remove(file_names.index(path))
            self._disk.remove(path)

    def _say(self, text: str) -> None:
        self._report(f"stream {self._files.stream!r} p{self._files.partition}: {text}")
