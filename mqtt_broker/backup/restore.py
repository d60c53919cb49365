"""Restore a backup into an empty place: a data directory, and a database if one is named.

The directory is filled under a name that ends in `.part` and renamed at the end, so it is whole or
not there. With a database, its rows are committed before the rename; a restore that is interrupted
between the two is repeated into an empty database.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from mqtt_broker.backup.manifest import (
    STREAMS,
    UNFINISHED,
    BackupError,
    FileSum,
    Manifest,
    explain_error,
    read,
)
from mqtt_broker.backup.take import READ_BYTES
from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.errors import StreamError
from sessions.store import export_import
from sessions.store.database import StoreError, Unreachable
from sessions.store.online_copy import LINES_FILE, SQLITE, explained
from sessions.store.sqlite_files import files_in, sync
from sessions.store.store import Store

OnBytes = Callable[[int], None]
_SCRATCH: Final = "restored-state"  # a store in the new directory whose rows go into a database


def restore(
    backup: Path, data_dir: Path, database_url: str = "", on_bytes: OnBytes = lambda _: None
) -> Manifest:
    """Restore a backup; the state goes into the database if there is one. Raises BackupError, and
    Unreachable when the database does not answer.
    """
    manifest = read(backup)
    try:
        with _part_of(data_dir) as part, explained("the restored state"):
            _copy_files(backup, part, manifest, on_bytes)
            if database_url:
                _into_database(part, manifest, database_url)
            elif manifest.state != SQLITE:
                _from_lines(part / LINES_FILE, data_dir=part)
            (part / LINES_FILE).unlink(missing_ok=True)
            _sync_all(part)
            part.rename(data_dir)
        sync(data_dir.parent)
    except Unreachable:
        raise
    except (OSError, StoreError, StreamError) as error:
        raise BackupError(explain_error(error, data_dir)) from None
    return manifest


def verify(backup: Path, on_bytes: OnBytes = lambda _: None) -> Manifest:
    """Check every file of a backup against its checksum."""
    manifest = read(backup)
    for name, wanted in manifest.files.items():
        try:
            _copy_checked(backup / name, None, wanted, on_bytes)
        except OSError as error:
            raise BackupError(explain_error(error, backup / name)) from None
    return manifest


@contextlib.contextmanager
def _part_of(data_dir: Path) -> Iterator[Path]:
    if data_dir.is_symlink() or (data_dir.exists() and not data_dir.is_dir()):
        raise BackupError(f"{data_dir} is not a directory")
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupError(f"{data_dir} is not empty: name a new directory")
    part = data_dir.with_name(data_dir.name + UNFINISHED)
    try:
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir(0o700)
    except FileExistsError:
        raise BackupError(
            f"{part} exists, of a restore that runs or was interrupted: remove it, and try again"
        ) from None
    try:
        yield part
    finally:
        if part.exists():
            shutil.rmtree(part, ignore_errors=True)


def _copy_files(backup: Path, part: Path, manifest: Manifest, on_bytes: OnBytes) -> None:
    (part / STREAMS).mkdir(0o750)
    for name, stream in manifest.streams.items():
        for number in range(len(stream.ends)):  # one without segments has no file in the list
            directory = part / STREAMS / file_names.check_stream(name)
            (directory / file_names.partition(number)).mkdir(0o750, parents=True)
    for name, wanted in manifest.files.items():
        target = part / PurePosixPath(name)
        target.parent.mkdir(0o750, parents=True, exist_ok=True)
        _copy_checked(backup / name, target, wanted, on_bytes)


def _copy_checked(source: Path, target: Path | None, wanted: FileSum, on_bytes: OnBytes) -> None:
    """Copy a file, or only read it, and compare its checksum."""
    digest = hashlib.sha256()
    size = 0
    mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        try:
            old = stack.enter_context(source.open("rb"))
        except FileNotFoundError:
            raise BackupError(f"{source} is missing: the backup is not complete") from None
        new = None
        if target is not None:
            new = stack.enter_context(os.fdopen(os.open(target, mode, 0o640), "wb"))
        while piece := old.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
            if new is not None:
                new.write(piece)
            on_bytes(len(piece))
        if new is not None:
            new.flush()
            os.fsync(new.fileno())
    if FileSum(size, digest.hexdigest()) != wanted:
        raise BackupError(f"{source} is damaged: it does not match its checksum")


def _into_database(part: Path, manifest: Manifest, url: str) -> None:
    if manifest.state != SQLITE:
        _from_lines(part / LINES_FILE, url=url)
        return
    scratch = part / _SCRATCH
    scratch.mkdir(0o700)
    for path in files_in(str(part)).both:
        path.rename(scratch / path.name)
    old = Store.open(data_dir=str(scratch))
    try:
        with _store(url=url) as new:
            lines = (line.encode() for line in export_import.export(old))
            export_import.load(new, lines)
    finally:
        old.abandon()
    shutil.rmtree(scratch)


def _from_lines(path: Path, *, data_dir: Path | None = None, url: str = "") -> None:
    with path.open("rb") as lines, _store(data_dir=data_dir, url=url) as store:
        export_import.load(store, lines)


@contextlib.contextmanager
def _store(*, data_dir: Path | None = None, url: str = "") -> Iterator[Store]:
    store = Store.open(data_dir=str(data_dir or ""), database_url=url)
    try:
        yield store
    finally:
        store.abandon()


def _sync_all(part: Path) -> None:
    """Put the names in all directories on disk."""
    for path in part.rglob("*"):
        if path.is_dir():
            sync(path)
    sync(part)
