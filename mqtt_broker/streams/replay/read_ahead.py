"""Limit the resources of all readers: reads in threads, pages read ahead, open files.

There are few threads, which work in order of request. Each client has one read under way; its other
reads wait, and are dropped if they are no longer wanted when they are next. So a client that
subscribes again and again does not fill the threads.

When there are too many pages, the subscription whose client has taken none for longest drops its
pages, and reads them again when they are needed. Likewise the least recently read file is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from mqtt_broker.streams.replay.pages import PageReader


class Read(Protocol):
    """Runs `work` in a thread, and `done` with its result on the loop."""

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class _Waiting(NamedTuple):
    work: Callable[[], Any]
    done: Callable[[Any], None]
    is_wanted: Callable[[], bool]


class ReadQueue:
    """The reads of all clients, one at a time for each."""

    def __init__(self, read: Read) -> None:
        self._read = read
        # Reads that wait for the one under way, by client id.
        self._waiting: dict[str, deque[_Waiting]] = {}

    def __len__(self) -> int:
        """Return the number of clients with a read under way."""
        return len(self._waiting)

    def read(
        self,
        client_id: str,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Run `work` in a thread after the client's earlier reads, then `done(result)` on the loop.

        If it is no longer wanted when it is next, `done` gets None.
        """
        waiting = self._waiting.get(client_id)
        if waiting is not None:
            waiting.append(_Waiting(work, done, is_wanted))
            return
        self._waiting[client_id] = deque()
        self._read(work, partial(self._on_done, client_id, done))

    def _on_done(self, client_id: str, done: Callable[[Any], None], found: Any) -> None:
        self._begin_next(client_id)
        done(found)

    def _begin_next(self, client_id: str) -> None:
        waiting = self._waiting[client_id]
        while waiting:
            work, done, is_wanted = waiting.popleft()
            if is_wanted():
                self._read(work, partial(self._on_done, client_id, done))
                return
            done(None)
        del self._waiting[client_id]


class PageHolder(Protocol):
    """A subscription, as a holder of pages."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of its pages."""

    def drop_pages(self) -> None:
        """Drop all pages."""


class FileHolder(Protocol):
    """The cursor of a partition, as a holder of a file."""

    @property
    def reader(self) -> PageReader: ...

    @property
    def is_reading(self) -> bool:
        """Tell whether a thread uses the file now."""


class ReadAheadBudget:
    """The pages and files of all subscriptions together."""

    def __init__(self, bytes_max: int, files_max: int) -> None:
        self._bytes_max = bytes_max
        self._files_max = files_max
        self.bytes = 0  # of pages read and not sent yet
        # Both in the order of their last read, the oldest first.
        self._holders: dict[PageHolder, None] = {}
        self._open: dict[FileHolder, None] = {}

    def __len__(self) -> int:
        """Return the number of subscriptions with a page and of cursors with a file."""
        return len(self._holders) + len(self._open)

    @property
    def files(self) -> int:
        return len(self._open)

    @property
    def is_tight(self) -> bool:
        """Tell whether hardly any memory is left for pages that cannot be sent at once."""
        return self.bytes > self._bytes_max // 2

    def add(self, holder: PageHolder, size: int) -> None:
        """Add to the bytes of a holder; `size` may be negative."""
        self.bytes += size
        if not holder.buffered_bytes:
            self._holders.pop(holder, None)
        elif size > 0:
            self._holders.pop(holder, None)
            self._holders[holder] = None
            while self.bytes > self._bytes_max:
                slowest = next(iter(self._holders))
                if slowest is holder:
                    return
                slowest.drop_pages()

    def open(self, cursor: FileHolder) -> None:
        """Count the file of a cursor that is about to be read."""
        self._open.pop(cursor, None)
        self._open[cursor] = None
        if len(self._open) > self._files_max:
            for idle in self._open:
                if not idle.is_reading:
                    self.close(idle)
                    return

    def close(self, cursor: FileHolder) -> None:
        """Close a file that is not needed now. A file that is being read stays open until then."""
        if not cursor.is_reading:
            cursor.reader.close()
            self._open.pop(cursor, None)

    def close_all(self) -> None:
        """Close every file at the end."""
        for cursor in self._open:
            cursor.reader.close()
        self._open.clear()
