"""The broker's services, positions and limits, shared by subscriptions and groups.

    ReplayHost       the services of the broker that a replay uses
    Positions        records the positions of clients and groups
    ReplayContext    both of these, read-ahead, reading in threads, and counters

Positions of stored sessions and of groups are recorded in the journal: at most every `RECORD_S`,
and at once when a client leaves or a partition moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mqtt_broker.core.runtime.timers import Timer, Timers
from mqtt_broker.streams.replay.notices import send_notice
from mqtt_broker.streams.replay.pages import LiveSources, PageReader
from mqtt_broker.streams.replay.read_ahead import Read, ReadAheadBudget, ReadQueue
from mqtt_broker.streams.write.stream import Stream
from sessions.journal.journal import Journal
from sessions.messages.backlog import DeadLetterSink
from sessions.messages.message import DeliveryOptions
from sessions.messages.outbox import Outbox
from sessions.session import Session

RECORD_S: Final = 0.1  # between two records of a position
READERS_MAX: Final = 10_000  # subscriptions to streams
GROUPS_MAX: Final = 10_000  # consumer groups, with members or without
CLIENT_PART: Final = 10  # one client may have this fraction of both
BUFFERED_BYTES_MAX: Final = 128 << 20  # of pages that were read ahead
FILES_MAX: Final = 512  # kept open for readers
UNREAD_BYTES_MAX: Final = 256 << 10  # sent to a client and not read by it yet


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    redeliveries_max: int = 0  # failures of a record before a group gives it up; 0: no limit
    readers_max: int = READERS_MAX
    groups_max: int = GROUPS_MAX
    buffered_bytes_max: int = BUFFERED_BYTES_MAX
    files_max: int = FILES_MAX

    @property
    def readers_of_client_max(self) -> int:
        """Return how many subscriptions to streams one client may have."""
        return max(1, self.readers_max // CLIENT_PART)

    @property
    def groups_of_client_max(self) -> int:
        """Return how many of the groups one client may have created."""
        return max(1, self.groups_max // CLIENT_PART)


DEFAULT_LIMITS: Final = ReplayLimits()


@dataclass(frozen=True, slots=True)
class ReplayHost:
    """The services of the broker that a replay uses."""

    timers: Timers
    journal: Journal | None
    log: Callable[[str], None]
    on_bug: Callable[[Exception], None]
    write_out: Callable[[Outbox, float], None]  # pass an outbox to its link
    is_pressed: Callable[[], bool]  # too many bytes wait for slow clients: send no more now
    outbox_bytes_max: int  # of one client, before it is disconnected


@dataclass(slots=True)
class ReplayCounters:
    messages: int = 0  # sent
    gaps: int = 0  # offsets that were gone before they were read
    redelivered: int = 0
    dead: int = 0  # records given up as dead letters


class Position(Protocol):
    """The position in one partition, and the stored position."""

    recorded: int

    @property
    def partition(self) -> int: ...

    @property
    def position(self) -> int: ...


class Positioned(Protocol):
    """A client or a group whose positions are recorded."""

    @property
    def owner(self) -> str:
        """The name of its positions in the store."""

    @property
    def stream(self) -> Stream: ...

    @property
    def cursors(self) -> Sequence[Position]: ...

    @property
    def is_stored(self) -> bool:
        """Tell whether its positions are stored."""


class Positions:
    """Records the positions that have changed, soon or at once."""

    def __init__(self, journal: Journal | None, timers: Timers, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._timers = timers
        self._clock = clock
        self._moved: dict[Positioned, None] = {}  # to be recorded
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._moved)

    def note(self, who: Positioned) -> None:
        """Record soon that its positions may have changed."""
        if self._journal is None or who in self._moved or not who.is_stored:
            return
        self._moved[who] = None
        if self._timer is None:
            self._timer = self._timers.at(self._clock() + RECORD_S, self._record_moved)

    def _record_moved(self, now: float) -> None:
        self._timer = None
        for who in list(self._moved):
            self.record(who)

    def record(self, who: Positioned) -> None:
        """Record now the positions that differ from those in the store."""
        self._moved.pop(who, None)
        if self._journal is None or not who.is_stored:
            return
        offsets: list[tuple[int, int]] = []
        for cursor in who.cursors:
            position = cursor.position
            if position != cursor.recorded:
                cursor.recorded = position
                offsets.append((cursor.partition, position))
        if offsets:
            self._journal.on_cursor(who.owner, who.stream.name, who.stream.epoch, offsets)

    def drop(self, who: Positioned) -> None:
        """Stop recording its positions."""
        self._moved.pop(who, None)

    def forget(self, owner: str, stream: str) -> None:
        """Remove the positions that the store has under this name."""
        if self._journal is not None:
            self._journal.on_cursors_gone(owner, stream)


class ReplayContext:
    """Shared by all subscriptions and groups of a broker."""

    def __init__(
        self,
        host: ReplayHost,
        read: Read,
        clock: Callable[[], float],
        *,
        limits: ReplayLimits,
        skips_damage: Callable[[str], bool],
        dead_letters: DeadLetterSink | None,
    ) -> None:
        self._host = host
        self._clock = clock
        self._skips_damage = skips_damage
        self.reads = ReadQueue(read)
        self.timers = host.timers
        self.write_out = host.write_out
        self.on_bug = host.on_bug
        self.redeliveries_max = limits.redeliveries_max
        self.dead_letters = dead_letters
        self.positions = Positions(host.journal, host.timers, clock)
        self.read_ahead = ReadAheadBudget(limits.buffered_bytes_max, limits.files_max)
        self.sources = LiveSources(lambda: int(clock() * 1e6))
        self.counters = ReplayCounters()
        self._unread_bytes_max = min(UNREAD_BYTES_MAX, host.outbox_bytes_max // 2)

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def unread_bytes_max(self) -> int:
        """The bytes that may wait for a client before nothing more is sent to it."""
        return 1 if self._host.is_pressed() else self._unread_bytes_max

    def log(self, line: str) -> None:
        self._host.log(f"replay: {line}")

    def page_reader(self, stream: Stream, partition: int) -> PageReader:
        name = stream.name
        return PageReader(self.sources, stream, partition, lambda: self._skips_damage(name))

    def tell(
        self, session: Session, stream: str, options: DeliveryOptions, error: Exception, now: float
    ) -> None:
        """Log an error, and send it to the client as a notice."""
        self.log(f"{session.client_id}: {error}")
        send_notice(session, stream, options, error, now)
