"""Bound the memory of pages that were read ahead, and the files that are open, for all readers.

When there is too much, the subscription that has waited longest for its client to take a page
gives its pages up, and reads them again when they are wanted. In the same way the file that was
read longest ago is closed.
"""

from __future__ import annotations

from typing import Protocol

from mqtt_broker.streams.replay.pages import PageReader


class PageHolder(Protocol):
    """A subscription, as far as it holds pages."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of its pages."""

    def drop_pages(self) -> None:
        """Give all pages up."""


class FileHolder(Protocol):
    """The cursor of a partition, as far as it holds a file."""

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
        self.bytes = 0  # of pages that were read and not sent
        # Both in the order of their last read: the oldest stands first.
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
        """Count that a holder has so many bytes more, or less."""
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
        """Close a file that is not needed now. One that is being read stays open until then."""
        if not cursor.is_reading:
            cursor.reader.close()
            self._open.pop(cursor, None)

    def close_all(self) -> None:
        """Close every file at the end."""
        for cursor in self._open:
            cursor.reader.close()
        self._open.clear()
