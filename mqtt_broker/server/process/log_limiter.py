"""Limit what is logged: lines that clients cause by rate and length, internal errors by repetition.

A line names clients, topics and peers, and clients choose those names. Lines of one second beyond
`LINES_PER_S` are counted, and the next second's first line says how many there were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LINES_PER_S: Final = 100
CHARS_MAX: Final = 1_000  # of one line; a client id alone may have 65,535
_REPEAT_S: Final = 10.0  # until an error that comes again is logged again


class LogLimiter:
    """Pass lines on to `sink`, so many a second, each printable and of limited length."""

    def __init__(self, sink: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._sink = sink
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, line: str) -> None:
        """Log the line, or count it when this second has had its share."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= LINES_PER_S:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            self._sink(f"{self._left_out} lines before this one were too many, and left out")
            self._left_out = 0
        self._sink(shown(line))


class ErrorLog:
    """Log internal errors with their traceback; one that is repeated, once in a while."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = ""
        self._last_at = 0.0

    def write(self, error: Exception) -> None:
        """Log the error, unless the same one was logged a moment ago."""
        text = repr(error)
        now = time.monotonic()
        if text != self._last or now - self._last_at > _REPEAT_S:
            self._last, self._last_at = text, now
            self._logger.error("internal error", exc_info=error)


def shown(line: str) -> str:
    """Shorten the line and escape what a terminal or a log would obey: control characters, line
    separators, changes of direction.
    """
    if len(line) > CHARS_MAX:
        line = f"{line[:CHARS_MAX]}... ({len(line)} characters)"
    if line.isprintable():
        return line
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in line
    )
