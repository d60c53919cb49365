"""Copy a log that is written to, up to ends that the journal has.

    copy = LogCopy(log)
    with log.lock:                    # nothing is committed meanwhile
        snapshot = ...                # the journal's transaction, with its ends
        copy.capture()                # links all files: microseconds each
    copy.write(target, ends, ...)     # may take long
    copy.close()

Sealed segments never change, so the copy has the same files by hard links, where the target is on
the same file system. The active segment is copied up to the end, since it is appended to. Under
the lock the journal knows everything in sealed segments, so an end lies in the active one.

The links are made below the root of the log, in a directory whose name ends in `.new`: retention
and compaction cannot take a file away, and the next start removes what a killed process left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format import committed, file_names
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import LostTail, StreamError
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.segment import BatchPosition, PartitionFiles, Segment
from mqtt_broker.streams.format.segment_catalog import Catalog
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.partition import Partition
from mqtt_broker.streams.write.stream import Stream

OnBytes = Callable[[int], None]  # called with the number of new bytes; what it raises ends the copy
PIECE_BYTES: Final = 1 << 20
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}
)


@dataclass(frozen=True, slots=True)
class CopiedStream:
    """A stream of the copy: the offsets that it has."""

    epoch: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    files: PartitionFiles
    catalog: Catalog
    active_bytes: int
    committed: int


@dataclass(frozen=True, slots=True)
class _Captured:
    settings: StreamSettings
    parts: list[_Part]


class LogCopy:
    """The files of a log at one moment."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._disk = Disk()
        self._staging = log.root / f"backup-{uuid.uuid4()}{file_names.UNFINISHED}"
        self._streams: list[_Captured] = []
        self._has_links = True

    # Under the log's lock.

    def capture(self) -> None:
        """Hold on to all files as they are; the caller has the log's lock."""
        self._disk.make_directory(self._staging)
        for stream in self._log.streams.values():
            if not stream.is_deleted:
                self._streams.append(self._capture(stream))

    def _capture(self, stream: Stream) -> _Captured:
        parts = []
        for partition in stream.partitions:
            files = partition.files
            held = self._staging / stream.name / file_names.partition(files.partition)
            self._disk.make_directory(held)
            for name in _names(partition.catalog):
                self._hold(files.directory / name, held / name)
            self._hold(partition.path, held / partition.path.name)
            parts.append(_part(partition))
        return _Captured(stream.settings, parts)

    def _hold(self, path: Path, link: Path) -> None:
        if not self._has_links:
            return
        try:
            os.link(path, link)
        except FileNotFoundError:
            pass  # an index need not be there; a segment that is missing is missed in the copy, too
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._has_links = False

    # Without the lock.

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        parts = [part for stream in self._streams for part in stream.parts]
        return sum(part.catalog.size + part.active_bytes for part in parts)

    def write(
        self, root: Path, ends: Mapping[str, str], on_bytes: OnBytes
    ) -> dict[str, CopiedStream]:
        """Write the log below a new directory, up to the journal's ends. All files are synced."""
        self._disk.make_directory(root)
        copied = {}
        for stream in self._streams:
            name = stream.settings.name
            recorded = Offsets.decode(ends[name]) if name in ends else None
            if recorded is not None and recorded.epoch != stream.settings.epoch:
                recorded = None  # of a stream of this name that was deleted
            copied[name] = self._write(root / name, stream, recorded, on_bytes)
        self._disk.sync_directory(root)
        return copied

    def _write(
        self, directory: Path, stream: _Captured, recorded: Offsets | None, on_bytes: OnBytes
    ) -> CopiedStream:
        self._disk.make_directory(directory)
        settings = stream.settings
        until = recorded.ends if recorded else tuple(part.committed for part in stream.parts)
        for part, end in zip(stream.parts, until, strict=True):
            self._write_part(directory, part, end, on_bytes)
        writer = committed.Writer(self._disk, directory / file_names.COMMITTED, settings.partitions)
        try:
            writer.write(Offsets(settings.epoch, until))
        finally:
            writer.close()
        self._disk.replace(directory / file_names.METADATA, settings.text().encode())
        starts = tuple(part.catalog.start for part in stream.parts)
        return CopiedStream(settings.epoch, starts, until)

    def _write_part(self, directory: Path, part: _Part, end: int, on_bytes: OnBytes) -> None:
        files, catalog = part.files, part.catalog
        target = directory / file_names.partition(files.partition)
        self._disk.make_directory(target)
        held = self._staging / files.stream / target.name if self._has_links else files.directory
        for name in _names(catalog):
            self._place(held / name, target / name, on_bytes)
        active = file_names.segment(catalog.next_base)
        if end > catalog.next_base:
            size = _bytes_before(files, held / active, catalog.next_base, end)
            _copy(held / active, target / active, size, on_bytes)
        self._disk.replace(target / file_names.CATALOG, catalog.encode(files.seed))

    def _place(self, source: Path, target: Path, on_bytes: OnBytes) -> None:
        """Move a link of a sealed file to its place, or copy the file."""
        try:
            size = source.stat().st_size
            if self._has_links:
                try:
                    source.rename(target)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                else:
                    on_bytes(size)
                    return
            _copy(source, target, size, on_bytes)
        except FileNotFoundError:
            if not self._has_links and target.suffix == ".seg":
                raise StreamError(
                    f"{source} was removed while the log was copied: try again"
                ) from None

    def close(self) -> None:
        """Remove the links."""
        with contextlib.suppress(OSError):
            if self._staging.exists():
                shutil.rmtree(self._staging)


def _part(partition: Partition) -> _Part:
    return _Part(partition.files, partition.catalog, partition.active.size, partition.committed)


def _names(catalog: Catalog) -> list[str]:
    """Return the files of sealed segments, with their indexes."""
    segments = [Path(segment.name) for segment in catalog.segments()]
    return [path.name for one in segments for path in (one, file_names.index(one))]


def _bytes_before(files: PartitionFiles, path: Path, base: int, end: int) -> int:
    """Return the place in a segment where the record with the offset `end` begins.

    Damage before it stays, and is reported by whoever reads the copy, as by readers of the log.
    """
    position, reached = 0, base
    with Segment(path, base, files.seed) as segment:
        for item in segment.walk(BatchPosition(base, 0)):
            if reached >= end:
                break
            if item.header is not None:
                position = item.position + item.header.length
                reached = item.header.end
            elif item.next is not None:
                reached, position = item.next
    if reached != end:
        raise LostTail(files.stream, files.partition, reached, end)
    return position


def _copy(source: Path, target: Path, size: int, on_bytes: OnBytes) -> None:
    """Copy the first bytes of a file, and sync them."""
    mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with source.open("rb") as old, os.fdopen(os.open(target, mode, 0o640), "wb") as new:
        left = size
        while left:
            piece = old.read(min(left, PIECE_BYTES))
            if not piece:
                raise StreamError(f"{source} is {left} bytes shorter than expected")
            new.write(piece)
            left -= len(piece)
            on_bytes(len(piece))
        new.flush()
        os.fsync(new.fileno())
