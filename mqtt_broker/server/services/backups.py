"""Make backups of the running broker in a thread, one at a time, and list those there are."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mqtt_broker.backup import manifest
from mqtt_broker.backup.figures import DONE, FAILED, RUNNING, BackupFigures
from mqtt_broker.backup.manifest import STREAMS, UNFINISHED, BackupError
from mqtt_broker.backup.take import Progress, remove_unfinished, take
from mqtt_broker.streams.write.log import Log
from sessions.store.sqlite_files import make_directory
from sessions.store.store import Store

DIRECTORY: Final = "backups"  # in the data directory
_REMEMBERED: Final = 20  # backups of this process, the failed ones among them
_THREADS: Final = 2  # one makes a backup, one answers meanwhile
_log = logging.getLogger("fleetmq")


class BackupRunning(BackupError):
    """A backup is being made already."""


@dataclass(slots=True)
class _Job:
    figures: BackupFigures
    progress: Progress

    def end(self, state: str, **found: Any) -> None:
        """Note how it ended."""
        self.figures = replace(self.figures, state=state, finished_at=time.time(), **found)

    def now(self) -> BackupFigures:
        """Return the figures with the progress so far."""
        if self.figures.state != RUNNING:
            return self.figures
        progress = self.progress
        return replace(
            self.figures,
            phase=progress.phase,
            bytes_done=progress.bytes_done,
            bytes_total=progress.bytes_total,
        )


class BackupService:
    """The backups of a broker. Its methods may be called from any thread."""

    def __init__(self, store: Store, log: Log, data_dir: Path) -> None:
        self._store = store
        self._streams = log
        self._data_dir = data_dir
        self._root = data_dir / DIRECTORY
        self._jobs: dict[str, _Job] = {}  # by id, in the order of their start
        self._found: dict[str, BackupFigures] = {}  # of earlier processes, by id
        self._lock = threading.Lock()  # of the two above
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, "fleetmq-backup")

    def begin(self, directory: str = "") -> Future[BackupFigures]:
        """Begin a backup, in a new directory of this name or path. Raises BackupError in the
        future: BackupRunning, if one is being made.
        """
        return self._pool.submit(self._begin, directory)

    def figures(self) -> Future[list[BackupFigures]]:
        """Return the backups of this process and those in the backup directory, latest first."""
        return self._pool.submit(self._figures)

    def stop(self) -> None:
        """Give up a backup that is being made, and wait for its end."""
        self._is_over.set()
        self._pool.shutdown()

    # In the pool.

    def _begin(self, directory: str) -> BackupFigures:
        with self._lock:
            running = [job for job in self._jobs.values() if job.figures.state == RUNNING]
            if running:
                raise BackupRunning(
                    f"a backup to {running[0].figures.directory} is being made: wait for its end"
                )
            target = self._target(directory)
            figures = BackupFigures(self._new_id(target), RUNNING, str(target), time.time())
            job = _Job(figures, Progress(is_over=self._is_over.is_set))
            self._jobs[figures.id] = job
            for old in list(self._jobs)[:-_REMEMBERED]:
                del self._jobs[old]
        self._pool.submit(self._run, job, target)
        return job.now()

    def _target(self, directory: str) -> Path:
        """Return the directory to make; BackupError if it cannot be one."""
        name = directory or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        try:
            if "\0" in name:
                raise BackupError("directory: U+0000 in a path")
            is_name = Path(name).name == name and not name.startswith(".")
            if not is_name and not Path(name).is_absolute():
                raise BackupError(
                    f"directory {name[:200]!r}: expected a name without '/', below {self._root}, "
                    "or an absolute path"
                )
            if name.endswith(UNFINISHED):
                raise BackupError(f"directory {name[:200]!r}: {UNFINISHED} is for unfinished ones")
            if is_name:
                make_directory(self._root)
            target = (self._root / name).resolve()
            if (self._data_dir / STREAMS).resolve() in target.parents:
                raise BackupError(f"{target} is inside the telemetry log: name another directory")
            if not target.parent.is_dir():
                raise BackupError(f"{target.parent} is not a directory: make it first")
            if target.exists():
                raise BackupError(f"{target} exists: name a new directory")
            remove_unfinished(target.parent)
        except OSError as error:
            raise BackupError(manifest.explain_error(error, Path(name))) from None
        return target

    def _new_id(self, target: Path) -> str:
        name = target.name
        number = 1
        while name in self._jobs:
            number += 1
            name = f"{target.name}-{number}"
        return name

    def _run(self, job: _Job, target: Path) -> None:
        try:
            made = take(self._store, self._streams, self._data_dir, target, job.progress)
        except Exception as error:
            if not isinstance(error, BackupError):
                _log.exception("backup to %s: internal error", target)
            said = str(error) if isinstance(error, BackupError) else f"internal error: {error!r}"
            _log.error("backup to %s failed: %s", target, said)
            job.end(FAILED, error=said)
            return
        job.end(DONE, created_at=made.created_at, bytes=made.bytes, files=len(made.files))
        _log.info("backup to %s is complete: %d bytes", target, made.bytes)

    def _figures(self) -> list[BackupFigures]:
        with self._lock:
            found = {key: job.now() for key, job in self._jobs.items()}
            self._look()
            here = {one.directory for one in found.values()}
            for key, figures in self._found.items():
                if figures.directory not in here:
                    found.setdefault(key, figures)
        return sorted(found.values(), key=lambda one: one.started_at, reverse=True)

    def _look(self) -> None:
        """Read the manifests of backups in the directory that are not known yet."""
        names = {path.name for path in self._root.iterdir()} if self._root.is_dir() else set()
        for gone in self._found.keys() - names:
            del self._found[gone]
        for name in names - self._found.keys():
            if name.endswith(UNFINISHED):
                continue
            try:
                known = manifest.read(self._root / name)
            except BackupError:
                continue  # it is not a backup
            at = known.created_at
            self._found[name] = BackupFigures(
                name,
                DONE,
                str((self._root / name).resolve()),
                started_at=at,
                finished_at=at,
                created_at=at,
                bytes=known.bytes,
                files=len(known.files),
            )
