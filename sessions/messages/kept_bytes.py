"""The bytes that an outbox keeps while its peer has enough unread data.

Large pieces are kept as they are: the payload of a message to thousands of slow readers is in
memory once, and counted once. Small ones are joined, so that there are few of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_LARGE_BYTES: Final = 4096  # a piece of this size is not joined with others
_JOINED_BYTES: Final = 32 << 10  # smaller pieces are joined up to this size


class SharedPieces:
    """The pieces kept by all outboxes; `bytes` counts each piece once."""

    __slots__ = ("_holders", "bytes")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # identity of a piece -> how often it is kept
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, piece: bytes) -> None:
        holders = self._holders.get(id(piece), 0)
        self._holders[id(piece)] = holders + 1
        if not holders:
            self.bytes += len(piece)

    def remove(self, piece: bytes) -> None:
        holders = self._holders[id(piece)] - 1
        if holders:
            self._holders[id(piece)] = holders
        else:
            del self._holders[id(piece)]
            self.bytes -= len(piece)


class KeptBytes:
    """The pieces kept by one outbox, in their order."""

    __slots__ = ("_cut", "_pieces", "_shared", "bytes")

    def __init__(self, shared: SharedPieces) -> None:
        self._shared = shared
        self._pieces: deque[bytes] = deque()
        self._cut = 0  # bytes of the first piece that have been taken
        self.bytes = 0  # in all, without those

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, pieces: list[bytes]) -> None:
        """Append pieces."""
        small: list[bytes] = []
        small_bytes = 0
        for piece in pieces:
            size = len(piece)
            if not size:
                continue
            self.bytes += size
            if size < _LARGE_BYTES:
                small.append(piece)
                small_bytes += size
                if small_bytes < _JOINED_BYTES:
                    continue
            if small:
                self._append(b"".join(small))
                small.clear()
                small_bytes = 0
            if size >= _LARGE_BYTES:
                self._append(piece)
        if small:
            self._append(b"".join(small))

    def _append(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._shared.add(piece)

    def take(self, bytes_max: int) -> bytes:
        """Remove and return up to `bytes_max` bytes from the front."""
        pieces = self._pieces
        taken: list[bytes] = []
        cut = self._cut
        while pieces and bytes_max > 0:
            piece = pieces[0]
            size = len(piece) - cut
            if size > bytes_max:
                taken.append(piece[cut : cut + bytes_max])
                cut += bytes_max
                self.bytes -= bytes_max
                break
            taken.append(piece[cut:] if cut else piece)
            cut = 0
            bytes_max -= size
            self.bytes -= size
            self._shared.remove(pieces.popleft())
        self._cut = cut
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def drop(self) -> None:
        """Forget all pieces; the bytes taken before may end in the middle of a packet."""
        while self._pieces:
            self._shared.remove(self._pieces.popleft())
        self._cut = self.bytes = 0
