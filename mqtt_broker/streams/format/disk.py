"""Change files: the one place for the system calls that take time, and that tests make fail.

Only the owner and the group may read files and directories: they contain clients' messages.

Durability rests on three calls: `sync` (the bytes of a file), `replace` (a small file that is the
old or the new one after any crash) and `sync_directory` (names).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format.errors import Locked, StreamError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_VECTOR_MAX: Final = 512  # buffers in one call; Linux takes 1,024
_HAS_DATA_SYNC: Final = hasattr(os, "fdatasync")  # macOS has fsync alone


class Disk:
    """The calls of the operating system; tests replace them to make them fail."""

    def open(self, path: Path) -> int:
        """Open a file for writing, a new or an existing one."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, file: int, buffers: Sequence[bytes], position: int) -> int:
        """Write all buffers from this position on, in as few calls as possible; return the end."""
        waiting: list[bytes | memoryview] = list(buffers)
        while waiting:
            written = self.write_some(file, waiting[:_VECTOR_MAX], position)
            position += written
            done = 0
            while done < len(waiting) and written >= len(waiting[done]):
                written -= len(waiting[done])
                done += 1
            del waiting[:done]
            if written:
                waiting[0] = memoryview(waiting[0])[written:]
        return position

    def write_some(self, file: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        return os.pwritev(file, buffers, position)

    def sync(self, file: int) -> None:
        if _HAS_DATA_SYNC:
            os.fdatasync(file)
        else:
            os.fsync(file)

    def forget(self, path: Path, position: int, length: int) -> None:
        """Advise the system not to cache this part of a file, once it is on disk."""
        if hasattr(os, "posix_fadvise"):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(file, position, length, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def sync_directory(self, path: Path) -> None:
        directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def rename(self, path: Path, to: Path) -> None:
        os.replace(path, to)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        for one in (*reversed([one for one in path.parents if not one.exists()]), path):
            one.mkdir(0o750, exist_ok=True)

    def make_directories(self, path: Path) -> None:
        """Make a directory and its missing parents, each with its name on disk.

        An earlier process may have died after it made the lowest one that exists, so that name is
        synced too, if its directory is readable.
        """
        missing = [one for one in (path, *path.parents) if not one.exists()]
        lowest = missing[-1].parent if missing else path
        with contextlib.suppress(PermissionError):
            self.sync_directory(lowest.parent)
        for one in reversed(missing):
            self.make_directory(one)
            self.sync_directory(one.parent)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory and the files in it; processes can still read files they have open."""
        for entry in path.iterdir():
            if entry.is_dir():
                self.remove_directory(entry)
            else:
                self.remove(entry)
        path.rmdir()

    def replace(self, path: Path, data: bytes) -> None:
        """Write a small file under another name, sync it, and rename it into place."""
        aside = path.with_name(path.name + ".new")
        self.remove(aside)
        file = self.open(aside)
        try:
            self.write(file, [data], 0)
            self.sync(file)
        finally:
            os.close(file)
        self.rename(aside, path)
        self.sync_directory(path.parent)


class Lock:
    """Lets one process write. The system releases it when that process ends in any way."""

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise StreamError(f"{path}: this system has no fcntl, which locks the files of a log")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise Locked(str(path), holder or "unknown") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
