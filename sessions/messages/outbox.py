"""The bytes to be written to one connection at the end of the turn.

`pieces` collects bytes, which may be shared with other receivers; the broker joins and writes them
once per turn. `state` is one small int, so that the fan-out loop makes one comparison per receiver:

    CLEAN      nothing to write
    DIRTY      has pieces, and is in the broker's dirty list
    CONGESTED  or-ed in while the peer reads too slowly: QoS 0 is dropped, the rest waits
    OFFLINE    no connection: accepts nothing

Unread bytes count against the peer that does not read them. Its link gets no more than its *share*
(`Outboxes.share_bytes`): a maximum per peer, and never more than the others leave free. So many
slow peers divide the space between them, and a peer that reads always gets some. Bytes beyond the
share are kept here, as references that several outboxes may have to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from mqtt_broker.codec.constants import V5
from sessions.messages.counters import Counters
from sessions.messages.kept_bytes import KeptBytes, SharedPieces
from sessions.messages.work import BYTES_A_UNIT, WRITE, Work

CLEAN: Final = 0
DIRTY: Final = 1
CONGESTED: Final = 2
OFFLINE: Final = 4
TURN_BYTES_MAX: Final = 16 << 20  # put into outboxes until some of them are written
_LATE_BYTES_MAX: Final = 64 << 10  # the share of a peer if the others leave nothing free
_NO_LIMIT: Final = 1 << 62


class Aliases(Protocol):
    """The Topic Aliases towards one peer."""

    def get(self, topic: str) -> tuple[int, bool]: ...

    def learn(self, topic: str, alias: int) -> None: ...


class OutboxOwner(Protocol):
    """The connection behind an outbox."""

    last_read_at: float  # when its peer last took bytes

    @property
    def reads_slowly(self) -> bool:
        """Tell whether the peer is over its share, and gets nothing until it has read."""

    def on_written(self, waiting_bytes: int, now: float) -> None:
        """Note that bytes were written to the link, and how many still wait for the peer."""

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        """Close the connection: an internal error occurred while `data` was written to it."""

    def give_up(self, counted_as: str, why: str, now: float) -> None:
        """Close the connection: the unread bytes of its peer take too much memory."""


class Outbox:
    """The bytes for one peer. `write` passes them on and returns how many still wait."""

    __slots__ = (
        "_dirty",
        "aliases",
        "bytes_out",
        "handed_bytes",
        "kept",
        "link_bytes",
        "messages_out",
        "outboxes",
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
        outboxes: Outboxes,
        *,
        packet_bytes_max: int = 0,
        aliases: Aliases | None = None,
    ) -> None:
        self.version = version
        self.v5 = version == V5
        self.owner = owner
        self.write = write
        self.outboxes = outboxes
        self._dirty = outboxes.dirty
        self.pieces: list[bytes] = []
        self.state = CLEAN
        self.waiting_bytes = 0  # not yet taken by the peer: at the link, and kept here
        self.link_bytes = 0  # written to the link and not yet taken by the peer
        self.kept: KeptBytes | None = None  # before `pieces`: beyond the peer's share
        self.handed_bytes = 0  # written to the link while something waited, in all
        self.bytes_out = 0  # written to the link while nothing waited
        self.messages_out = 0
        self.packet_bytes_max = packet_bytes_max  # 0: no limit
        self.aliases = aliases
        self.plain = not packet_bytes_max and aliases is None

    def put(self, data: bytes) -> None:
        """Write bytes at the end of the turn, even if the peer is congested.

        Only PUBLISH depends on the window. [MQTT-3.3.4-10], [MQTT-4.9.0-3]
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
        """Set another function to write through."""
        self.write = write

    def hand(self, data: bytes) -> int:
        """Write to the link while some bytes wait for the peer."""
        self.handed_bytes += len(data)
        return self.write(data)

    def keep(self, shared: SharedPieces) -> KeptBytes:
        """Move the pieces to the kept bytes, and return those."""
        self.state &= ~DIRTY
        kept = self.kept
        if kept is None:
            kept = self.kept = KeptBytes(shared)
        kept.add(self.pieces)
        self.pieces.clear()
        return kept

    def forget_kept(self) -> None:
        """Forget the kept bytes: all were taken, or they are dropped."""
        if self.kept is not None:
            self.kept.drop()
            self.kept = None

    def settle(self, link_bytes: int) -> int:
        """Set the bytes that wait at the link; return the change."""
        change = link_bytes - self.link_bytes
        self.link_bytes = link_bytes
        self.waiting_bytes = link_bytes if self.kept is None else link_bytes + self.kept.bytes
        return change

    def close(self) -> None:
        """Let go of the connection and its link: they are closed, and nothing more is written."""
        self.owner = _GONE
        self.write = _GONE.write

    def fits(self, packet_bytes: int) -> bool:
        """Tell whether the peer accepts a packet of this size. [MQTT-3.1.2-24]"""
        return not self.packet_bytes_max or packet_bytes <= self.packet_bytes_max


class _NoConnection:
    last_read_at = 0.0
    reads_slowly = False

    def on_written(self, waiting_bytes: int, now: float) -> None:
        raise AssertionError("a write to a client without a connection")

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        raise error

    def give_up(self, counted_as: str, why: str, now: float) -> None:
        raise AssertionError("a client without a connection has no unread bytes")

    def write(self, data: bytes) -> int:
        raise AssertionError("a write to a client without a connection")


class _GoneConnection(_NoConnection):
    """A connection that is closed: whatever is still said of it is too late."""

    def on_written(self, waiting_bytes: int, now: float) -> None:
        pass

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        pass

    def give_up(self, counted_as: str, why: str, now: float) -> None:
        pass

    def write(self, data: bytes) -> int:
        return 0


_GONE: Final = _GoneConnection()

# The time of a check, how much the peer had read by then, and how much waited for it.
ReadMark = tuple[float, int, int]


class Outboxes:
    """The outboxes with something to write in this turn, and the sums over all outboxes."""

    __slots__ = (
        "_counters",
        "_least_bytes",
        "_link_bytes",
        "_work",
        "dirty",
        "flushed_at",
        "has_left",
        "share_bytes",
        "share_bytes_max",
        "shared",
        "turn_bytes",
        "unread",
        "waiting_bytes_max",
        "writes_max",
    )

    def __init__(
        self,
        counters: Counters,
        now: float,
        work: Work,
        *,
        share_bytes_max: int = _NO_LIMIT,
        waiting_bytes_max: int = _NO_LIMIT,
    ) -> None:
        self._counters = counters
        self._work = work
        self._link_bytes = 0  # written to links and not yet taken by peers
        self.shared = SharedPieces()  # the kept bytes of all outboxes
        self.dirty: list[Outbox] = []
        # The outboxes whose peers have unread bytes, with the last check of each.
        self.unread: dict[Outbox, ReadMark | None] = {}
        self.flushed_at = now  # the time of the turn that is being written
        self.turn_bytes = 0  # appended to outboxes since all of them were written
        self.has_left = False  # the last turn could not write all of them
        self.writes_max = work.turn_units // WRITE  # of one turn
        self.waiting_bytes_max = waiting_bytes_max
        self.share_bytes_max = share_bytes_max
        # The least share: without some bytes nobody learns whether a peer reads.
        self._least_bytes = max(64, min(1024, waiting_bytes_max >> 12))
        self.share_bytes = 0  # what one peer may have unread now
        self._share()

    @property
    def waiting_bytes(self) -> int:
        """The bytes not yet read by peers; bytes that several outboxes keep count once."""
        return self._link_bytes + self.shared.bytes

    @property
    def is_pressed(self) -> bool:
        """Tell whether peers have so much unread that each has to read at some rate."""
        return self.waiting_bytes > self.waiting_bytes_max // 2

    def flush(self, now: float) -> None:
        """Write what the turn produced, one write per peer; the rest in the next, if it is much."""
        self.flushed_at = now
        work = self._work
        end = work.spent + work.turn_units
        dirty = self.dirty
        done = 0
        for box in dirty:  # writing may append to it
            done += 1
            try:
                self.write(box, now)
            except Exception as error:
                box.owner.on_error(error, b"", now)
            if work.spent >= end:
                break
        self.has_left = done < len(dirty)
        if self.has_left:
            del dirty[:done]
        else:
            dirty.clear()
            self.turn_bytes = 0

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits to be written that publishers have to wait as well."""
        return self.has_left and self.turn_bytes > TURN_BYTES_MAX

    def write(self, box: Outbox, now: float) -> None:
        """Write one outbox now, before the turn ends."""
        pieces = box.pieces
        box.state &= ~DIRTY
        if not pieces:
            return
        if box.waiting_bytes:
            box.owner.on_written(self.hand_over(box), now)
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) > self.share_bytes:
            box.owner.on_written(self.hand_over(box), now)
            return
        pieces.clear()
        box.bytes_out += len(data)
        self._counters.bytes_sent += len(data)
        self._work.spent += WRITE + len(data) // BYTES_A_UNIT
        waiting = box.write(data)
        if waiting:
            box.owner.on_written(waiting, now)

    def hand_over(self, box: Outbox) -> int:
        """Write as much to the link as its peer may have unread, and keep the rest.

        Return how many bytes wait at the link now, for `count_waiting`.
        """
        pieces = box.pieces
        waiting = box.link_bytes
        self._work.spent += WRITE
        if box.kept is None:
            data = b"".join(pieces)
            self._work.spent += len(data) // BYTES_A_UNIT
            if waiting + len(data) <= self.share_bytes:
                pieces.clear()
                self._counters.bytes_sent += len(data)
                return box.hand(data)
        kept = box.keep(self.shared)
        while len(kept) and (not waiting or waiting < self.share_bytes):
            data = kept.take(self.share_bytes - waiting)
            self._work.spent += WRITE + len(data) // BYTES_A_UNIT
            self._counters.bytes_sent += len(data)
            waiting = box.hand(data)
        if not len(kept):
            box.forget_kept()
        return waiting

    def hand_over_all(self, box: Outbox) -> None:
        """Write everything to the link: the connection ends."""
        data = box.keep(self.shared).take(_NO_LIMIT)
        box.forget_kept()
        if data:
            self._counters.bytes_sent += len(data)
            box.hand(data)

    def count_waiting(self, box: Outbox, link_bytes: int) -> None:
        """Set the bytes that wait at the link of an outbox, without those that it keeps."""
        self._link_bytes += box.settle(link_bytes)
        if not box.waiting_bytes:
            self.unread.pop(box, None)
        elif box not in self.unread:
            self.unread[box] = None
        self._share()

    def note(self, box: Outbox, mark: ReadMark) -> None:
        """Keep a mark with an outbox until its peer has read everything."""
        self.unread[box] = mark

    def _share(self) -> None:
        """Set the share: what one peer may have unread, of what the others leave free.

        An eighth is reserved for peers that come when the rest is full. Each of them may have a
        sixteenth of the first half of it, and the least share of the other half.
        """
        free = self.waiting_bytes_max - self.waiting_bytes
        share = free - (self.waiting_bytes_max >> 3)
        if share < _LATE_BYTES_MAX:
            late = (free - (self.waiting_bytes_max >> 4)) // 16
            share = max(share, min(late, _LATE_BYTES_MAX), self._least_bytes)
        self.share_bytes = min(share, self.share_bytes_max)


# The outbox of clients without a connection, so that the hot path need not check for None.
NO_CONNECTION: Final = Outbox(
    V5, _NoConnection(), _NoConnection().write, Outboxes(Counters(0.0), 0.0, Work())
)
NO_CONNECTION.state = OFFLINE
