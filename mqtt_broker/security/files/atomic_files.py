"""Small files that are written whole or not at all, by one writer at a time."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mqtt_broker.security.files.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of the file's directory, against other writers that take it."""
    if fcntl is None:
        raise FileError(f"{path} cannot be changed: this system has no fcntl, which locks it")
    fd = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_whole(path: str, text: str, mode: int) -> None:
    """Replace the file's content, or create it with `mode`. An existing file keeps its mode and,
    if possible, its owner.

    A file that root creates belongs to the owner of its directory, so that the broker can read it.
    A symbolic link stays; its target is written.
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)  # left by a killed writer, or a link that leads elsewhere
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            try:
                owner = target.stat()
                mode = owner.st_mode & 0o777
            except FileNotFoundError:
                owner = target.parent.stat() if os.geteuid() == 0 else os.fstat(file.fileno())
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        _sync_directory(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def open_to_others(path: str) -> bool:
    """Tell whether other users of the machine may read or write the file."""
    return bool(os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH))


def _sync_directory(directory: Path) -> None:
    """Make the rename survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
