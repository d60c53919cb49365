"""The interface between the HTTP server and the broker.

Every method may be called from any thread and returns a `concurrent.futures.Future`, so that the
broker chooses in which thread and when it answers. The future raises a StreamError when a request
fails, and NotSupported when this broker does not offer it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from mqtt_broker.security.protection.bans import Ban
from mqtt_broker.streams.format.figures import GroupFigures, ReplayFigures
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings

T = TypeVar("T")


class NotSupported(Exception):
    """The broker does not offer the requested operation; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Counters of the store."""

    state: str = ""  # what is wrong; empty if nothing is
    records: int = 0
    commits: int = 0
    folded: int = 0
    cancelled: int = 0  # delivered to all receivers before they were written
    refused: int = 0  # messages that could not be stored
    healed: int = 0  # contradictions in the store that were put right
    lag: int = 0  # groups that are committed and not yet in the tables


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """A stream: its settings and numbers."""

    settings: StreamSettings
    starts: Sequence[int]  # one for each partition
    ends: Sequence[int]
    bytes: int = 0
    segments: int = 0
    appended: int = 0  # messages since the start of the broker
    refused: int = 0  # of them, because too many waited
    partition_failures: int = 0  # that the partition function did not assign
    groups: Sequence[GroupFigures] = ()


@dataclass(frozen=True, slots=True)
class HistogramFigures:
    """A histogram: upper bounds with the number of values up to each, and the sum of all values."""

    buckets: Sequence[tuple[float, int]]  # not cumulative; the last bound is infinite
    total: float


@dataclass(frozen=True, slots=True)
class BanFigures:
    """A ban in force."""

    kind: str  # client, user or address
    value: str
    until: float = 0.0  # Unix time; 0: until it is lifted
    why: str = ""
    made_by: str = "hand"  # or flapping
    username: str | None = None  # for flapping: the user name that the client proved,
    address: str = ""  # or its address if it proved none


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The broker at one moment. Counters are since its start, times are Unix time in seconds."""

    version: str
    build: str  # compiled or interpreted
    started_at: float
    is_stopping: bool = False
    clients: int = 0  # connected
    clients_maximum: int = 0
    clients_expired: int = 0
    sessions: int = 0  # of connected and absent clients
    sockets: int = 0  # open
    sockets_accepted: int = 0
    connects: int = 0
    packets_received: Mapping[str, int] = field(default_factory=dict)  # by packet
    packets_sent: Mapping[str, int] = field(default_factory=dict)
    bytes_received: int = 0
    bytes_sent: int = 0
    publish_bytes_received: int = 0
    publish_bytes_sent: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # messages, by reason
    refused: Mapping[str, int] = field(default_factory=dict)  # by `what/reason`
    accept_pauses: int = 0  # times a listener waited for descriptors
    throttled: int = 0  # times a client exceeded its rate limit
    unread_bytes: int = 0  # sent to clients and not read by them yet
    sessions_bytes: int = 0  # of the names and wills of sessions
    aliases_bytes: int = 0  # of Topic Aliases of connected clients
    incomplete_bytes: int = 0  # of packets that clients have sent in part
    inflight_bytes: int = 0  # of messages that clients have not acknowledged
    held: Mapping[str, int] = field(default_factory=dict)  # clients not read from now, by reason
    access: Mapping[str, int] = field(default_factory=dict)  # of the security service
    subscriptions: int = 0
    subscriptions_bytes: int = 0
    shared_subscriptions: int = 0
    retained_messages: int = 0
    retained_bytes: int = 0
    queued_messages: int = 0
    queued_bytes: int = 0
    resident_bytes: int = 0
    memory_limit_bytes: int = 0  # sum of the limits of what is kept in memory
    disk_free_bytes: int = -1  # of the data directory's file system; -1: there is none
    disk_size_bytes: int = -1
    oldest_unfolded_s: float = 0.0  # age of the oldest group that the tables do not have
    certificate_ends: Mapping[str, float] = field(default_factory=dict)  # by listener, Unix time
    log_lines_left_out: Mapping[str, int] = field(default_factory=dict)  # by kind
    events_lost: int = 0  # events of clients that could not be written
    histograms: Mapping[str, HistogramFigures] = field(default_factory=dict)
    store: StoreFigures | None = None  # None: this broker keeps everything in memory
    replay: ReplayFigures | None = None
    streams: Sequence[StreamFigures] = ()


@dataclass(frozen=True, slots=True)
class WatchFigures:
    """Findings of the watchdog, whether the broker's loop answers or not."""

    unanswered_s: float = 0.0  # how long the oldest acknowledgement has waited for the store
    loop_late_s: float = 0.0
    why: Sequence[str] = ()  # a sentence for each thing that is wrong
    is_loop_late: bool = False  # over its limit: requests to the loop would get no answer
    needs_restart: bool = False  # nothing else helps


class Part(Generic[T]):
    """The key of a part of the interface, which a module declares for its own resources."""

    def __init__(self, name: str) -> None:
        self.name = name


class BrokerInterface(Protocol):
    """The operations of the broker that the HTTP server uses."""

    def part(self, key: Part[T]) -> T:
        """Return a part of the interface; NotSupported: this broker has none."""
        ...

    def watch(self) -> WatchFigures | None:
        """Return the watchdog's findings at once; None: this broker has no watchdog."""
        ...

    def is_stopping(self) -> bool:
        """Tell at once whether the broker is stopping."""
        ...

    def audit(self, event: str, **facts: object) -> None:
        """Write an event of the API to the audit log."""
        ...

    def snapshot(self) -> Future[Snapshot]:
        """Take a snapshot."""
        ...

    def stream_create(self, settings: StreamSettings) -> Future[None]: ...

    def stream_change(self, name: str, changes: Mapping[str, Any]) -> Future[None]: ...

    def stream_delete(self, name: str) -> Future[None]: ...

    def stream_truncate(self, name: str, before: Offsets | None) -> Future[int]:
        """Remove whole segments before these offsets, or all; return how many were removed."""
        ...

    def groups(self, stream: str) -> Future[list[GroupFigures]]: ...

    def group_reset(self, name: str, stream: str, offsets: Offsets) -> Future[None]: ...

    def group_delete(self, name: str, stream: str) -> Future[None]: ...

    def bans(self) -> Future[list[BanFigures]]: ...

    def ban_add(self, ban: Ban) -> Future[None]:
        """Add a ban; it is in force when the future is done, and after a restart."""
        ...

    def ban_lift(self, kind: str, value: str) -> Future[bool]:
        """Lift a ban; False when there is none."""
        ...
