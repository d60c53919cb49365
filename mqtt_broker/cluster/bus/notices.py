"""Lines for the log: each problem is said once, and again when it lasts or comes back."""

from __future__ import annotations

import logging
from typing import Final

REPEAT_S: Final = 600.0
_SUBJECTS_MAX: Final = 100
_log = logging.getLogger("fleetmq")


class Notices:
    """The problems of a bus that were said, and when."""

    __slots__ = ("_said_at",)

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def warn(self, subject: str, text: str, now: float) -> bool:
        """Say it, unless this subject was said in the last ten minutes; return whether it is."""
        said_at = self._said_at.get(subject)
        if said_at is not None and now < said_at + REPEAT_S:
            return False
        if len(self._said_at) >= _SUBJECTS_MAX:
            self._said_at.clear()
        self._said_at[subject] = now
        _log.warning("bus: %s", text)
        return True

    def inform(self, text: str) -> None:
        """Say that all is well."""
        _log.info("bus: %s", text)
