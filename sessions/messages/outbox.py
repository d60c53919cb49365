"""Bytes to be written to one connection at the end of the turn.

`pieces` collects bytes, shared with other receivers or not; the broker joins and writes them once
a turn. `state` is one small int, so that the fan-out loop compares once a receiver:

    CLEAN      nothing to write
    DIRTY      has pieces, and is in the broker's dirty list
    CONGESTED  or-ed in while the peer reads too slowly: QoS 0 is dropped, the rest waits
    OFFLINE    no connection: takes nothing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from mqtt_broker.codec.constants import V5
from sessions.messages.counters import Counters

CLEAN: Final = 0
DIRTY: Final = 1
CONGESTED: Final = 2
OFFLINE: Final = 4


class Aliases(Protocol):
    """The Topic Aliases that may be used to one peer."""

    def get(self, topic: str) -> tuple[int, bool]: ...

    def learn(self, topic: str, alias: int) -> None: ...


class OutboxOwner(Protocol):
    """The connection behind an outbox."""

    def on_written(self, waiting_bytes: int, now: float) -> None:
        """Note that bytes were handed to the link, and how many still wait for the peer."""

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        """Close the connection: an error of ours came up while `data` was written to it."""


class Outbox:
    """The bytes for one peer. `write` takes them and returns how many still wait."""

    __slots__ = (
        "_dirty",
        "aliases",
        "owner",
        "packet_bytes_max",
        "pieces",
        "plain",
        "state",
        "v5",
        "version",
        "waiting_bytes",
        "write",
    )

    def __init__(
        self,
        version: int,
        owner: OutboxOwner,
        write: Callable[[bytes], int],
        dirty: list[Outbox],
        *,
        packet_bytes_max: int = 0,
        aliases: Aliases | None = None,
    ) -> None:
        self.version = version
        self.v5 = version == V5
        self.owner = owner
        self.write = write
        self._dirty = dirty
        self.pieces: list[bytes] = []
        self.state = CLEAN
        self.waiting_bytes = 0  # handed to the link and not yet taken by the peer
        self.packet_bytes_max = packet_bytes_max  # 0: no limit
        self.aliases = aliases
        self.plain = not packet_bytes_max and aliases is None

    def put(self, data: bytes) -> None:
        """Write this at the end of the turn, whatever the state of the peer.

        Only PUBLISH waits for a window. [MQTT-3.3.4-10], [MQTT-4.9.0-3]
        """
        self.pieces.append(data)
        if not self.state & DIRTY:
            self.state |= DIRTY
            self._dirty.append(self)

    def mark(self) -> None:
        """Note that pieces were appended directly."""
        if not self.state & DIRTY:
            self.state |= DIRTY
            self._dirty.append(self)

    def congest(self) -> None:
        """Drop QoS 0 and let the rest wait until `decongest`: the peer reads too slowly."""
        self.state |= CONGESTED

    def decongest(self) -> None:
        self.state &= ~CONGESTED

    def write_through(self, write: Callable[[bytes], int]) -> None:
        """Write through another function from now on."""
        self.write = write

    def fits(self, packet_bytes: int) -> bool:
        """Tell whether the peer accepts a packet of this size. [MQTT-3.1.2-24]"""
        return not self.packet_bytes_max or packet_bytes <= self.packet_bytes_max


class _NoConnection:
    def on_written(self, waiting_bytes: int, now: float) -> None:
        raise AssertionError("a write to a client without a connection")

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        raise error

    def write(self, data: bytes) -> int:
        raise AssertionError("a write to a client without a connection")


# The outbox of every client without a connection, so that the hot path need not ask for None.
NO_CONNECTION: Final = Outbox(V5, _NoConnection(), _NoConnection().write, [])
NO_CONNECTION.state = OFFLINE


class Outboxes:
    """Every outbox with something to write this turn, and what they have written so far."""

    __slots__ = ("_counters", "dirty", "flushed_at", "turn_bytes", "waiting_bytes")

    def __init__(self, counters: Counters, now: float) -> None:
        self._counters = counters
        self.dirty: list[Outbox] = []
        self.flushed_at = now  # the time of the turn that is being written
        self.turn_bytes = 0  # appended to them since the last flush
        self.waiting_bytes = 0  # handed to links, not yet read by peers

    def flush(self, now: float) -> None:
        """Write everything the turn produced: one write a peer."""
        self.flushed_at = now
        for box in self.dirty:  # which grows while it is written
            try:
                self.write(box, now)
            except Exception as error:
                box.owner.on_error(error, b"", now)
        self.dirty.clear()
        self.turn_bytes = 0

    def write(self, box: Outbox, now: float) -> None:
        """Write one outbox now, before the turn ends."""
        pieces = box.pieces
        box.state &= ~DIRTY
        if not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._counters.bytes_sent += len(data)
        waiting = box.write(data)
        if waiting or box.waiting_bytes:
            box.owner.on_written(waiting, now)

    def count_waiting(self, box: Outbox, waiting_bytes: int) -> None:
        """Note that this many bytes of the outbox wait for its peer now."""
        self.waiting_bytes += waiting_bytes - box.waiting_bytes
        box.waiting_bytes = waiting_bytes
