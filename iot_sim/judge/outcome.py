"""The outcome of a run as data: the counts of one process, and their sum over several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import EXAMPLES_MAX, Tally, WillCounts, merge_tallies

ERRORS_MAX: Final = 50  # texts that are kept; the counters go on


@dataclass(slots=True)
class CommandCounts:
    sent: int = 0
    answered: int = 0
    refused: int = 0  # answered with a no
    unanswered: int = 0
    unsent: int = 0  # the device was away on purpose
    latency: Histogram = field(default_factory=Histogram)

    def add(self, other: CommandCounts) -> None:
        for name in ("sent", "answered", "refused", "unanswered", "unsent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latency.add(other.latency)

    def to_data(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "answered": self.answered,
            "refused": self.refused,
            "unanswered": self.unanswered,
            "unsent": self.unsent,
            "round_trip": self.latency.to_data(),
        }


@dataclass(slots=True)
class Sample:
    """The counts of one second of a run."""

    second: int
    sent: int = 0
    acknowledged: int = 0
    delivered: int = 0
    connected: int = 0
    wanted: int = 0
    faulty: int = 0  # devices under an injected fault
    errors: int = 0
    latency: Histogram = field(default_factory=Histogram)
    broker_cpu: float | None = None  # cores
    broker_rss_bytes: int | None = None

    def add(self, other: Sample) -> None:
        for name in ("sent", "acknowledged", "delivered", "connected", "wanted", "faulty",
                     "errors"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latency.add(other.latency)

    def to_data(self) -> dict[str, Any]:
        return {
            "second": self.second,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "delivered": self.delivered,
            "connected": self.connected,
            "wanted": self.wanted,
            "faulty": self.faulty,
            "errors": self.errors,
            "p50_ms": self.latency.percentile(50) / 1000,
            "p99_ms": self.latency.percentile(99) / 1000,
            "broker_cpu": self.broker_cpu,
            "broker_rss_bytes": self.broker_rss_bytes,
        }


# Counters by name, with what they mean; a report shows all of them.
COUNTERS: Final = {
    "connects": "connections the broker accepted",
    "connect_failures": "connections that failed or were refused",
    "reconnects": "connections after the first of their client",
    "resumed": "sessions that were there when their client came back",
    "sessions_lost": "sessions that should have been there and were not",
    "sessions_strange": "sessions that were there although a clean start was asked for",
    "takeovers": "connections that a twin took over",
    "takeovers_unanswered": "taken over, and the broker left the old connection open",
    "link_losses": "connections broken on purpose",
    "half_opens": "connections cut without telling anybody",
    "stalls": "connections held up",
    "slow_readers": "connections slowed down",
    "kills": "devices killed",
    "dropped": "connections the broker ended without a fault of ours",
    "keep_alive_timeouts": "connections given up because PINGRESP did not come",
    "protocol_errors": "packets that break the protocol",
    "backlog_dropped": "messages given up by a client that waited too long for acknowledgements",
    "too_large": "messages beyond the broker's Maximum Packet Size",
    "unsubscribed": "subscriptions the broker refused",
    "subscribed": "subscriptions the broker granted",
    "goodbyes": "connections ended in order",
    "device_errors": "mistakes of device models, which cost the device its run",
}


@dataclass(slots=True)
class Outcome:
    """The counts from which the verdict and the reports are made."""

    tallies: list[Tally] = field(default_factory=list)
    wills: WillCounts = field(default_factory=WillCounts)
    commands: CommandCounts = field(default_factory=CommandCounts)
    counters: Counter[str] = field(default_factory=Counter)
    connect_latency: Histogram = field(default_factory=Histogram)
    schedule_lag: Histogram = field(default_factory=Histogram)
    examples: dict[str, list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    unknown: int = 0
    retained: int = 0
    unstamped: int = 0
    flows: int = 0
    is_drained: bool = True
    was_interrupted: bool = False
    elapsed_s: float = 0.0
    drain_s: float = 0.0
    cpu_s: float = 0.0
    # What the parent of all processes adds.
    series: list[Sample] = field(default_factory=list)
    broker_cpu_cores: float | None = None
    broker_rss_bytes_max: int | None = None
    broker_version: str = ""

    def add(self, other: Outcome) -> None:
        self.tallies = merge_tallies((self.tallies, other.tallies))
        self.wills.add(other.wills)
        self.commands.add(other.commands)
        self.counters.update(other.counters)
        self.connect_latency.add(other.connect_latency)
        self.schedule_lag.add(other.schedule_lag)
        for what, texts in other.examples.items():
            kept = self.examples.setdefault(what, [])
            kept += texts[: EXAMPLES_MAX - len(kept)]
        self.errors += other.errors[: ERRORS_MAX - len(self.errors)]
        self.unknown += other.unknown
        self.retained += other.retained
        self.unstamped += other.unstamped
        self.flows += other.flows
        self.is_drained = self.is_drained and other.is_drained
        self.was_interrupted = self.was_interrupted or other.was_interrupted
        self.elapsed_s = max(self.elapsed_s, other.elapsed_s)
        self.drain_s = max(self.drain_s, other.drain_s)
        self.cpu_s += other.cpu_s

    def total(self, name: str, qos: tuple[int, ...] = (0, 1, 2)) -> int:
        return sum(getattr(tally, name) for tally in self.tallies if tally.qos in qos)

    def latency(self) -> Histogram:
        found = Histogram()
        for tally in self.tallies:
            found.add(tally.latency)
        return found

    def ack_latency(self) -> Histogram:
        found = Histogram()
        for tally in self.tallies:
            found.add(tally.ack_latency)
        return found
