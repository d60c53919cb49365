"""Count what happened in a second, or in a whole run."""

from __future__ import annotations

from dataclasses import dataclass, field

from iot_sim.judge.histogram import Histogram


@dataclass(slots=True)
class Counts:
    """Events, and durations in microseconds. Those of processes and seconds add up."""

    connected: int = 0
    lost: int = 0  # connections that the broker ended
    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # by what went wrong
    connect: Histogram = field(default_factory=Histogram)  # TCP to CONNACK
    delivery: Histogram = field(default_factory=Histogram)  # due to arrival
    acknowledgement: Histogram = field(default_factory=Histogram)  # due to PUBACK or PUBREC

    def error(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    @property
    def error_count(self) -> int:
        return sum(self.errors.values())

    def add(self, other: Counts) -> None:
        self.connected += other.connected
        self.lost += other.lost
        self.sent += other.sent
        self.acknowledged += other.acknowledged
        self.received += other.received
        for what, count in other.errors.items():
            self.errors[what] = self.errors.get(what, 0) + count
        self.connect.add(other.connect)
        self.delivery.add(other.delivery)
        self.acknowledgement.add(other.acknowledgement)


@dataclass(slots=True)
class Sample:
    """A second of one process, and how many of its clients are connected at its end."""

    second: int
    online: int
    counts: Counts
    late_us: int = 0  # how late the generator itself was at most
