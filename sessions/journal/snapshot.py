"""The state that a store gives to a broker at its start, without queued messages.

Large parts are iterators over the database: take each once, in any order, before the store is
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
    # Packet ids by sid: released ones, in the order of their PUBREC, and received ones. A damaged
    # table may have other types, so compiled code must not expect ints.
    releases: Iterable[tuple[int, list[Any]]]
    received: Iterable[tuple[int, list[Any]]]
    backlogs: Iterable[BacklogRow]  # queued messages, by sid
    retained: Iterable[MessageRow]
    streams: list[StreamRow]  # by name
    cursors: list[CursorRow]  # by stream, owner and partition
    stream_ends: dict[str, str]  # of the telemetry log, by name, as the participant wrote them
    last_number: int  # the number of the last group
    last_mid: int
    last_sid: int
    alive_at: float  # the broker's last heartbeat; 0: none
    healed: dict[str, int] = field(default_factory=dict)  # repairs; complete once all is read
    altered: list[str] = field(default_factory=list)  # names of messages and wills left out
    # Messages of shared subscriptions that are queued in sessions: in no backlog, on no page.
    shared: Iterable[tuple[DeliveryRow, MessageRow]] = ()
    has_lost_ends: bool = False  # the ends of the telemetry log are only in its own files
