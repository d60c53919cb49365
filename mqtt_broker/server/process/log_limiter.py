"""What strangers make the broker log: so many lines a second, none of them long, all printable.

A line names clients, topics and peers, which those choose. A second's lines beyond `LINES_PER_S`
are counted, and the next second's first line says how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LINES_PER_S: Final = 100
CHARS_MAX: Final = 1_000  # of one line; a client id alone may have 65,535


class LogLimiter:
    def __init__(self, sink: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._sink = sink
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, line: str) -> None:
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


def shown(line: str) -> str:
    """Without what a terminal or a log would obey: other directions, line separators."""
    if len(line) > CHARS_MAX:
        line = f"{line[:CHARS_MAX]}... ({len(line)} characters)"
    if line.isprintable():
        return line
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in line
    )
