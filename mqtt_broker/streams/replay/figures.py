"""What is known of readers and groups at one moment, for those who look at the broker."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    readers: int  # subscriptions to streams, of clients that are here or away
    groups: int
    messages: int  # sent
    gaps: int  # offsets that were gone before they were read
    redelivered: int
    dead: int
    buffered_bytes: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    name: str
    stream: str
    members: dict[str, list[int]] = field(default_factory=dict)  # online, client id: partitions
    committed: tuple[int, ...] = ()  # a partition each; empty: its beginning is being looked for
    lag: tuple[int, ...] = ()
