"""A sign of life in the data directory, once a second, whatever the database does.

After a crash the broker has to know how long its clients were connected at least. The tables say
that only while they can be written to; the time of a file can be set with a full disk and with the
database away.
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
    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._path = directory / FILE
        self._clock = clock
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetmq-alive", daemon=True)

    def last(self) -> float:
        """When a broker on this directory last showed a sign of life; 0: nobody knows."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return 0.0

    def start(self) -> None:
        """From now on this process is what the file tells of."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def beat(self) -> None:
        at = int(self._clock() * 1e9)
        with contextlib.suppress(OSError):  # what the tables say has to do
            try:
                os.utime(self._path, ns=(at, at))
            except FileNotFoundError:
                self._path.touch(0o644)
                os.utime(self._path, ns=(at, at))

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            self.beat()
