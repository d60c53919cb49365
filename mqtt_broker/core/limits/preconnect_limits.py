"""Limit the memory held for connections that have not completed CONNECT, all of them together.

A CONNECT is at most `connect_bytes_max` long (the decoder sees to that), and a connection that
sends it in pieces is left alone while it is small. The sum bounds what larger ones hold: a
connection that takes it over the limit is closed. What follows a CONNECT that waits for its
verdict counts as well.
"""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 16 << 10


class PreconnectLimits:
    __slots__ = ("_bytes_max", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def add(self, size: int, share: int) -> bool:
        """Count `size` more bytes of a connection that then holds `share` in all.

        False when the connection has to be closed for it.
        """
        self.bytes += size
        return self.bytes <= self._bytes_max or share <= SMALL_BYTES

    def remove(self, share: int) -> None:
        """Stop counting the bytes of a connection that has connected or closed."""
        self.bytes -= share
