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
    """`mode`: of a file that is new. One that was there keeps its mode and, if it can, owner."""
    target = Path(path)
    part = target.with_name(target.name + ".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            try:
                found = target.stat()
            except FileNotFoundError:
                os.fchmod(file.fileno(), mode)
            else:
                os.fchmod(file.fileno(), found.st_mode & 0o777)
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), found.st_uid, found.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise
