"""Describe a stream, and verify that it is undamaged. It may be written to meanwhile.

describe(source)        counts, sizes and times, from catalogs alone
verify(source)          checks every byte of every file; one line for each finding
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import NEVER, NULL, Malformed
from mqtt_broker.streams.format.errors import Damaged, MissingSegment, StreamError
from mqtt_broker.streams.format.records import time_text
from mqtt_broker.streams.format.segment import BatchPosition, Segment, damage_of
from mqtt_broker.streams.format.segment_catalog import SealedSegment
from mqtt_broker.streams.format.segment_index import Index
from mqtt_broker.streams.read.source import PartitionSource, Source


def describe(source: Source) -> dict[str, Any]:
    """Return counts, sizes and times of a stream, without reading any message.

    Times are the broker's, of sealed segments and of the batches of the last one.
    """
    ends = source.ends().ends
    partitions = []
    for partition, end in zip(source.partitions, ends, strict=True):
        partition.reload()
        catalog = partition.catalog
        name = file_names.segment(catalog.next_base)
        size, min_us, max_us = catalog.size, catalog.min_us, catalog.max_us
        try:
            with Segment(
                partition.files.directory / name, catalog.next_base, partition.files.seed
            ) as last:
                for item in last.walk(BatchPosition(catalog.next_base, 0)):
                    if item.header is not None and item.header.end <= end:
                        size += item.header.length
                        min_us = min(min_us, item.header.min_us)
                        max_us = max(max_us, item.header.max_us)
        except FileNotFoundError:
            pass  # nothing was written since the last one was sealed
        partitions.append(
            {
                "partition": partition.files.partition,
                "start": catalog.start,
                "end": end,
                "segments": len(catalog) + 1,
                "bytes": size,
                "first": time_text(NULL if min_us == NEVER else min_us),
                "last": time_text(max_us),
            }
        )
    settings = source.settings
    return {
        "name": source.name,
        "epoch": source.epoch,
        "partition_by": settings.partition_by,
        "retain_s": settings.retain_s,
        "max_bytes": settings.max_bytes,
        "compact": settings.compact,
        "offsets": sum(ends) - sum(partition.start for partition in source.partitions),
        "bytes": sum(one["bytes"] for one in partitions),
        "partitions": partitions,
    }


@dataclass(slots=True)
class Verdict:
    messages: int = 0
    batches: int = 0
    segments: int = 0
    bytes: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.findings


def verify(source: Source, on_segment: Callable[[str], None] = lambda name: None) -> Verdict:
    """Read all committed records, and list the findings, one line each."""
    verdict = Verdict()
    for partition in source.partitions:
        try:
            _verify_partition(source, partition, verdict, on_segment)
        except StreamError as error:
            verdict.findings.append(str(error))
    return verdict


def _verify_partition(
    source: Source, partition: PartitionSource, verdict: Verdict, on_segment: Callable[[str], None]
) -> None:
    files = partition.files
    committed = source.end(files.partition)
    partition.reload()
    catalog = partition.catalog
    segments = catalog.segments()
    if committed > catalog.next_base:
        segments.append(SealedSegment(catalog.next_base, committed, 0, NEVER, NULL, 0))
    at = catalog.start
    for segment in segments:
        if segment.base != at:
            missing = MissingSegment(
                files.stream, files.partition, at, segment.base, file_names.segment(at)
            )
            verdict.findings.append(str(missing))
        try:
            _verify_segment(partition, segment, verdict)
        except FileNotFoundError:
            partition.reload()
            if partition.start < segment.end:  # otherwise retention has removed it meanwhile
                missing = MissingSegment(
                    files.stream, files.partition, segment.base, segment.end, segment.name
                )
                verdict.findings.append(str(missing))
        at = segment.end
        on_segment(segment.name)
    if committed < at:
        lost = Damaged(files.stream, files.partition, committed, at, "sealed and not committed")
        verdict.findings.append(str(lost))


def _verify_segment(partition: PartitionSource, segment: SealedSegment, verdict: Verdict) -> None:
    files = partition.files
    places: dict[int, int] = {}
    min_us, max_us, end = NEVER, NULL, segment.base
    with Segment(files.directory / segment.name, segment.base, files.seed) as data:
        verdict.segments += 1
        for item in data.walk(BatchPosition(segment.base, 0), is_whole=True):
            if item.base >= segment.end:
                break
            if item.header is None:
                verdict.findings.append(str(damage_of(files, segment.name, item)))
                end = item.next.base if item.next else end
                continue
            batch = data.checked_batch(files, item)
            try:
                batch.check()
            except Malformed as bad:
                found = damage_of(files, segment.name, item._replace(why=str(bad)))
                verdict.findings.append(str(found))
            places[item.base] = item.position
            verdict.batches += 1
            verdict.messages += batch.count
            verdict.bytes += item.header.length
            end = batch.end
            min_us, max_us = min(min_us, item.header.min_us), max(max_us, item.header.max_us)
    name = f"stream {files.stream!r} p{files.partition}: {segment.name}"
    if end < segment.end:
        verdict.findings.append(f"{name} ends with offset {end}, not {segment.end}")
    elif segment.size and (min_us, max_us) != (segment.min_us, segment.max_us):
        verdict.findings.append(f"{name}: the catalog has other times than the segment")
    verdict.findings += [f"{name}: {why}" for why in _index_findings(partition, segment, places)]


def _index_findings(
    partition: PartitionSource, segment: SealedSegment, places: dict[int, int]
) -> Iterator[str]:
    path = file_names.index(partition.files.directory / segment.name)
    if path.is_dir():
        yield "its index is a directory"  # reading is only slower, as without an index
    index = Index.read(path, partition.files.seed)
    for at in range(len(index)):
        entry = index.entry(at)
        if entry is None:
            yield f"index entry {at} does not match its checksum"
        elif entry.base < segment.end and places.get(entry.base) != entry.position:
            yield f"index entry {at} points to no batch"
