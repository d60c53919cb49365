"""Where a broker's groups go: a store in memory, or the real one in a directory.

A group that was submitted and not committed is gone at a crash; a commit, a fold and a page
happen when the world says so. Both run the product's records, and the second its tables.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from sessions.journal.journal import StoredQueue
from sessions.journal.snapshot import Snapshot
from sessions.store.store import Store
from tests.sessions.store.memory_store import MemoryStore, Page

PAGE_BYTES: Final = 1 << 20
WAIT_S: Final = 30.0


class Disk(Protocol):
    def snapshot(self) -> Any: ...
    def start(self, on_committed: Any, on_folded: Any) -> None: ...
    def commit(self, groups: list[tuple[int, bytes, float]]) -> None: ...
    def fold(self) -> None: ...
    def page(self, owner: StoredQueue, messages_max: int, on_page: Any) -> None: ...
    def crash(self, alive_at: float) -> Any: ...
    def close(self) -> None: ...


class MemoryDisk:
    """Tables as dictionaries."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or MemoryStore()

    def snapshot(self) -> Snapshot:
        return self._store.snapshot()

    def start(self, on_committed: Callable[[int], None], on_folded: Callable[[int], None]) -> None:
        self._store.start(on_committed, on_folded, lambda _: None)

    def commit(self, groups: list[tuple[int, bytes, float]]) -> None:
        for group in groups:
            self._store.submit(*group)
        self._store.commit()

    def fold(self) -> None:
        self._store.fold()

    def page(self, owner: StoredQueue, messages_max: int, on_page: Callable[[Page], None]) -> None:
        self._store.page(owner.session_number, owner.page_after, messages_max, PAGE_BYTES, on_page)
        self._store.answer()

    def crash(self, alive_at: float) -> MemoryDisk:
        store = self._store.crash()
        store.tables.alive_at = alive_at
        return MemoryDisk(store)

    def close(self) -> None:
        pass


class SqliteDisk:
    """The product's store in a directory of its own, its threads waited for at every step."""

    def __init__(self, path: Path | None = None) -> None:
        self._own = tempfile.TemporaryDirectory() if path is None else None
        self._path = Path(self._own.name) if self._own is not None else path
        self._store = Store.open(data_dir=str(self._path))
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._number = 0

    def snapshot(self) -> Snapshot:
        found = self._store.snapshot()
        self._number = found.last_number
        return found

    def start(self, on_committed: Callable[[int], None], on_folded: Callable[[int], None]) -> None:
        self._on_committed, self._on_folded = on_committed, on_folded
        self._store.start(
            lambda number: self._events.put(("commit", number)),
            lambda number: self._events.put(("fold", number)),
            lambda state: self._events.put(("state", state)),
        )

    def _wait(self, kind: str, is_over: Callable[[Any], bool]) -> None:
        """Pass on what the threads say, until they say this."""
        while True:
            what, value = self._events.get(timeout=WAIT_S)
            assert what != "state" or not value, f"the store: {value}"
            if what == "commit":
                self._on_committed(value)
            elif what == "fold":
                self._on_folded(value)
            if what == kind and is_over(value):
                return

    def commit(self, groups: list[tuple[int, bytes, float]]) -> None:
        for group in groups:
            self._store.submit(*group)
        if groups:
            self._number = groups[-1][0]
            self._wait("commit", lambda number: number >= self._number)

    def fold(self) -> None:
        if self._store.lag:
            self._store.apply_soon()
            self._wait("fold", lambda number: number >= self._number)

    def page(self, owner: StoredQueue, messages_max: int, on_page: Callable[[Page], None]) -> None:
        found: list[Page] = []

        def answer(page: Page) -> None:
            found.append(page)
            self._events.put(("page", page))

        self._store.page(owner.session_number, owner.page_after, messages_max, PAGE_BYTES, answer)
        self._wait("page", lambda _: True)
        on_page(found[0])

    def crash(self, alive_at: float) -> SqliteDisk:
        self._store.abandon()
        assert self._path is not None
        # The real clock is not that of the world.
        with contextlib.closing(sqlite3.connect(self._path / "fleetmq.db")) as tables, tables:
            tables.execute("UPDATE meta SET alive_at = ?", (alive_at,))
        other = SqliteDisk(self._path)
        other._own, self._own = self._own, None
        return other

    def close(self) -> None:
        self._store.abandon()
        if self._own is not None:
            self._own.cleanup()
