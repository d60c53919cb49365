"""Small files that are written whole or not at all, by one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Nobody else who asks changes a file of this directory meanwhile."""
    fd = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_whole(path: str, text: str, mode: int) -> None:
    """`mode`: of a file that is new. One that was there keeps its mode and, if it can, owner.

    What root writes anew belongs to whom its directory does: the broker has to read it. A link
    stays one; what it leads to is written.
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)  # of one that was killed; or somebody's link to somewhere else
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
        _keep_name(target.parent)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _keep_name(directory: Path) -> None:
    """The rename, too, outlives a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
