"""Keep the ends that readers may read to: a small file a stream, overwritten with each commit.

The line is a crc32 in hex and offsets as JSON, filled up with blanks to a length that never
changes, so that one write is the whole of it. A reader that meets a write half way sees a checksum
that does not match, and looks again. The alternative is a new file renamed over the old one, which
costs 155 us a commit on ext4 (it starts writing the new one out) against 3, and needs room on a
full disk.

Nobody waits for it to be on disk: the journal knows the ends, and the file is written anew at the
start. When its stream is deleted the file says so, for readers that still have it open.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import Invalid, StreamGone, UnreadableFile
from mqtt_broker.streams.format.offsets import Offsets, parse

_DELETED: Final = '{"deleted": true}'
_TRIES: Final = 100


def size_of(partitions: int) -> int:
    return 72 + 30 * partitions


def encode(text: str, size: int) -> bytes:
    body = text.encode().ljust(size - 10)
    return b"%08x " % zlib.crc32(body) + body + b"\n"


class Writer:
    """Overwrites the file of one stream."""

    def __init__(self, disk: Disk, path: Path, partitions: int) -> None:
        self._disk = disk
        self._file = disk.open(path)
        self._bytes = size_of(partitions)
        if os.fstat(self._file).st_size > self._bytes:
            disk.truncate(self._file, self._bytes)  # what is behind it would break the checksum

    def write(self, offsets: Offsets) -> None:
        self._disk.write(self._file, [encode(offsets.text(), self._bytes)], 0)

    def write_deleted(self) -> None:
        self._disk.write(self._file, [encode(_DELETED, self._bytes)], 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Reader:
    """Keeps the file open: reading it again costs a microsecond while nothing has changed."""

    def __init__(self, path: Path, stream: str, epoch: str, partitions: int) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._stream = stream
        self._epoch = epoch
        self._partitions = partitions
        self._last: bytes | None = None
        self._ends: tuple[int, ...] = ()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self) -> tuple[int, ...]:
        """Return the committed ends; UnreadableFile: the file is damaged."""
        for _ in range(_TRIES):
            line = os.pread(self._file, size_of(self._partitions) + 1, 0)
            if line == self._last:
                return self._ends
            body = line[9:-1]
            if line[:9] == b"%08x " % zlib.crc32(body):
                text = body.decode().rstrip()
                if text == _DELETED:
                    raise StreamGone(self._stream)
                self._ends = parse(text, self._stream, self._epoch, self._partitions).ends
                self._last = line
                return self._ends
        raise UnreadableFile(
            "committed", f"the file of stream {self._stream!r} does not match its checksum"
        )


def peek(path: Path) -> Offsets | None:
    """Return the offsets in the file, of whatever stream; None: they cannot be trusted."""
    try:
        line = path.read_bytes()
        if line[:9] != b"%08x " % zlib.crc32(line[9:-1]):
            return None
        return Offsets.decode(line[9:-1].decode())
    except (OSError, UnicodeDecodeError, Invalid):
        return None
