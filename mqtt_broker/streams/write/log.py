"""Open, create, change and delete the streams under one directory; one process writes.

    log = Log.open(root, ends, report=...)      `ends` of the journal, name -> Offsets
    log.create(StreamSettings("telemetry", partitions=4))
    log.maintain(now_us)                        periodically: sealing, retention
    log.compact(now_us)                         streams that keep the last message of a topic

All methods may wait for the disk, so the event loop must not call them. One lock orders changes of
files; it is held for a write or for a change of one catalog, never while a segment is compacted.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from mqtt_broker.streams.format import committed, file_names
from mqtt_broker.streams.format.disk import Disk, Lock
from mqtt_broker.streams.format.errors import Invalid, StreamError, UnknownStream, WrongEpoch
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.page_cache import CACHE_BYTES, PageCache
from mqtt_broker.streams.format.partitioning import PartitionFunctions, names_function
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write import compaction, retention
from mqtt_broker.streams.write.partition import Partition
from mqtt_broker.streams.write.recovery import Report
from mqtt_broker.streams.write.stream import Stream
from sessions.messages.timings import Histogram

_SYNCS_MAX: Final = 7  # and one in the calling thread


class Log:
    """All streams under one directory, opened for writing."""

    def __init__(
        self,
        root: Path,
        disk: Disk,
        report: Report,
        lock: Lock,
        cache_bytes: int,
        functions: PartitionFunctions,
    ) -> None:
        self.root = root
        self.disk = disk
        self.report = report
        self.streams: dict[str, Stream] = {}
        self.lock = threading.RLock()
        self.page_cache = PageCache(disk, cache_bytes)
        self._functions = functions
        self._process_lock = lock
        self._half_made: set[str] = set()  # streams whose creation failed
        self._syncing = ThreadPoolExecutor(_SYNCS_MAX, "fleetmq-sync")
        self.sync_times = Histogram()  # of the files of one write

    @classmethod
    def open(
        cls,
        root: Path,
        ends: Mapping[str, Offsets] | None = None,
        *,
        report: Report,
        salvage: bool = False,
        disk: Disk | None = None,
        cache_bytes: int = CACHE_BYTES,
        partition_functions: PartitionFunctions | None = None,
    ) -> Self:
        """Open all streams. `ends` are those of the journal, or None if there is no journal.

        Without a journal all whole batches are kept. `report` gets a line for everything that is
        cut, missing or damaged. If acknowledged records are missing, LostTail is raised, unless
        `salvage` is given. `cache_bytes`: see `page_cache`. `partition_functions` are those that
        `partition_by` of a stream may name.
        """
        disk = disk or Disk()
        disk.make_directories(root)
        lock = Lock(root / file_names.LOCK)
        log = cls(root, disk, report, lock, cache_bytes, partition_functions or {})
        try:
            disk.sync_directory(root)  # an earlier process may have died after a rename in it
            for path in sorted(root.iterdir()):
                if path.is_dir() and path.name.endswith(file_names.UNFINISHED):
                    disk.remove_directory(path)
                elif path.is_dir() and (path / file_names.METADATA).exists():
                    log._open(path, ends, salvage=salvage)
                elif (path / file_names.partition(0)).is_dir():
                    log._on_nameless(path, salvage=salvage)
            for name in sorted((ends or {}).keys() - log.streams.keys()):
                report(f"stream {name!r}: the journal knows it, but its files are missing")
        except BaseException:
            log.close()
            raise
        return log

    def _open(self, path: Path, ends: Mapping[str, Offsets] | None, *, salvage: bool) -> None:
        recorded = ends.get(path.name) if ends is not None else None
        stream = Stream.open(
            self.disk,
            path,
            recorded,
            self.report,
            functions=self._functions,
            has_journal=ends is not None,
            salvage=salvage,
        )
        if stream.name != path.name:
            stream.close()
            raise Invalid(
                str(path / file_names.METADATA), f"it belongs to another stream, {stream.name!r}"
            )
        self.streams[stream.name] = stream
        partition_by = stream.settings.partition_by
        if self._lacks_function(partition_by):
            self.report(
                f"stream {stream.name!r}: its messages go by client id: {partition_by} is not one "
                "of partition_functions in the configuration"
            )

    def _lacks_function(self, partition_by: str) -> bool:
        return names_function(partition_by) and partition_by not in self._functions

    def _check_function(self, partition_by: str) -> None:
        if self._lacks_function(partition_by):
            raise Invalid(
                "partition_by",
                f"the function {partition_by} is not one of partition_functions in the "
                f"configuration, which has {', '.join(self._functions) or 'none'}",
            )

    def _on_nameless(self, path: Path, *, salvage: bool) -> None:
        """Report a log without settings. No crash causes this: one rename creates a stream."""
        lost = Invalid(
            str(path / file_names.METADATA), "the file is missing, but the stream's segments exist"
        )
        if not salvage:
            raise lost
        self.report(f"{lost}; they are left alone")

    def stream(self, name: str) -> Stream:
        try:
            return self.streams[name]
        except KeyError:
            raise UnknownStream(name) from None

    def create(self, settings: StreamSettings) -> Stream:
        """Create an empty stream with an epoch of its own."""
        settings = replace(settings, epoch=str(uuid.uuid4())).checked().check_schema()
        text = settings.text().encode()
        self._check_function(settings.partition_by)
        with self.lock:
            if settings.name in self.streams:
                raise Invalid("name", f"a stream {settings.name!r} exists already")
            path = self.root / settings.name
            if settings.name in self._half_made and path.exists():
                self.disk.remove_directory(path)
            if path.exists():
                raise Invalid("name", f"{path} exists already, and is not a stream")
            aside = self.root / (settings.name + file_names.UNFINISHED)
            if aside.exists():
                self.disk.remove_directory(aside)
            try:
                self._make(aside, settings, text)
                self.disk.rename(aside, path)
            except BaseException:
                with contextlib.suppress(OSError):  # otherwise the next start removes it
                    self.disk.remove_directory(aside)
                raise
            try:
                self.disk.sync_directory(self.root)
                self._open(path, None, salvage=False)
            except BaseException:
                self._half_made.add(settings.name)  # it can be tried again
                raise
            self._half_made.discard(settings.name)
            return self.streams[settings.name]

    def _make(self, directory: Path, settings: StreamSettings, text: bytes) -> None:
        """Create the files of a new stream."""
        for number in range(settings.partitions):
            self.disk.make_directory(directory / file_names.partition(number))
        writer = committed.Writer(self.disk, directory / file_names.COMMITTED, settings.partitions)
        try:
            writer.write(Offsets(settings.epoch, (0,) * settings.partitions))
        finally:
            writer.close()
        self.disk.replace(directory / file_names.METADATA, text)

    def change(self, name: str, **changes: Any) -> None:
        """Change settings of a stream."""
        with self.lock:
            stream = self.stream(name)
            if changes.get("partition_by", stream.settings.partition_by) != (
                stream.settings.partition_by
            ):
                self._check_function(changes["partition_by"])
            stream.change(changes)

    def delete(self, name: str) -> None:
        """Delete a stream. Readers that have it open get StreamGone.

        One rename deletes it. If removing its files then fails, that is reported, and the next
        start does it.
        """
        with self.lock:
            stream = self.stream(name)
            gone = self.root / f"{stream.epoch}{file_names.UNFINISHED}"
            self.disk.rename(stream.directory, gone)
            del self.streams[name]
            with contextlib.suppress(OSError):
                stream.mark_deleted()
            stream.close()
            with self._reported(stream, deleted=True):
                self.disk.sync_directory(self.root)
        with self._reported(stream, deleted=True):
            self.disk.remove_directory(gone)  # without the lock: a large stream takes long

    def trim(self, name: str, before: Offsets | None = None) -> int:
        """Remove whole segments before these offsets, or all; return how many."""
        with self.lock:
            stream = self.stream(name)
            ends = before or stream.committed()
            if ends.epoch != stream.epoch:
                raise WrongEpoch(name, ends.epoch, stream.epoch)
            return retention.trim(stream, ends.ends)

    def maintain(self, now_us: int) -> int:
        """Seal old segments, remove those that are due, write `committed` files that failed before.

        Return how many segments were removed. Failures are reported, and retried the next time.
        """
        removed = 0
        for stream in list(self.streams.values()):
            with self.lock, self._reported(stream):
                if not stream.is_deleted:
                    stream.show()
                    removed += retention.apply(stream, now_us)
        return removed

    def compact(self, now_us: int, is_over: Callable[[], bool] = lambda: False) -> int:
        """Compact streams with `compact`; return how many messages were removed. May take long."""
        dropped = 0
        for stream in list(self.streams.values()):
            if stream.settings.compact:
                for partition in stream.partitions:
                    with self._reported(stream):
                        dropped += compaction.compact(
                            partition, self.disk, self.lock, now_us, is_over
                        )
        return dropped

    @contextlib.contextmanager
    def _reported(self, stream: Stream, *, deleted: bool = False) -> Iterator[None]:
        try:
            yield
        except (OSError, StreamError) as error:
            if deleted or not stream.is_deleted:
                self.report(f"stream {stream.name!r}: {error}")

    def sync(self, partitions: Sequence[Partition]) -> None:
        """Sync all partitions at once: four files take half as long as one by one."""
        began = time.monotonic()
        others = [self._syncing.submit(partition.sync) for partition in partitions[1:]]
        try:
            for partition in partitions[:1]:
                partition.sync()
        finally:
            wait(others)
        for other in others:
            other.result()
        self.sync_times.add_seconds(time.monotonic() - began)

    def close(self) -> None:
        self._syncing.shutdown()
        with self.lock:
            for stream in self.streams.values():
                stream.close()
            self.streams.clear()
            self._process_lock.release()
