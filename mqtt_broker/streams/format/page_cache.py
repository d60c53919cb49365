"""Keep only the newest part of the log in the system's page cache.

A log that is written all the time fills the machine's memory with pages that nobody reads again,
and each new page has a cost: a container is charged for it, and a virtual machine has to get it
from its host (measured on one: 0.2 us a message of 100 bytes, 0.02 on pages used before). So pages
older than the newest `bytes_max` are released, and the next writes use them again. Readers that are
further behind read from the disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format.disk import Disk

CACHE_BYTES: Final = 128 << 20
CHUNK_BYTES: Final = 4 << 20  # released in one call, about
_PAGE: Final = 4096


class _Chunk:
    """A part of a segment."""

    __slots__ = ("begin", "end", "path")

    def __init__(self, path: Path, begin: int, end: int) -> None:
        self.path = path
        self.begin = begin
        self.end = end


class PageCache:
    """Keeps the newest bytes of the log in the system's cache, and releases older ones."""

    def __init__(self, disk: Disk, bytes_max: int = CACHE_BYTES) -> None:
        self._disk = disk
        self.bytes_max = bytes_max  # 0: the system decides
        self._filling: dict[Path, _Chunk] = {}  # by directory: the newest chunk of a partition
        self._chunks: deque[_Chunk] = deque()
        self._bytes = 0

    def add(self, path: Path, begin: int, end: int) -> None:
        """Count a part of a segment that was written."""
        if not self.bytes_max:
            return
        chunk = self._filling.get(path.parent)
        if chunk is None or chunk.path != path or chunk.end - chunk.begin >= CHUNK_BYTES:
            if chunk is not None:
                self._chunks.append(chunk)
            chunk = self._filling[path.parent] = _Chunk(path, begin, end)
        chunk.end = end
        self._bytes += end - begin
        while self._bytes > self.bytes_max and self._chunks:
            self._forget(self._chunks.popleft())

    def _forget(self, chunk: _Chunk) -> None:
        self._bytes -= chunk.end - chunk.begin
        begin = chunk.begin // _PAGE * _PAGE  # the page it shares with the chunk before it
        with contextlib.suppress(OSError):  # the file was removed; this is only advice
            self._disk.forget(chunk.path, begin, chunk.end - begin)
