"""Limit the log: lines that clients cause by rate and length, internal errors by repetition.

A line may contain names of clients and topics, which clients choose. Lines of one second above
`LINES_PER_S` are only counted, and the first line of the next second reports the count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LINES_PER_S: Final = 100
CHARS_MAX: Final = 1_000  # of one line; a client id alone may have 65,535
ERRORS_PER_S: Final = 5  # with their tracebacks
REPEAT_S: Final = 10.0  # before a repeated error is logged again


class LogLimiter:
    """Pass lines on to `sink`: a limited number a second, each printable and of limited length."""

    def __init__(
        self,
        sink: Callable[[str], object],
        clock: Callable[[], float],
        lines_per_s: int = LINES_PER_S,
        shape: Callable[[str], str] | None = None,
    ) -> None:
        """`shape` makes a line safe to show; the default is `shown`."""
        self._sink = sink
        self._lines_per_s = lines_per_s
        self._shape = shape or shown
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, line: str) -> None:
        """Log the line, or only count it when the limit of this second is reached."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= self._lines_per_s:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            self._sink(f"{self._left_out} lines before this one were too many, and left out")
            self._left_out = 0
        self._sink(self._shape(line))


class ErrorLog:
    """Log internal errors with their traceback, repeated ones once in a while.

    Any thread may use it.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._at: dict[tuple[object, ...], float] = {}  # when each was last logged, by its origin
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, error: BaseException, text: str = "internal error") -> None:
        """Log the error, unless the same one was logged a moment ago."""
        with self._lock:
            now = self._clock()
            if int(now) != self._second:
                self._second, self._written = int(now), 0
                self._at = {key: at for key, at in self._at.items() if now - at <= REPEAT_S}
            key = _origin(error)
            if key in self._at or self._written >= ERRORS_PER_S:
                self._left_out += 1
                return
            self._at[key] = now
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text += f" ({left_out} before this one were left out)"
        self._logger.error("%s", text, exc_info=error)


def _origin(error: BaseException) -> tuple[object, ...]:
    """Return an error's type and source line; its text may contain what a client sent."""
    trace = error.__traceback__
    if trace is None:
        return type(error), repr(error)
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(error), trace.tb_frame.f_code, trace.tb_lineno


def shown(line: str) -> str:
    """Shorten the line and escape characters that a terminal or a log viewer interprets.

    These are control characters, line separators and changes of direction.
    """
    if len(line) > CHARS_MAX:
        line = f"{line[:CHARS_MAX]}... ({len(line)} characters)"
    if line.isprintable():
        return line
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in line
    )
