"""Gather entries for each node, and send them as frames of about 32 KB.

The end of a turn sends what is left: an entry never waits for company.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.cluster.frames.bodies import encode_entries
from mqtt_broker.cluster.frames.layout import BODY_BYTES_MAX

BATCH_BYTES: Final = 32_768  # larger frames are not cheaper
_ENTRY_BYTES: Final = 4  # in addition to its own
_LIST_BYTES: Final = 4
ENTRY_BYTES_MAX: Final = BODY_BYTES_MAX - _LIST_BYTES - _ENTRY_BYTES


class _Batch:
    __slots__ = ("entries", "left_bytes")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.left_bytes = BATCH_BYTES

    def add(self, entry: bytes) -> bool:
        """Add an entry; return whether the batch is full."""
        self.entries.append(entry)
        self.left_bytes -= len(entry) + _ENTRY_BYTES
        return self.left_bytes <= 0


class Batches:
    """The entries of a turn, by the number that they are for."""

    __slots__ = ("_batches", "_send", "dropped", "too_large")

    def __init__(self, send: Callable[[int, bytes], bool]) -> None:
        self._send = send  # to a number, the body of a frame; False: it is dropped
        self._batches: dict[int, _Batch] = {}
        self.too_large = 0
        self.dropped = 0  # entries of frames that were not sent

    def add(self, to: int, entry: bytes) -> None:
        """Send an entry with others, at the latest when the turn ends."""
        batch = self._batches.get(to)
        if batch is None:
            batch = self._batches[to] = _Batch()
        if len(entry) >= batch.left_bytes:
            if len(entry) > ENTRY_BYTES_MAX:
                self.too_large += 1
                return
            self._flush(to)
            batch = self._batches[to] = _Batch()
        if batch.add(entry):
            self._flush(to)

    def flush(self) -> None:
        """Send what is left: the turn ends."""
        for to in list(self._batches):
            self._flush(to)

    def _flush(self, to: int) -> None:
        batch = self._batches.pop(to)
        if batch.entries and not self._send(to, encode_entries(batch.entries)):
            self.dropped += len(batch.entries)
