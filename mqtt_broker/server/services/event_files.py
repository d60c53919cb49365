"""The events of clients of the last day, in files: what the recorder's memory may not see back to.

    <data_dir>/events/<number>.jsonl     an event a line, as JSON, the oldest first

Files are bounded in size and number; those older than a day are removed. A broker that is killed
loses the events of its last second. Called in a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mqtt_broker.recorder.pending_events import Event

FOLDER: Final = "events"
FILE_BYTES_MAX: Final = 4 << 20
FILES_MAX: Final = 8
KEPT_S: Final = 86_400.0
_READ_BYTES: Final = 1 << 20


class EventFiles:
    """Writes and reads the files of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER
        self.failed = ""  # why the last write failed; empty: it did not

    def write(self, events: list[Event], now: float) -> None:
        """Append events; a full disk loses them, and is told in `failed`."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            newest = self._file_to_write()
            data = "".join(json.dumps(event) + "\n" for event in events)
            with os.fdopen(os.open(newest, _APPEND, 0o600), "ab") as file:
                file.write(data.encode())
            self._remove_old(now)
            self.failed = ""
        except OSError as error:
            self.failed = f"{self._folder}: {error.strerror or error}"

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
        """Return the newest events of a client, the newest first; empty client id: of all."""
        found: list[Event] = []
        wanted = json.dumps(client_id).encode() if client_id else b""
        for path in reversed(self._paths()):
            own = [event for event in _events_in(path, wanted) if event[5] >= since_ms]
            found += own[::-1]
            if len(found) >= limit:
                break
        return found[:limit]


_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def _events_in(path: Path, wanted: bytes) -> Iterator[Event]:
    """Yield the events of a file that begin with this client id; lines cut short are left out."""
    try:
        with path.open("rb") as file:
            for line in file:
                if not wanted or line.startswith(b"[" + wanted + b","):
                    try:
                        event = tuple(json.loads(line))
                    except (ValueError, RecursionError):
                        continue
                    if len(event) == 7:
                        yield event
    except FileNotFoundError:  # removed meanwhile
        return
