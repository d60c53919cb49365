"""Take a backup of a broker that runs: its state and its streams, as of one moment.

Everything here may wait for the disk. The log's lock is held while the snapshot of the state is
opened and the files of the log are linked: commits wait for that long, and the event loop never
does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqtt_broker.backup.manifest import (
    FILE,
    STREAMS,
    UNFINISHED,
    BackupError,
    FileSum,
    Manifest,
    explain_error,
)
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.log_copy import CopiedStream, LogCopy
from mqtt_broker.version import __version__
from sessions.store.database import StoreError
from sessions.store.online_copy import StateSnapshot, explained, open_snapshot
from sessions.store.sqlite_files import sync
from sessions.store.store import Store

FLUSH_S: Final = 30.0  # how long the store has to write what was acknowledged
READ_BYTES: Final = 1 << 20
# Further files of the data directory that a broker needs.
EXTRA_FILES: Final = ("scram-salts",)
_MARK: Final = "unfinished"  # in a directory that a backup is being written to


class Stopped(Exception):
    """The broker stops: the backup is given up."""


@dataclass(slots=True)
class Progress:
    """The progress of a backup; written by its thread, read by any."""

    phase: str = "waiting for the store"
    bytes_done: int = 0
    bytes_total: int = 0
    is_over: Callable[[], bool] = lambda: False  # tells whether to give up

    def begin(self, phase: str, total: int) -> None:
        """Begin a phase with so many bytes."""
        self.check()
        self.phase, self.bytes_done, self.bytes_total = phase, 0, total

    def add(self, count: int) -> None:
        """Count bytes that were copied or read."""
        self.bytes_done += count
        self.check()

    def check(self) -> None:
        """Raise Stopped when the backup is to be given up."""
        if self.is_over():
            raise Stopped


def take(store: Store, log: Log, data_dir: Path, target: Path, progress: Progress) -> Manifest:
    """Write a backup to a new directory. Raises BackupError, and leaves nothing then."""
    try:
        with _part_of(target) as part, explained(str(target)):
            manifest = fill(store, log, data_dir, part, progress)
            (part / _MARK).unlink()
            write_synced(part / FILE, manifest.encode())
            sync(part)
            _check_free(target)
            part.rename(target)
        sync(target.parent)
    except Stopped:
        raise BackupError("the broker stopped before the backup was complete") from None
    except (OSError, StoreError, StreamError) as error:
        raise BackupError(explain_error(error, target)) from None
    return manifest


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """Make the directory that gets the name of `target` at the end; remove it after an error."""
    _check_free(target)
    part = target.with_name(target.name + UNFINISHED)
    if (part / _MARK).exists():  # of a process that was killed
        shutil.rmtree(part)
    try:
        part.mkdir(0o700)
    except FileExistsError:
        raise BackupError(f"{part} is in the way: remove it") from None
    except OSError as error:
        raise BackupError(explain_error(error, part)) from None
    try:
        (part / _MARK).touch()
        yield part
    finally:
        if part.exists():
            shutil.rmtree(part, ignore_errors=True)


def remove_unfinished(root: Path) -> None:
    """Remove the backups below a directory whose process was killed."""
    for path in root.iterdir():
        if path.name.endswith(UNFINISHED) and (path / _MARK).exists():
            shutil.rmtree(path)


def _check_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise BackupError(f"{target} exists: name a new directory")


def fill(store: Store, log: Log, data_dir: Path, part: Path, progress: Progress) -> Manifest:
    """Write all files of a backup but the manifest, which is returned."""
    # What was acknowledged may be in the log's files alone: let the journal know its ends.
    if not store.flush(FLUSH_S):
        raise BackupError(f"the store did not write all changes within {FLUSH_S:g} s")
    copy = LogCopy(log)
    try:
        with log.lock:
            snapshot = open_snapshot(store.database)
            try:
                created_at = time.time()
                copy.capture()
            except BaseException:
                snapshot.close()
                raise
        with contextlib.closing(snapshot):
            streams = _copy(snapshot, copy, part, progress)
    finally:
        copy.close()
    _copy_extra(data_dir, part)
    return Manifest(__version__, created_at, snapshot.kind, streams, sums(part, progress))


def _copy(
    snapshot: StateSnapshot, copy: LogCopy, part: Path, progress: Progress
) -> dict[str, CopiedStream]:
    progress.begin("copying the state", snapshot.size())
    snapshot.write(part, progress.add)
    progress.begin("copying streams", copy.size)
    return copy.write(part / STREAMS, snapshot.ends, progress.add)


def _copy_extra(data_dir: Path, part: Path) -> None:
    for name in EXTRA_FILES:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(data_dir / name, part / name)
            (part / name).chmod(0o600)
            sync(part / name)


def sums(part: Path, progress: Progress) -> dict[str, FileSum]:
    """Return the checksums of all files, whose names are on disk then."""
    paths = [path for path in sorted(part.rglob("*")) if path.is_file() and path.name != _MARK]
    progress.begin("computing checksums", sum(path.stat().st_size for path in paths))
    for directory in {path.parent for path in paths}:
        sync(directory)
    return {path.relative_to(part).as_posix(): sum_of(path, progress.add) for path in paths}


def sum_of(path: Path, on_bytes: Callable[[int], None]) -> FileSum:
    """Return the checksum of a file."""
    found = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            found.update(piece)
            size += len(piece)
            on_bytes(len(piece))
    return FileSum(size, found.hexdigest())


def write_synced(path: Path, text: str) -> None:
    """Write a file that is on disk when this returns."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
