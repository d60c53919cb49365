"""What a store gives a broker that starts: all of its state but the messages that wait.

Everything that is many comes as an iterable that reads as it goes: take each once, in any
order, before the store is started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sessions.journal.rows import (
    BacklogRow,
    CursorRow,
    DeliveryRow,
    MessageRow,
    SessionRow,
    ShareRow,
    StreamRow,
    SubscriptionRow,
)


@dataclass(slots=True)
class Snapshot:
    sessions: Iterable[SessionRow]
    subscriptions: Iterable[SubscriptionRow]
    shares: Iterable[ShareRow]
    windows: Iterable[tuple[DeliveryRow, MessageRow]]  # under way, by sid and n
    releases: Iterable[tuple[int, list[int]]]  # sid, packet ids in the order of their PUBREC
    received: Iterable[tuple[int, list[int]]]  # sid, inbound packet ids
    backlogs: Iterable[BacklogRow]  # what waits, by sid
    retained: Iterable[MessageRow]
    streams: list[StreamRow]  # by name
    cursors: list[CursorRow]  # by stream, owner and partition
    stream_ends: dict[str, str]  # of the telemetry log: name, and the ends as they were given
    last_number: int  # of the groups
    last_mid: int
    last_sid: int
    alive_at: float  # when the broker last showed a sign of life, here or elsewhere; 0: never
    healed: dict[str, int] = field(default_factory=dict)  # what could not be, until all is read
    # What waits in sessions and came from shared subscriptions; it is in no backlog and no page.
    shared: Iterable[tuple[DeliveryRow, MessageRow]] = ()
    has_lost_ends: bool = False  # of the telemetry log: what it has itself is all there is to know
