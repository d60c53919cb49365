"""What stands beside a journal in tests: a telemetry log that is nothing but its ends.

It keeps the promises of `sessions.journal.participant` towards the store, fails where it is told
to, and knows what the journal has to say of it after any group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from errno import ENOSPC

from sessions.journal import records
from tests.sessions.store.places import StorePart, Watch, rows_of

EMPTY = records.seal([])


class LogFiles(StorePart):
    def __init__(self) -> None:
        self.appended: list[tuple[int, str, int]] = []  # group, stream, how many messages
        self.written = 0  # up to which group
        self.known: dict[str, str] = {}  # ends that are in the journal
        self.calls = 0  # stages that were reached: each may fail
        self.fails: Callable[[str, int], bool] = lambda stage, call: False
        self.error: Exception = OSError(ENOSPC, "No space left on device")
        self.failed = 0
        self.may_stand_alone = False
        self.alone = 0  # writes that did
        self.watch: Watch | None = None
        self._lock = threading.Lock()

    def append(self, number: int, name: str, messages: int) -> None:
        with self._lock:
            self.appended.append((number, name, messages))

    def ends(self, number: int) -> dict[str, str]:
        """What the journal is to have when it has the groups up to this one."""
        found: dict[str, int] = {}
        with self._lock:
            for group, name, messages in self.appended:
                if group <= number:
                    found[name] = found.get(name, 0) + messages
        return {name: str(end) for name, end in found.items()}

    def is_durable_alone(self, number: int) -> bool:
        return self.may_stand_alone

    def write(self, number: int, *, stands_alone: bool = False) -> Mapping[str, str]:
        self._reach("write")
        self.alone += stands_alone
        assert number >= self.written
        self.written = number
        self._reach("written")
        ends = self.ends(number)
        return {name: end for name, end in ends.items() if end != self.known.get(name)}

    def committed(self, ends: Mapping[str, str], *, stands_alone: bool = False) -> None:
        self._reach("commit")
        if not stands_alone:
            recorded = self.recorded()
            assert {name: recorded.get(name) for name in ends} == ends, "not in the journal"
            self.known.update(ends)
        self._reach("committed")

    def recorded(self) -> dict[str, str]:
        """What the journal has, for whoever looks now."""
        assert self.watch is not None
        with self.watch.store.database.journal.connect() as connection:
            connection.execution_options(sqlite_reads=True)
            return {row[0]: row[1] for row in rows_of(connection, "name, ends", "stream_ends")}

    def _reach(self, stage: str) -> None:
        self.calls += 1
        if self.fails(stage, self.calls):
            self.failed += 1
            raise self.error
