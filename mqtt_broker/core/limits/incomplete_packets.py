"""Limit the memory held for connected clients that have not completed a packet, all together.

A client may send a packet as slowly as its keep alive allows. Small parts are left alone; larger
ones are counted. When there are too many bytes of them, clients are closed until an eighth is free
again: those first whose part is large and has been incomplete for long, as bytes times seconds.
Somebody who sends one large packet after the other, or a small one slowly, is not among them as
long as others hold more. A client that the broker does not read from now comes last.
"""

from __future__ import annotations

from typing import Final, Protocol

SMALL_BYTES: Final = 4 << 10
INCOMPLETE_BYTES: Final = "incomplete bytes"


class IncompleteSender(Protocol):
    """A connection, as far as it sends in parts."""

    @property
    def is_paused(self) -> bool:
        """Tell whether it is not read from, so that it cannot complete a packet."""

    def give_up_packet(self, why: str, now: float) -> None:
        """Close: the parts that its client sent take too much memory."""


class IncompletePackets:
    __slots__ = ("_held", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._held: dict[IncompleteSender, tuple[int, float]] = {}  # bytes, and since when

    def count(
        self, client: IncompleteSender, size: int, now: float, *, is_new: bool = False
    ) -> bool:
        """Set the bytes that a client has sent of packets that are not complete; close others.

        `is_new`: it has completed one. Returns whether the client is counted from now on.
        """
        before, since = self._held.get(client, (0, now))
        self.bytes += size - before
        if size <= SMALL_BYTES:
            self.bytes -= size
            self._held.pop(client, None)
            return False
        self._held[client] = (size, now if is_new else since)
        if self.bytes > self.bytes_max:
            self._close_largest(now)
            return client in self._held
        return True

    def forget(self, client: IncompleteSender) -> None:
        """Stop counting a connection that has closed."""
        size, _ = self._held.pop(client, (0, 0.0))
        self.bytes -= size

    def _close_largest(self, now: float) -> None:
        """Close clients until an eighth is free."""
        ranks: list[tuple[bool, float, int]] = []
        clients = list(self._held)
        for place, client in enumerate(clients):
            size, since = self._held[client]
            ranks.append((client.is_paused, -size * (1 + now - since), place))
        ranks.sort()
        enough = self.bytes_max - (self.bytes_max >> 3)
        for _, _, place in ranks:
            if self.bytes <= enough:
                return
            client = clients[place]
            if client not in self._held:  # closed with another
                continue
            size, _ = self._held.pop(client)
            why = f"{size} bytes of a packet that is not complete, of {self.bytes} of all clients"
            self.bytes -= size
            client.give_up_packet(why, now)
