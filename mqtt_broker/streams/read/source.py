"""Find the end, offsets and times of a stream in its files.

Only files are read, so this works in the process that writes and in any other one with access to
the disk. The catalog is read once, and again when it is found to be old; files are opened when they
are read. Finding the end costs a microsecond, so it may be done often.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from mqtt_broker.streams.format import committed, file_names
from mqtt_broker.streams.format import offsets as offset_texts
from mqtt_broker.streams.format.batch import NULL, Malformed, seed_of
from mqtt_broker.streams.format.errors import (
    Damaged,
    Invalid,
    MissingSegment,
    OffsetGone,
    StreamError,
    StreamGone,
    UnknownPartition,
    UnknownStream,
    UnreadableFile,
)
from mqtt_broker.streams.format.offsets import EARLIEST, EXPECTED, LATEST, Offsets, parse_time
from mqtt_broker.streams.format.segment import PartitionFiles, Segment
from mqtt_broker.streams.format.segment_catalog import Catalog
from mqtt_broker.streams.format.stream_settings import RETAIN_PARTS, StreamSettings


def now_us() -> int:
    """Return the current time, from which retention is counted."""
    return time.time_ns() // 1_000


def stream_names(root: Path) -> list[str]:
    """Return the names of the streams under a directory."""
    try:
        found = sorted(root.iterdir())
    except OSError:
        return []
    return [
        path.name
        for path in found
        if not path.name.endswith(file_names.UNFINISHED) and (path / file_names.METADATA).exists()
    ]


class Location(NamedTuple):
    """The segment that has an offset."""

    name: str
    base: int
    end: int  # -1: it is written to


class PartitionSource:
    """The files of one partition, with its catalog."""

    def __init__(self, files: PartitionFiles) -> None:
        self.files = files
        self.catalog = Catalog.of([], 0)
        self._known: tuple[int, int] = (0, 0)  # inode and time of the catalog that was read last
        self.reload()

    def reload(self) -> None:
        """Read the catalog again if the file has changed."""
        path = self.files.directory / file_names.CATALOG
        try:
            status = os.stat(path)
            known = (status.st_ino, status.st_mtime_ns)
            if known == self._known:
                return
            found = Catalog.read(self.files.directory, self.files.seed)
        except FileNotFoundError:
            found = None
        except Malformed as bad:
            if not self._is_ours():
                raise StreamGone(self.files.stream) from None
            raise UnreadableFile(str(path), str(bad)) from None
        if found is not None:
            self.catalog = found
            self._known = known
        elif not self.files.directory.exists():
            raise StreamGone(self.files.stream)

    def _is_ours(self) -> bool:
        """Tell whether the directory still holds the stream that was opened."""
        try:
            epoch = StreamSettings.read(self.files.directory.parent).epoch
        except StreamError:
            return False
        return seed_of(epoch, self.files.partition) == self.files.seed

    @property
    def start(self) -> int:
        """The earliest offset that is kept."""
        return self.catalog.start

    def locate(self, offset: int) -> Location:
        """Find the segment in the catalog as last read. Raises OffsetGone, MissingSegment."""
        catalog = self.catalog
        files = self.files
        if offset < catalog.start:
            raise OffsetGone(files.stream, files.partition, offset, catalog.start)
        at = catalog.find(offset)
        if at >= 0:
            segment = catalog[at]
            if offset < segment.end:
                return Location(segment.name, segment.base, segment.end)
        if offset >= catalog.next_base:
            return Location(file_names.segment(catalog.next_base), catalog.next_base, -1)
        until = catalog[at + 1].base if at + 1 < len(catalog) else catalog.next_base
        raise MissingSegment(
            files.stream, files.partition, offset, until, file_names.segment(catalog[at].end)
        )

    def open(self, offset: int, committed: int) -> tuple[Location, Segment]:
        """Open the segment that has an offset below the committed end."""
        while True:
            known = self._known
            try:
                return self._open(offset, committed)
            except (OffsetGone, MissingSegment):
                self.reload()
                if self._known == known:  # otherwise retention or compaction has changed it
                    raise

    def _open(self, offset: int, committed: int) -> tuple[Location, Segment]:
        location = self.locate(offset)
        files = self.files
        try:
            segment = Segment(files.directory / location.name, location.base, files.seed)
        except FileNotFoundError:
            until = location.end if location.end >= 0 else committed
            raise MissingSegment(
                files.stream, files.partition, offset, until, location.name
            ) from None
        return location, segment

    def find_time(self, at_us: int, committed: int) -> int:
        """Return the first offset received at this time or later, or the end if there is none."""
        self.reload()
        catalog = self.catalog
        at = catalog.find_time(at_us)
        base = catalog[at].base if at < len(catalog) else catalog.next_base
        if base >= committed:
            return committed
        _, segment = self.open(base, committed)
        with segment:
            for item in segment.walk(segment.find_time(at_us)):
                if item.base >= committed:
                    break
                if item.header is not None and item.header.max_us >= at_us:
                    batch = segment.checked_batch(self.files, item)
                    return batch.offsets()[batch.row_since(at_us)]
        return committed

    def first_since(self, at_us: int, committed: int) -> int:
        """Return the offset from which a reader gets everything received at this time or later.

        If such records may be in a damaged part, it is before the damage, so that the reader gets
        the error.
        """
        self.reload()
        catalog = self.catalog
        at = catalog.find_time(at_us)
        base = catalog[at].base if at < len(catalog) else catalog.next_base
        if base >= committed:
            return committed
        doubted = -1
        try:
            _, segment = self.open(base, committed)
            with segment:
                for item in segment.walk(segment.find_time(at_us)):
                    if item.base >= committed:
                        break
                    base = item.base
                    if item.header is None:
                        doubted = base if doubted < 0 else doubted
                    elif item.header.max_us >= at_us:
                        if doubted >= 0:
                            return doubted
                        batch = segment.checked_batch(self.files, item)
                        return batch.offsets()[batch.row_since(at_us)]
                    else:
                        doubted = -1
        except Damaged:
            return base
        return doubted if doubted >= 0 else committed


class Source:
    """A stream, for reading.

    Records older than the retention are not read, even if their segment still exists: `earliest` is
    the first offset after them. A reader that started in time may lag behind by a part of the
    retention.
    """

    def __init__(self, directory: Path, clock_us: Callable[[], int] = now_us) -> None:
        self.settings = StreamSettings.read(directory)
        self._clock_us = clock_us
        self._committed = committed.Reader(
            directory / file_names.COMMITTED, self.name, self.epoch, self.settings.partitions
        )
        try:
            self.partitions = [
                PartitionSource(
                    PartitionFiles(
                        self.name,
                        number,
                        directory / file_names.partition(number),
                        seed_of(self.epoch, number),
                    )
                )
                for number in range(self.settings.partitions)
            ]
        except BaseException:
            self._committed.close()
            raise

    @classmethod
    def open(cls, root: Path, name: str, clock_us: Callable[[], int] = now_us) -> Self:
        file_names.check_stream(name)
        try:
            return cls(root / name, clock_us)
        except FileNotFoundError:
            raise UnknownStream(name) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._committed.close()

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def epoch(self) -> str:
        return self.settings.epoch

    def partition(self, number: int) -> PartitionSource:
        if not 0 <= number < len(self.partitions):
            raise UnknownPartition(self.name, f"p{number}", len(self.partitions))
        return self.partitions[number]

    def end(self, partition: int) -> int:
        """Return the offset up to which a partition may be read now."""
        return self._committed.read()[partition]

    def ends(self) -> Offsets:
        return Offsets(self.epoch, self._committed.read())

    @property
    def retain_s(self) -> int:
        return self.settings.retain_s

    def oldest_us(self, *, is_late: bool = False) -> int:
        """Return the time before which records are not read, or NULL if there is none.

        `is_late`: for a reader that started in time.
        """
        retain_us = self.retain_s * 1_000_000
        if not retain_us:
            return NULL
        return self._clock_us() - retain_us - (retain_us // RETAIN_PARTS if is_late else 0)

    def starts(self) -> Offsets:
        """Return the first offsets that can be read."""
        return self._since(self.oldest_us(is_late=True))

    def earliest(self) -> Offsets:
        """Return the first offsets of the records within the retention."""
        return self._since(self.oldest_us())

    def _since(self, at_us: int) -> Offsets:
        if at_us != NULL:
            ends = self.ends().ends
            found = (
                max(partition.start, partition.first_since(at_us, end))
                for partition, end in zip(self.partitions, ends, strict=True)
            )
            return Offsets(self.epoch, tuple(found))
        for partition in self.partitions:
            partition.reload()
        return Offsets(self.epoch, tuple(partition.start for partition in self.partitions))

    def resolve(self, text: str) -> Offsets:
        """Return offsets for `earliest`, `latest`, offsets as JSON, or an ISO 8601 time.

        Every partition can be read from these offsets.
        """
        if text == EARLIEST:
            return self.earliest()
        ends = self.ends()
        if text == LATEST:
            return ends
        if text.lstrip().startswith("{"):
            found = offset_texts.parse(text, self.name, self.epoch, len(self.partitions))
            offset_texts.check(self.name, found, self.starts().ends, ends.ends)
            return found
        at_us = parse_time(text)
        if at_us is None:
            raise Invalid("offsets", f"{text[:80]!r} is invalid: expected {EXPECTED}")
        return self.at_time(at_us)

    def at_time(self, at_us: int) -> Offsets:
        if at_us <= self.oldest_us():
            return self.earliest()
        ends = self.ends().ends
        return Offsets(
            self.epoch,
            tuple(
                partition.find_time(at_us, end)
                for partition, end in zip(self.partitions, ends, strict=True)
            ),
        )
