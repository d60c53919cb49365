"""The events of clients of the last day, in files: what the recorder's memory may not see back to.

    <data_dir>/events/<number>.jsonl     an event a line, as JSON, the oldest first

Files are bounded in size and number; those older than a day are removed. A broker that is killed
loses the events of its last second. Called in a thread.

Events that cannot be written are lost, and counted. The log says when that begins and ends, and an
event of the kind `events_lost` has the time from which on events are missing.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.pending_events import Event

FOLDER: Final = "events"
FILE_BYTES_MAX: Final = 4 << 20
FILES_MAX: Final = 8
KEPT_S: Final = 86_400.0
_log = logging.getLogger("fleetmq")


class EventFiles:
    """Writes and reads the files of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER
        self.failed = ""  # why the last write failed; empty: it did not
        self.lost = 0  # events that are not in the files, since the start
        self._may_be_cut = True
        self._gap: Event | None = None  # those of them that the files do not tell of yet

    @property
    def gap(self) -> Event | None:
        """The events that are missing now; None: the files have all, or tell of those they lack."""
        return self._gap

    def write(self, events: list[Event], now: float, lost: int = 0, lost_since_ms: int = 0) -> None:
        """Append events; a full disk loses them, and is told in `failed`.

        `lost` are those that did not fit into memory since the last time.
        """
        if lost:
            self._lose(lost, lost_since_ms, "the disk was too slow")
        try:
            self._append(events if self._gap is None else [self._gap, *events])
            self._remove_old(now)
        except OSError as error:
            self._fail(f"{self._folder}: {error.strerror or error}", events)
            return
        if self.failed:
            _log.warning("%s: events are written again, %d were lost", self._folder, self.lost)
        self.failed = ""
        self._gap = None

    def _lose(self, count: int, since_ms: int, why: str) -> None:
        """Count events that are not written, the first of them from this time."""
        self.lost += count
        if self._gap is not None:
            _, _, _, _, why, since_ms, before = self._gap
            count += before
        self._gap = ("", kinds.EVENTS_LOST, 0, "", why, since_ms, count)

    def _append(self, events: list[Event]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        newest = self._file_to_write()
        begin, self._may_be_cut = b"\n" if self._may_be_cut else b"", True
        with os.fdopen(os.open(newest, _APPEND, 0o600), "ab") as file:
            file.write(begin)  # the last line may be cut, by a crash or a full disk
            file.writelines((json.dumps(event) + "\n").encode() for event in events)
        self._may_be_cut = False

    def _fail(self, why: str, events: list[Event]) -> None:
        if not self.failed:
            _log.error("%s; events of clients are lost until it can be written", why)
        self.failed = why
        if events:
            self._lose(len(events), events[0][5], why)

    def _paths(self) -> list[Path]:
        """List the files, the oldest first."""
        if not self._folder.is_dir():
            return []
        found = [path for path in self._folder.glob("*.jsonl") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))

    def _file_to_write(self) -> Path:
        paths = self._paths()
        if paths and paths[-1].stat().st_size < FILE_BYTES_MAX:
            return paths[-1]
        number = int(paths[-1].stem) + 1 if paths else 1
        return self._folder / f"{number:06d}.jsonl"

    def _remove_old(self, now: float) -> None:
        paths = self._paths()
        for index, path in enumerate(paths[:-1]):
            if len(paths) - index > FILES_MAX or path.stat().st_mtime < now - KEPT_S:
                path.unlink(missing_ok=True)

    def read(self, client_id: str, since_ms: int, limit: int) -> list[Event]:
        """Return the newest events of a client, the newest first; empty client id: of all.

        With them are the times of which events are missing, whoever they were of.
        """
        found: list[Event] = []
        wanted = json.dumps(client_id).encode() if client_id else b""
        for path in reversed(self._paths()):
            own = [event for event in _events_in(path, wanted) if event[5] >= since_ms]
            found += own[::-1]
            if len(found) >= limit:
                break
        return found[:limit]


_LOST: Final = f'["", {kinds.EVENTS_LOST},'.encode()
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def _events_in(path: Path, wanted: bytes) -> Iterator[Event]:
    """Yield the events of a file of this client id; lines cut short are left out."""
    begins = (b"[" + wanted + b",", _LOST)
    try:
        with path.open("rb") as file:
            for line in file:
                if not wanted or line.startswith(begins):
                    try:
                        event = tuple(json.loads(line))
                    except (ValueError, RecursionError):
                        continue
                    if len(event) == 7:
                        yield event
    except FileNotFoundError:  # removed meanwhile
        return
