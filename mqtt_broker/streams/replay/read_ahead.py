"""What all readers together may have read ahead and have open: memory and files are bounded.

Whoever has waited longest for its client to take a page gives it up when there is too much, and
reads it again when it is wanted; the file that was read longest ago is closed in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqtt_broker.streams.replay.subscription import PartitionCursor, StreamSubscription


class ReadAheadBudget:
    def __init__(self, bytes_max: int, files_max: int) -> None:
        self._bytes_max = bytes_max
        self._files_max = files_max
        self.bytes = 0  # of pages that were read and not sent
        self._takers: dict[
            StreamSubscription, None
        ] = {}  # who has pages; the last that got one stands last
        self._open: dict[PartitionCursor, None] = {}  # who has a file open, in the same way

    def __len__(self) -> int:
        """How many have a page or a file."""
        return len(self._takers) + len(self._open)

    @property
    def files(self) -> int:
        return len(self._open)

    @property
    def is_tight(self) -> bool:
        """Whether there is hardly memory left for pages that cannot be sent at once."""
        return self.bytes > self._bytes_max // 2

    def add(self, taker: StreamSubscription, size: int) -> None:
        """It has so much more, or less."""
        self.bytes += size
        if not taker.buffered_bytes:
            self._takers.pop(taker, None)
        elif size > 0:
            self._takers.pop(taker, None)
            self._takers[taker] = None
            while self.bytes > self._bytes_max:
                slowest = next(iter(self._takers))
                if slowest is taker:
                    return
                slowest.drop_pages()

    def open(self, lane: PartitionCursor) -> None:
        """A read of it is about to begin."""
        self._open.pop(lane, None)
        self._open[lane] = None
        if len(self._open) > self._files_max:
            for idle in self._open:
                if not idle.is_reading:
                    self.close(idle)
                    return

    def close(self, lane: PartitionCursor) -> None:
        """Its file is not needed for now. A read that is under way keeps it till it is over."""
        if not lane.is_reading:
            lane.cursor.close()
            self._open.pop(lane, None)

    def close_all(self) -> None:
        """Nobody reads any longer."""
        for lane in self._open:
            lane.cursor.close()
        self._open.clear()
