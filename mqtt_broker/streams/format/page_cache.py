"""How much of the log stays in the system's page cache: what was written last.

A log that is written day and night fills the memory of its machine with pages that nobody reads
again, and each new page costs: a container is charged for it, and a virtual machine has to get
it from its host (0.2 us a message of 100 bytes on one such, 0.02 on pages used before). So what
is older than the newest `bytes_max` is given back, and the next pages are the same again.
Readers who are further behind read from the disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format.disk import Disk

CACHE_BYTES: Final = 128 << 20
CHUNK_BYTES: Final = 4 << 20  # given back in one call, about
_PAGE: Final = 4096


class _Chunk:
    """A part of a segment."""

    __slots__ = ("begin", "end", "path")

    def __init__(self, path: Path, begin: int, end: int) -> None:
        self.path = path
        self.begin = begin
        self.end = end


class Recent:
    def __init__(self, disk: Disk, bytes_max: int = CACHE_BYTES) -> None:
        self._disk = disk
        self.bytes_max = bytes_max  # 0: as the system likes
        self._filling: dict[Path, _Chunk] = {}  # by directory: what is written to a partition
        self._chunks: deque[_Chunk] = deque()
        self._bytes = 0

    def add(self, path: Path, begin: int, end: int) -> None:
        """This part of a segment was written."""
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
        with contextlib.suppress(OSError):  # it was removed, or is taken for what it is: advice
            self._disk.forget(chunk.path, begin, chunk.end - begin)
