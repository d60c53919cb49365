"""Store the ends up to which readers may read: a small file a stream, overwritten at each commit.

The line is a crc32 in hex and offsets as JSON, padded with blanks to a constant length, so that a
single write replaces it. A reader that sees a half-finished write finds that the checksum does not
match, and reads again. The alternative, a new file renamed over the old one, costs 155 us a commit
on ext4 (which starts writing the new one out) instead of 3, and needs space on a full disk.

The file is not synced: the journal has the ends, and the file is written again at the start. When
the stream is deleted, the file says so, for readers that still have it open.
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
            disk.truncate(self._file, self._bytes)  # bytes after it would break the checksum

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
        """Return the committed ends. Raises UnreadableFile if the file is damaged."""
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
    """Return the offsets in the file, for any stream, or None if they cannot be trusted."""
    try:
        line = path.read_bytes()
        if line[:9] != b"%08x " % zlib.crc32(line[9:-1]):
            return None
        return Offsets.decode(line[9:-1].decode())
    except (OSError, UnicodeDecodeError, Invalid):
        return None
