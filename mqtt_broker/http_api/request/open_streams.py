"""The streams of a directory, kept open for readers over HTTP.

All methods read files and may wait for the disk, so they are called in threads and take locks. A
stream stays open until its `stream.json` is replaced: the stream was changed, deleted, or created
again.

A piece has a file descriptor of its own. Retention, compaction and deletion only unlink files, so
a piece that is being sent stays complete.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.errors import Damaged, Invalid, UnknownPartition, WrongEpoch
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.read import verify
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source, stream_names

OPEN_MAX: Final = 64
_TRIES: Final = 10
_PARTITION: Final = re.compile(r"p(0|[1-9]\d{0,8})")
T = TypeVar("T")


class Piece(NamedTuple):
    """Whole batches in a file, to be sent and then closed."""

    file: io.FileIO
    position: int
    length: int
    base: int  # of the first batch
    start: int  # the first offset that was requested
    end: int  # the first offset after the piece
    segment: str


class Answer(NamedTuple):
    """A piece of a partition, and where the partition begins and ends."""

    epoch: str
    partition: int
    earliest: int
    latest: int
    piece: Piece | None  # None: there is nothing at this offset yet

    def close(self) -> None:
        """Close the file of the piece."""
        if self.piece is not None:
            self.piece.file.close()


class _Open:
    """An open stream; its lock is held while a thread reads from it."""

    def __init__(self, source: Source, known: tuple[int, int]) -> None:
        self.source = source
        self.known = known  # inode and time of its stream.json
        self.lock = threading.Lock()
        self.is_closed = False

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            self.source.close()


class OpenStreams:
    """Opens streams on demand and keeps the most recently used ones open."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()  # guards the dictionary; never held during disk access
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def names(self) -> list[str]:
        """Return the names of all streams."""
        return stream_names(self._root)

    def about(self, name: str, epoch: str = "") -> dict[str, Any]:
        """Return a stream's settings, and where its partitions begin and end."""
        return self._do(name, epoch, _about)

    def describe(self, name: str, epoch: str = "") -> dict[str, Any]:
        """Return sizes and times as well. This reads all segments, outside the stream's lock."""

        def work() -> dict[str, Any]:
            with Source.open(self._root, name) as source:
                _check_epoch(source, epoch)
                return verify.describe(source)

        return self._try(name, work)

    def resolve(self, name: str, text: str, epoch: str = "") -> Offsets:
        """Return the offsets for a time, earliest or latest."""
        return self._do(name, epoch, lambda source: source.resolve(text))

    def use(self, name: str, work: Callable[[Source], T]) -> T:
        """Call `work` with a stream, which nobody else reads meanwhile."""
        return self._do(name, "", work)

    def ends(self, name: str, epoch: str) -> tuple[int, ...]:
        """Return the ends of all partitions."""
        return self._do(name, epoch, lambda source: source.ends().ends)

    def extent(
        self, name: str, partition: str, offset: int, until: int, bytes_max: int, epoch: str
    ) -> Answer:
        """Return the next batches of a partition, whose name is `p` and its number."""

        def work(source: Source) -> Answer:
            count = source.settings.partitions
            number = _PARTITION.fullmatch(partition)
            if number is None or int(number[1]) >= count:
                raise UnknownPartition(name, partition[:20], count)
            return _extent(source, int(number[1]), offset, until, bytes_max)

        return self._do(name, epoch, work)

    def _do(self, name: str, epoch: str, work: Callable[[Source], T]) -> T:
        """Call `work` with the stream under its lock."""

        def attempt() -> T:
            while True:
                opened = self._opened(name)
                with opened.lock:
                    if not opened.is_closed:  # otherwise the stream was replaced meanwhile
                        _check_epoch(opened.source, epoch)
                        return work(opened.source)

        return self._try(name, attempt)

    def _try(self, name: str, work: Callable[[], T]) -> T:
        """Run the work again if it failed because the stream was replaced during it.

        What it read then came partly from the old stream and partly from the new one.
        """
        file_names.check_stream(name)
        for _ in range(_TRIES):
            before = self._known(name)
            try:
                return work()
            except (Invalid, Damaged, WrongEpoch):
                if self._known(name) == before:
                    raise
        return work()

    def _known(self, name: str) -> tuple[int, int]:
        """Identify the stream's metadata file by inode and time."""
        try:
            status = os.stat(self._root / name / file_names.METADATA)
        except FileNotFoundError:
            return (0, 0)
        return status.st_ino, status.st_mtime_ns

    def _opened(self, name: str) -> _Open:
        known = self._known(name)
        with self._lock:
            opened = self._open.get(name)
            if opened is not None and opened.known == known:
                self._open.move_to_end(name)
                return opened
            old = [self._open.pop(name)] if opened is not None else []
        try:
            opened = _Open(Source.open(self._root, name), known)
            with self._lock:
                other = self._open.pop(name, None)
                if other is not None:
                    old.append(other)
                self._open[name] = opened
                if len(self._open) > OPEN_MAX:
                    old.append(self._open.popitem(last=False)[1])
        finally:
            for one in old:
                one.close()
        return opened

    def close(self) -> None:
        """Close all streams."""
        with self._lock:
            opened = list(self._open.values())
            self._open.clear()
        for one in opened:
            one.close()


def _about(source: Source) -> dict[str, Any]:
    settings = asdict(source.settings)
    del settings["epoch"], settings["schema"]
    return {
        "name": source.name,
        "epoch": source.epoch,
        "settings": settings,
        "schema": source.settings.schema,
        "starts": partition_map(source.starts().ends),
        "ends": partition_map(source.ends().ends),
    }


def _extent(source: Source, number: int, offset: int, until: int, bytes_max: int) -> Answer:
    with Reader(source, number, offset, until) as reader:
        found = reader.extent(bytes_max)
        earliest, latest = source.partition(number).start, source.end(number)
        piece = None
        if found is not None:
            piece = Piece(
                io.FileIO(os.dup(found.file)),
                found.position,
                found.length,
                found.base,
                found.start,
                found.end,
                reader.segment_name,
            )
        return Answer(source.epoch, number, earliest, latest, piece)


def _check_epoch(source: Source, epoch: str) -> None:
    if epoch and epoch != source.epoch:
        raise WrongEpoch(source.name, epoch[:80], source.epoch)


def partition_map(offsets: Sequence[int]) -> dict[str, int]:
    """Return the offsets by the names of their partitions."""
    return {f"p{number}": offset for number, offset in enumerate(offsets)}
