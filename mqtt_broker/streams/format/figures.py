"""Numbers about clients and groups that read streams, for `$SYS` and HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Counts of what MQTT clients read from streams."""

    readers: int = 0  # subscriptions to streams, of clients that are connected or not
    messages: int = 0  # sent
    gaps: int = 0  # offsets that were gone before they were read
    redelivered: int = 0
    dead: int = 0  # given up after too many failed deliveries
    groups: int = 0


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A consumer group on a stream."""

    name: str
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)  # online, id: partitions
    committed: Sequence[int] = ()  # a partition each: the next offset; empty: not known yet
    lag: Sequence[int] = ()  # a partition each: records behind that offset
    stream: str = ""
