"""Lines about states that come and go, such as a slow reader: one of a kind in ten seconds.

With thousands of clients such a state may begin thousands of times a second. The line says how
many more there were since the last one of its kind; metrics count all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 10.0


class Notices:
    __slots__ = ("_said_at", "_unsaid", "log")

    def __init__(self, log: Callable[[str], None]) -> None:
        self.log = log
        self._said_at: dict[str, float] = {}  # by kind, of which there are a few
        self._unsaid: dict[str, int] = {}

    def is_due(self, kind: str, now: float) -> bool:
        """Tell whether a line of this kind may be said now; if not, it is counted."""
        said_at = self._said_at.get(kind)
        if said_at is not None and now - said_at < PAUSE_S:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return False
        self._said_at[kind] = now
        return True

    def say(self, kind: str, line: str) -> None:
        """Say a line that is due."""
        more = self._unsaid.pop(kind, 0)
        self.log(f"{line}; {more} more since the last such line" if more else line)
