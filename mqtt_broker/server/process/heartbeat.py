"""Touch a file in the data directory once a second, independent of the database.

After a crash the broker must know how long its clients were connected at least. The tables tell
that only while they can be written; the time of a file can be set even when the disk is full or
the database is unavailable.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

FILE: Final = "alive"
INTERVAL_S: Final = 1.0


class Heartbeat:
    """Sets the time of a file once a second, in a thread."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._path = directory / FILE
        self._clock = clock
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetmq-alive", daemon=True)

    def last(self) -> float:
        """Return the time of the last heartbeat in this directory, or 0."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return 0.0

    def start(self) -> None:
        """Start the heartbeat of this process."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def beat(self) -> None:
        """Set the time of the file to now."""
        at = int(self._clock() * 1e9)
        with contextlib.suppress(OSError):  # the tables have to suffice then
            try:
                os.utime(self._path, ns=(at, at))
            except FileNotFoundError:
                self._path.touch(0o640)
                os.utime(self._path, ns=(at, at))

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            self.beat()
