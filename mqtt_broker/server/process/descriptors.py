"""Divide the process's file descriptors between connections and files.

A reserve is kept from connections, so that segments, databases and health checks still get a
descriptor when there are more clients than descriptors. The system assigns the lowest free number,
so the number of a new descriptor bounds how many are in use, without a system call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Final

try:
    import resource
except ImportError:  # Windows, where handles have no limit
    resource = None  # type: ignore[assignment]

OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S: Final = 0.5  # before a listener tries again
_RESERVE: Final = 64
_RESERVE_SHARE: Final = 4  # the reserve is at most a fourth of all
_LINE_EVERY_S: Final = 1.0
_UNLIMITED: Final = 1 << 30


class Descriptors:
    """Tells listeners when to stop accepting, and logs that at most once a second."""

    def __init__(
        self,
        log: Callable[[str], None],
        files: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`files` returns how many more descriptors than usual the broker's files may need."""
        self._log = log
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()  # guards the report: the HTTP server has a thread of its own
        self._said_at = -_LINE_EVERY_S
        self.pauses = 0
        self.is_short = False  # the last connection got the highest number for clients
        self.clients_end = 0  # connections of clients get lower numbers,
        self.http_end = 0  # and those of HTTP numbers lower than this
        self._limit = 0
        self.measure()

    def measure(self) -> None:
        """Read the process's limit, which may change while it runs."""
        self._limit = _UNLIMITED
        if resource is not None:
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            if soft != resource.RLIM_INFINITY:
                self._limit = soft
        reserve = min(_RESERVE + self._files(), self._limit // _RESERVE_SHARE)
        self.clients_end = self._limit - reserve
        self.http_end = self._limit - reserve // 2

    def count(self, fd: int) -> None:
        """Note the descriptor of a client's new connection."""
        if fd >= self.clients_end:
            self.is_short = True

    def has_room(self) -> bool:
        """Tell whether a client may have one more descriptor."""
        if self.is_short:
            self.measure()
            fd = -1
            with contextlib.suppress(OSError):
                fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.close(fd)
            self.is_short = not 0 <= fd < self.clients_end
        return not self.is_short

    def report(self, where: str, error: OSError | None = None) -> None:
        """Count a pause of a listener, and log at most a line a second for all of them."""
        if error is not None:
            self.is_short = True
        with self._lock:
            self.pauses += 1
            now = self._clock()
            if now - self._said_at < _LINE_EVERY_S:
                return
            self._said_at = now
        why = f"all {self.clients_end} descriptors for clients are in use"
        if error is not None:
            why = f"{error.strerror}"
        self._log(
            f"{where}: cannot accept: {why} (limit {self._limit}); connections wait until others "
            "close: raise the limit of open files (ulimit -n, LimitNOFILE)"
        )
