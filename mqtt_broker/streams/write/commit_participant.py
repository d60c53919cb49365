"""The log as the store sees it: files beside the journal, whose ends it records as text.

What is asked and promised here is `sessions.store.writer.Beside`. All of it is called in the
store's thread, around the commit of a group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.write.writer import LogWriter


def _now_us() -> int:
    return time.time_ns() // 1_000


class Beside:
    def __init__(
        self,
        writer: LogWriter,
        on_commit: Callable[[Iterable[str]], None] = lambda names: None,
        clock_us: Callable[[], int] = _now_us,
    ) -> None:
        self._writer = writer
        self._on_commit = on_commit  # of which streams readers may have more
        self._clock_us = clock_us

    def suffices(self, number: int) -> bool:
        """Whether what belongs to groups up to this one may stand alone."""
        return self._writer.suffices(number, self._clock_us())

    def write(self, number: int, *, stands_alone: bool = False) -> Mapping[str, str]:
        """Put what belongs to groups up to this one on disk; the ends the journal is to know."""
        ends = self._writer.write(number, stands_alone=stands_alone)
        return {name: found.text() for name, found in ends.items()}

    def commit(self, ends: Mapping[str, str], *, stands_alone: bool = False) -> None:
        """What is before these ends is safe: readers may go there."""
        found = {name: Offsets.decode(text) for name, text in ends.items()}
        self._writer.commit(found, stands_alone=stands_alone)
        self._on_commit(ends)
