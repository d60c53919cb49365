"""Compact segments: rewrite them with only the last message of each topic.

Offsets do not change: a compacted batch covers the same offsets as before and lists those of its
rows. An empty payload deletes its topic; as the last message of a topic it is kept for
`tombstone_s`, so that readers see it, and is removed after that.

Only sealed segments are compacted. Segments that are new since the last time are read first, to
find the last message of each topic in them; then all segments are compared with that. A segment
that was compacted before and in which nothing is superseded stays as it is, and neighbours that
became small are joined. The topics of new segments are held in memory, about `TOPICS_MAX` of them
and `TOPIC_BYTES_MAX` at most: with more, the rest waits for the next run. Damage ends the run: the
lost records may be the ones that have to be kept.

A new file is synced under a name of its own before the catalog is replaced; only then are the old
files removed. Readers that have those open can read on. A crash in between leaves a file that no
catalog lists, and that the next start removes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import NEVER, NULL, SPAN_MAX, Batch, times_of
from mqtt_broker.streams.format.batch_builder import ROW_BYTES, BatchBuilder, Run
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import MissingSegment
from mqtt_broker.streams.format.segment import BatchPosition, PartitionFiles, Segment, damage_of
from mqtt_broker.streams.format.segment_catalog import SealedSegment
from mqtt_broker.streams.format.segment_index import IndexBuilder
from mqtt_broker.streams.write.partition import Partition

TOPICS_MAX: Final = 2_000_000
TOPIC_BYTES_MAX: Final = 256 << 20
Latest = dict[bytes, int]  # topic -> offset of its last message in new segments


class _Stopped(Exception):
    """The caller wants compaction to stop."""


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The rules that select records for removal: superseded ones, and old tombstones."""

    latest: Latest
    tombstones_before_us: int

    def kept(self, batch: Batch) -> list[int]:
        """Return the rows of a batch that stay."""
        latest, before_us = self.latest, self.tombstones_before_us
        keys = zip(batch.topics(), batch.offsets(), batch.payloads(), batch.received(), strict=True)
        return [
            row
            for row, (topic, offset, payload, received_us) in enumerate(keys)
            if latest.get(topic, -1) <= offset and (payload or received_us >= before_us)
        ]


def compact(
    partition: Partition,
    disk: Disk,
    lock: threading.RLock,
    now_us: int,
    is_over: Callable[[], bool],
) -> int:
    """Compact one partition; return how many messages were removed."""
    return _Compaction(partition, disk, lock, is_over).run(now_us)


class _Compaction:
    def __init__(
        self,
        partition: Partition,
        disk: Disk,
        lock: threading.RLock,
        is_over: Callable[[], bool],
    ) -> None:
        self._partition = partition
        self._files: PartitionFiles = partition.files
        self._disk = disk
        self._lock = lock
        self._is_over = is_over

    def run(self, now_us: int) -> int:
        segments = self._partition.catalog.segments()
        settings = self._partition.settings
        dropped = 0
        try:
            latest, until = self._latest(segments)
            rules = CompactionRules(latest, now_us - settings.tombstone_s * 1_000_000)
            segments = [segment for segment in segments if segment.end <= until]
            span_us = settings.seal_s * 1_000_000 if settings.retain_s else NEVER
            for group in _groups(segments, settings.seal_bytes, span_us):
                dropped += self._compact(group, rules)
        except _Stopped:
            pass
        return dropped

    def _batches(self, segment: SealedSegment) -> Iterator[Batch]:
        files = self._files
        try:
            source = Segment(files.directory / segment.name, segment.base, files.seed)
        except FileNotFoundError:
            raise MissingSegment(
                files.stream, files.partition, segment.base, segment.end, segment.name
            ) from None
        with source:
            for item in source.walk(BatchPosition(segment.base, 0)):
                if self._is_over():
                    raise _Stopped
                if item.header is None:
                    raise damage_of(files, segment.name, item)
                yield source.checked_batch(files, item)

    def _latest(self, segments: list[SealedSegment]) -> tuple[Latest, int]:
        """Return the last offset of each topic in new segments, and the end of those read."""
        latest: Latest = {}
        until = segments[-1].end if segments else 0
        for segment in segments:
            if segment.generation:
                continue
            if len(latest) > TOPICS_MAX or sum(map(len, latest)) > TOPIC_BYTES_MAX:
                return latest, segment.base
            for batch in self._batches(segment):
                latest.update(zip(batch.topics(), batch.offsets(), strict=True))
        return latest, until

    def _compact(self, group: list[SealedSegment], rules: CompactionRules) -> int:
        if len(group) == 1 and group[0].generation:
            if all(len(rules.kept(batch)) == batch.count for batch in self._batches(group[0])):
                return 0
        base, end = group[0].base, group[-1].end
        generation = max(segment.generation for segment in group) + 1
        path = self._files.directory / file_names.segment(base, generation)
        aside = path.with_name(path.name + file_names.UNFINISHED)
        output = _Output(self._disk, aside, self._files.seed, base)
        try:
            for segment in group:
                for batch in self._batches(segment):
                    output.add(batch, rules.kept(batch))
            output.finish(end)
        except BaseException:
            output.close()
            self._disk.remove(aside)
            raise
        output.close()
        self._put_index(file_names.index(path), bytes(output.index))
        self._disk.rename(aside, path)
        self._disk.sync_directory(path.parent)
        sealed = SealedSegment(base, end, output.size, output.min_us, output.max_us, generation)
        return output.dropped if self._swap(group, sealed) else 0

    def _put_index(self, path: Path, data: bytes) -> None:
        file = self._disk.open(path)
        try:
            self._disk.truncate(file, 0)
            self._disk.write(file, [data], 0)
            self._disk.sync(file)
        finally:
            os.close(file)

    def _swap(self, group: list[SealedSegment], sealed: SealedSegment) -> bool:
        """Replace the catalog, unless retention has changed it meanwhile."""
        partition = self._partition
        with self._lock:
            partition.finish_roll()
            catalog = partition.catalog
            at = catalog.find(group[0].base)
            if at < 0 or catalog.segments()[at : at + len(group)] != group:
                partition.remove_file(sealed.name)
                return False
            partition.save(catalog.replaced(at, len(group), sealed))
            for segment in group:
                partition.remove_file(segment.name)
            return True


def _groups(
    segments: list[SealedSegment], bytes_max: int, span_us: int
) -> Iterator[list[SealedSegment]]:
    """Yield neighbours without a gap between them that fit into one segment, by size and by age.

    Age counts because retention removes a segment only when its youngest record is due.
    """
    group: list[SealedSegment] = []
    size = 0
    for segment in segments:
        if group and (
            size + segment.size > bytes_max
            or segment.base != group[-1].end
            or segment.max_us - min(one.min_us for one in group) > span_us
        ):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


class _Output:
    """A segment that is written batch by batch; it covers its offsets without gaps."""

    def __init__(self, disk: Disk, path: Path, seed: int, base: int) -> None:
        self._disk = disk
        self._file = disk.open(path)
        disk.truncate(self._file, 0)
        self._seed = seed
        self._base = base  # of the batch that is being filled
        self._end = base
        self._builder = BatchBuilder()
        self._offsets: list[int] = []
        self._marks = IndexBuilder(seed)
        self.index = bytearray()
        self.size = 0
        self.min_us = NEVER
        self.max_us = NULL
        self.dropped = 0

    def add(self, batch: Batch, rows: list[int]) -> None:
        if self._builder.is_full or batch.end - self._base > SPAN_MAX:
            self._write()
        self.dropped += batch.count - len(rows)
        self._end = batch.end
        if not rows:
            return
        topics, clients, payloads = batch.topics(), batch.client_ids(), batch.payloads()
        sections, flags, received = batch.properties(), batch.flags(), batch.received()
        events, sents, offsets = batch.event(), batch.sent(), batch.offsets()
        for row in rows:
            run = Run(1, topics[row], clients[row], sections[row], flags[row], received[row])
            size = len(topics[row]) + len(payloads[row]) + len(sections[row]) + ROW_BYTES
            self._builder.append_run(
                run,
                [payloads[row]],
                size,
                (events[row],) if events else (),
                (sents[row],) if sents else (),
            )
            self._offsets.append(offsets[row])

    def _write(self) -> None:
        parts = self._builder.encode_sparse(self._seed, self._base, self._offsets, self._end)
        min_us, max_us = times_of(parts[0])
        self.index += self._marks.add(self._base, max_us, self.size)
        self.size = self._disk.write(self._file, parts, self.size)
        self.min_us = min(self.min_us, min_us)
        self.max_us = max(self.max_us, max_us)
        self._base = self._end
        self._builder = BatchBuilder()
        self._offsets = []

    def finish(self, end: int) -> None:
        """Cover the remaining offsets, with or without rows."""
        self._end = end
        if self._base < end:
            self._write()
        self._disk.sync(self._file)

    def close(self) -> None:
        os.close(self._file)
