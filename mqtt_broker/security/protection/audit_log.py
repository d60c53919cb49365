"""The audit log: security events, a line of JSON each.

    {"at": 1700000000.123, "event": "refused", "reason": "...", "client_id": "...", ...}

It goes to the logger `fleetmq.audit` or to a file. Events that any client can cause (refusals,
denials) are written so many times a second and counted beyond that: the next line says how many
were left out. No password, token or key is ever part of an event.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

EVENTS: Final = (
    "connected", "refused", "denied", "reloaded", "reload_failed", "ban", "unban",
    "api_change", "api_refused", "api_login", "api_login_failed",
)  # fmt: skip
_BY_ANYBODY: Final = ("refused", "denied", "connected", "api_refused", "api_login_failed")
_LINES_WAITING_MAX: Final = 10_000
_CLOSE_S: Final = 2.0
_SAID_EVERY_S: Final = 1.0  # that lines are lost
_CHARS_MAX: Final = 256  # of one value: names come from clients
_log = logging.getLogger("fleetmq.audit")


Sink = Callable[[str], object]


def to_logger(line: str) -> None:
    """Write an event to the logger."""
    _log.info("%s", line)


class AuditFile:
    """Append to a file in a thread: a slow disk delays no client, a full one loses lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = self._open()
        self._lines: queue.Queue[str | None] = queue.Queue(_LINES_WAITING_MAX)
        self._is_stale = False
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="fleetmq-audit", daemon=True)
        self._thread.start()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._path, flags, 0o640)

    def __call__(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost += 1

    def _run(self) -> None:
        said_at = -_SAID_EVERY_S
        while (line := self._lines.get()) is not None:
            try:
                if self._is_stale:
                    self._reopen()
                data = line.encode() + b"\n"
                if os.write(self._fd, data) < len(data):  # the disk filled up within the line
                    self.lost += 1
            except OSError as error:
                self.lost += 1
                if time.monotonic() >= said_at + _SAID_EVERY_S:
                    said_at = time.monotonic()
                    _log.error(
                        "%s: %s; lost (%d so far): %s", self._path, error.strerror, self.lost, line
                    )
        os.close(self._fd)

    def _reopen(self) -> None:
        """Open the file anew; if that fails, go on with the one that is open, and try again."""
        try:
            opened = self._open()
        except OSError:
            return
        self._is_stale = False
        before, self._fd = self._fd, opened
        os.close(before)

    def reopen(self) -> None:
        """Open the file again before the next line, after a tool has moved it away."""
        self._is_stale = True

    def close(self) -> None:
        """Write the lines that wait, if that takes only a moment, and close the file."""
        try:
            self._lines.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)


class Audit:
    """Count every event and write those that the configuration asks for; from any thread."""

    def __init__(
        self,
        sink: Sink,
        clock: Callable[[], float],
        *,
        lines_per_s: int = 50,
        connects: bool = False,
        refusals: bool = True,
    ) -> None:
        """`refusals`: write an event for each; else they are counted, and another log has them."""
        self._sink = sink
        self._clock = clock
        self._lines_per_s = lines_per_s
        self._refusals = refusals
        self._connects = connects  # write an event for each client that connects
        self._second = 0
        self._written = 0
        self._left_out = 0
        self._lock = threading.Lock()
        self.counts: dict[str, int] = {}  # `event` or `event/reason`

    def note(self, event: str, reason: str = "", **facts: object) -> None:
        """Count an event, and write it with its facts."""
        assert event in EVENTS, event
        with self._lock:
            key = f"{event}/{reason}" if reason else event
            self.counts[key] = self.counts.get(key, 0) + 1
            if event == "connected" and not self._connects:
                return
            if event == "refused" and not self._refusals:
                return
            now = self._clock()
            if int(now) != self._second:
                self._second, self._written = int(now), 0
            if self._written >= self._lines_per_s and event in _BY_ANYBODY:
                self._left_out += 1
                return
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        found: dict[str, object] = {"at": round(now, 3), "event": event}
        if reason:
            found["reason"] = reason
        for name, value in facts.items():
            if value not in (None, ""):
                found[name] = value[:_CHARS_MAX] if isinstance(value, str) else value
        if left_out:
            found["left_out_before"] = left_out
        self._sink(json.dumps(found, ensure_ascii=True))
