"""Where log lines go: standard error as text or JSON, a ring for the API, and `$SYS` on request."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
RING_LINES: Final = 2_000
_LINE_CHARS_MAX: Final = 4_000  # of a line in the ring; a traceback is longer
_LETTERS: Final = {"DEBUG": "D", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "E"}
_SYS_LINES_PER_S: Final = 100
ROOT: Final = "fleetmq"  # the logger of the broker
_OTHERS: Final = ("asyncio", "alembic")  # their debug lines say nothing of the broker


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "text": record.getMessage(),
        }
        if record.name != ROOT:
            found["logger"] = record.name
        found |= fields_of(record)
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=True, default=str)


def formatter_of(name: str) -> logging.Formatter:
    """Return the formatter of `log_format`."""
    return JsonFormatter() if name == "json" else logging.Formatter(TEXT_FORMAT)


def set_up(level: str, log_format: str) -> None:
    """Write the log to standard error; for the command, whose process is its own."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter_of(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _OTHERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """Log the broker's lines from this level on."""
    logging.getLogger(ROOT).setLevel(level.upper())


def level_in_force() -> str:
    """Return the lowest level that is logged."""
    found = logging.getLogger(ROOT).getEffectiveLevel()
    for level in reversed(LEVELS):
        if found >= getattr(logging, level.upper()):
            return level
    return LEVELS[0]


def set_format(log_format: str) -> None:
    """Change how lines on standard error look, if `set_up` or a program writes any."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setFormatter(formatter_of(log_format))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of a record, which the JSON form has beside the text."""
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log, numbered from the start of the broker."""

    number: int
    at: float
    level: str
    text: str
    fields: dict[str, Any]


class LogRing(logging.Handler):
    """Keeps the last lines of the log; from any thread."""

    def __init__(self, lines_max: int = RING_LINES) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=lines_max)
        self._count = 0
        self._ring_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        if len(text) > _LINE_CHARS_MAX:
            text = f"{text[:_LINE_CHARS_MAX]}... ({len(text)} characters)"
        level = record.levelname.lower()
        with self._ring_lock:
            self._count += 1
            self._lines.append(LogLine(self._count, record.created, level, text, fields_of(record)))

    def lines(self, level: str = "debug", text: str = "", after: int = 0) -> list[LogLine]:
        """Return the lines of at least this level that hold the text, after a number; oldest
        first.
        """
        low = getattr(logging, level.upper())
        wanted = text.casefold()
        with self._ring_lock:
            kept = list(self._lines)
        return [
            line
            for line in kept
            if line.number > after
            and getattr(logging, line.level.upper(), 0) >= low
            and wanted in line.text.casefold()
        ]


class SysLog(logging.Handler):
    """Passes lines to a function that publishes them, with the letter of their level.

    Lines that publishing causes are left out, and so are those beyond a hundred a second.
    """

    def __init__(self, publish: Callable[[str, str], None]) -> None:
        super().__init__()
        self._publish = publish
        self._publishing: set[int] = set()  # threads that do
        self._second = 0
        self._written = 0

    def emit(self, record: logging.LogRecord) -> None:
        thread = threading.get_ident()
        if thread in self._publishing:
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._written = second, 0
        self._written += 1
        if self._written > _SYS_LINES_PER_S:
            return
        self._publishing.add(thread)
        try:
            self._publish(_LETTERS.get(record.levelname, "I"), record.getMessage())
        finally:
            self._publishing.discard(thread)
