"""Interface to the numbers of a broker at a glance, and to their last hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from mqtt_broker.http_api.request.broker_interface import Part, Snapshot


@dataclass(frozen=True, slots=True)
class OverviewFigures:
    """A snapshot with what takes time to know."""

    at: float
    node: str
    durability: str
    snapshot: Snapshot
    rates: Mapping[str, float]  # a second, of the last five seconds
    loop_late_ms: float
    ack_latency_ms: Mapping[str, float | None]  # p50 and p99


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """Samples of the last hour, `step_s` apart; None: missing."""

    step_s: int
    start_at: float
    series: Mapping[str, Sequence[float | None]]


class Overview(Protocol):
    """Tells how a broker does."""

    def overview(self) -> Future[OverviewFigures]: ...

    def history(self, seconds: float) -> Future[HistoryFigures]: ...


OVERVIEW: Final = Part[Overview]("overview")
