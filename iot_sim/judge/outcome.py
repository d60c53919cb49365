"""The outcome of a run: the counts of one process, or their sum over several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import EXAMPLES_MAX, Tally, WillCounts, merge_tallies

ERRORS_MAX: Final = 50  # error texts that are kept; the counters have all


@dataclass(slots=True)
class CommandCounts:
    sent: int = 0
    answered: int = 0
    refused: int = 0  # answered with `ok` = false
    unanswered: int = 0
    unsent: int = 0  # the device could not receive commands
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
    connected: int = 0  # devices, without observers
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


# The description of each counter; a report shows them all.
COUNTERS: Final = {
    "connects": "connections accepted by the broker",
    "connect_failures": "connections that failed or were refused",
    "reconnects": "connections of a client after its first",
    "resumed": "sessions that the broker still had when their client reconnected",
    "sessions_lost": "sessions that the broker should still have had",
    "sessions_strange": "sessions that the broker resumed in spite of a clean start",
    "takeovers": "take-overs: a second connection with the same client id",
    "takeovers_unanswered": "take-overs after which the broker kept the old connection open",
    "link_losses": "connections broken by a fault",
    "half_opens": "connections made half-open by a fault",
    "stalls": "connections stalled by a fault",
    "slow_readers": "connections slowed down by a fault",
    "kills": "devices killed by a fault",
    "dropped": "connections that the broker ended without an injected fault",
    "keep_alive_timeouts": "connections without PINGRESP in time",
    "protocol_errors": "packets of the broker that violate the protocol",
    "backlog_dropped": "messages dropped because acknowledgements were slow",
    "too_large": "messages larger than the broker's Maximum Packet Size",
    "unsubscribed": "subscriptions refused by the broker",
    "subscribed": "subscriptions granted by the broker",
    "goodbyes": "connections ended by DISCONNECT",
    "retained_left": "retained messages that could not be cleared at the end",
    "device_errors": "exceptions of device models; each stops its device",
}


@dataclass(slots=True)
class Outcome:
    """The counts of a run, for the verdict and the reports."""

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
    devices: int = 0  # those that this share of the scenario has
    observers: int = 0  # the simulator's own connections, those of commanders among them
    is_drained: bool = True
    was_interrupted: bool = False
    began_at: float = 0.0  # when the devices began, in seconds since 1970
    elapsed_s: float = 0.0
    drain_s: float = 0.0
    cpu_s: float = 0.0
    # Added by the parent process.
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
        self.devices += other.devices
        self.observers += other.observers
        self.began_at = min(self.began_at, other.began_at)
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

    def latency_from_due(self) -> Histogram:
        found = Histogram()
        for tally in self.tallies:
            found.add(tally.latency_from_due)
        return found

    def ack_latency_from_due(self) -> Histogram:
        found = Histogram()
        for tally in self.tallies:
            found.add(tally.ack_latency_from_due)
        return found

    def ack_latency(self) -> Histogram:
        found = Histogram()
        for tally in self.tallies:
            found.add(tally.ack_latency)
        return found
