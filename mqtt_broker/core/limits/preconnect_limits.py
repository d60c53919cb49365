"""Limit the memory held for clients that are not connected yet, of all of them together.

A CONNECT is at most `connect_bytes_max` long (the decoder sees to that), and nobody who sends one
in pieces is bothered while it is small. What larger ones keep is bounded by a sum: who goes beyond
it has to go. What follows a CONNECT that waits for its answer counts as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtt_broker.codec.packets import Packet, Publish

if TYPE_CHECKING:
    from mqtt_broker.codec.errors import Violation
    from mqtt_broker.core.clients.connection import Connection

SMALL_BYTES: Final = 16 << 10
_PACKET_BYTES: Final = 256  # about what a packet takes in memory beside its own bytes


class PreconnectLimits:
    __slots__ = ("_bytes", "_bytes_max", "_held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Connection, int] = {}

    def keep(self, connection: Connection, size: int, now: float) -> None:
        """So much more came of a CONNECT that is not whole."""
        self._bytes += size
        mine = self._held[connection] = self._held.get(connection, 0) + size
        if self._bytes > self._bytes_max and mine > SMALL_BYTES:
            connection.broker.stats.refuse("connect", "connecting_bytes")
            connection.end(now, say=False, why="too much memory for CONNECTs")

    def keep_packets(
        self, connection: Connection, packets: list[Packet | Violation], now: float
    ) -> None:
        """Count what a client sent behind its CONNECT, while that is being decided."""
        size = _PACKET_BYTES * len(packets)
        for packet in packets:
            if type(packet) is Publish:
                size += len(packet.raw)
        self.keep(connection, size, now)

    def forget(self, connection: Connection) -> None:
        """It is known now, or gone."""
        self._bytes -= self._held.pop(connection, 0)
