"""The state that a store gives to a broker that starts, without the messages that wait.

Large parts are iterables that read as they go: take each once, in any order, before the store is
started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
    windows: Iterable[tuple[DeliveryRow, MessageRow]]  # in flight, by sid and n
    # Packet ids as the tables have them, by sid: those released, in the order of their PUBREC, and
    # those that came in. A damaged table may hold anything, so compiled code may not expect ints.
    releases: Iterable[tuple[int, list[Any]]]
    received: Iterable[tuple[int, list[Any]]]
    backlogs: Iterable[BacklogRow]  # what waits, by sid
    retained: Iterable[MessageRow]
    streams: list[StreamRow]  # by name
    cursors: list[CursorRow]  # by stream, owner and partition
    stream_ends: dict[str, str]  # of the telemetry log, by name, as the participant gave them
    last_number: int  # of the groups
    last_mid: int
    last_sid: int
    alive_at: float  # the broker's last sign of life, here or elsewhere; 0: none
    healed: dict[str, int] = field(default_factory=dict)  # repairs, complete once all is read
    # Messages that wait in sessions and came from shared subscriptions: in no backlog, on no page.
    shared: Iterable[tuple[DeliveryRow, MessageRow]] = ()
    has_lost_ends: bool = False  # of the telemetry log: only its own files tell how far it goes
