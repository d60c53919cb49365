"""A scenario: what happens in a run. It is read from TOML and checked before anything is sent.

The file has these parts, which `file` reads:

    name, summary, duration_s, seed, start, speed, drain_s, connect_rate_per_s,
    keep_retained
    [[fleets]]     devices of one model: their number, interval, topics, and load over time
    [[faults]]     injected faults
    [[commands]]   commands to devices
    [observers]    the simulator's own subscribers
    [limits]       limits of the verdict: see `verdict.LIMITS`
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from iot_sim.devices.device import Spec
from iot_sim.judge.filters import covers, disjoint
from iot_sim.models.catalogue import ModelInfo, find
from iot_sim.scenarios.faults import Fault
from iot_sim.scenarios.load_shapes import LoadShape
from mqtt_broker.codec.constants import V5, V311


class ScenarioError(Exception):
    """An invalid scenario; the text is one line with the key and what would be right."""


RATE_MAX: Final = 30_000.0  # messages a second; one process was measured to send 25,000
VERSIONS: Final = {"5": V5, "3.1.1": V311}
# Multiples of this ratio, modulo 1, spread any number of devices evenly over 0..1.
_GOLDEN_RATIO: Final = 0.618033988749895


@dataclass(frozen=True, slots=True)
class Qos:
    """The shares of a fleet that publish at each QoS."""

    shares: tuple[float, float, float]

    def of(self, number: int) -> int:
        place = (number * _GOLDEN_RATIO + 0.5) % 1.0 * sum(self.shares)
        if place < self.shares[0]:
            return 0
        return 1 if place < self.shares[0] + self.shares[1] else 2


@dataclass(frozen=True)
class Fleet:
    """Devices of one model that differ in their seeds only."""

    name: str
    model: str
    count: int
    interval_s: float
    topic: str
    client_id: str
    qos: Qos
    payload: str
    version: int
    options: Mapping[str, Any]
    keep_alive_s: int
    session_expiry_s: int
    topic_alias: bool
    backoff_min_s: float
    backoff_max_s: float
    jitter: float
    is_observed: bool
    load: tuple[LoadShape, ...]

    def _expand(self, template: str, number: int, client_id: str) -> str:
        return template.format(
            fleet=self.name, number=number, client_id=client_id, model=self.model
        )

    def spec(self, number: int, seed: int, started_at: float) -> Spec:
        """Return the specification of device `number` of this fleet."""
        client_id = self._expand(self.client_id, number, "")
        return Spec(
            self.name,
            number,
            client_id,
            self._expand(self.topic, number, client_id),
            zlib.crc32(f"{seed}/{self.name}/{number}".encode()) << 32 | seed & 0xFFFF_FFFF,
            self.interval_s,
            self.qos.of(number),
            self.payload,
            started_at,
            self.options,
        )

    def factor(self, drives: str, t: float) -> float:
        """Return the product of the load shapes that drive `drives`, at `t`."""
        found = 1.0
        for shape in self.load:
            if shape.drives == drives:
                found *= shape.at(t)
        return found

    def highest(self, drives: str) -> float:
        found = 1.0
        for shape in self.load:
            if shape.drives == drives:
                found *= shape.highest
        return found

    @property
    def info(self) -> ModelInfo:
        return find(self.model)

    @property
    def rate_per_s(self) -> float:
        """Telemetry messages of the whole fleet in a simulated second, at the factor 1."""
        return self.count * self.info.per_interval(self.options) / self.interval_s

    def filters(self) -> list[str]:
        """Return a few filters that match all the topics of the fleet's devices."""
        published = [self.info.published(self.spec(n, 0, 0.0)) for n in range(self.count)]
        found: list[str] = []
        for filters in published:
            for text in filters:
                if any(covers(one, text) for one in found):
                    continue
                alike = [text, *(one for one in found if _has_same_levels(one, text))]
                found = [one for one in found if one not in alike]
                found.append(_generalize(alike))
        return disjoint(found)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is sent to devices of a fleet, once or repeatedly."""

    fleet: str
    command: str
    arguments: Mapping[str, Any]
    at_s: float
    every_s: float
    share: float
    spread_s: float
    qos: int
    timeout_s: float

    def as_fault(self, factor: float = 1.0) -> Fault:
        """Return a fault with the command's times, for `faults.plan` to choose the devices."""
        drawn = Fault("command", self.fleet, self.share, self.at_s, self.every_s, self.spread_s)
        return drawn.scaled(factor)


@dataclass(frozen=True, slots=True)
class Observers:
    """The simulator's own subscribers."""

    connections: int = 1
    shared: str = ""  # share name; empty: each connection has filters of its own
    session_expiry_s: int = 3600
    receive_maximum: int = 65_535
    version: int = V5

    @property
    def judges_order(self) -> bool:
        """Tell whether order can be judged: a member of a shared subscription gets only a part."""
        return not self.shared or self.connections == 1


@dataclass(frozen=True)
class Scenario:
    name: str
    summary: str
    duration_s: float
    seed: int
    started_at: float
    speed: float
    drain_s: float
    connect_rate_per_s: float
    fleets: tuple[Fleet, ...]
    faults: tuple[Fault, ...]
    commands: tuple[Command, ...]
    observers: Observers
    limits: Mapping[str, float]
    late_after_ms: float
    source: str = ""
    keep_retained: bool = False
    _extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device_count(self) -> int:
        return sum(fleet.count for fleet in self.fleets)

    @cached_property
    def rate_per_s(self) -> float:
        """The highest rate of telemetry that the load shapes permit."""
        return self.speed * sum(
            fleet.rate_per_s * fleet.highest("rate") * min(1.0, fleet.highest("devices"))
            for fleet in self.fleets
        )

    def resized(self, devices: int | None, duration_s: float | None) -> Scenario:
        """Return the scenario scaled to another number of devices or another duration."""
        found = self
        if devices is not None:
            if devices < len(self.fleets):
                raise ScenarioError(
                    f"--devices must be at least {len(self.fleets)}, one for each fleet of"
                    f" {self.name}, not {devices}"
                )
            counts = _scaled_counts([fleet.count for fleet in self.fleets], devices)
            found = replace(
                found,
                fleets=tuple(
                    replace(fleet, count=count)
                    for fleet, count in zip(self.fleets, counts, strict=True)
                ),
            )
        if duration_s is not None:
            factor = duration_s / self.duration_s
            found = replace(
                found,
                duration_s=duration_s,
                fleets=tuple(
                    replace(fleet, load=tuple(shape.scaled(factor) for shape in fleet.load))
                    for fleet in found.fleets
                ),
                faults=tuple(fault.scaled(factor) for fault in self.faults),
                commands=tuple(
                    replace(
                        one,
                        at_s=one.at_s * factor,
                        every_s=one.every_s * factor,
                        spread_s=one.spread_s * factor,
                    )
                    for one in self.commands
                ),
            )
        check_rate(found, 1)
        return found


def _scaled_counts(counts: Sequence[int], total: int) -> list[int]:
    """Scale counts to a sum of exactly `total`; none becomes 0."""
    shares = [count * total / sum(counts) for count in counts]
    scaled = [max(1, int(share)) for share in shares]
    while (left := total - sum(scaled)) != 0:
        # The count that is furthest below its share takes one more; the furthest above gives one.
        errors = [share - count for share, count in zip(shares, scaled, strict=True)]
        if left > 0:
            scaled[errors.index(max(errors))] += 1
        else:
            largest = min((error, n) for n, error in enumerate(errors) if scaled[n] > 1)[1]
            scaled[largest] -= 1
    return scaled


def check_rate(scenario: Scenario, workers: int | None) -> None:
    """Check that `workers` processes (None: the most there can be) can send at the fleets' rate."""
    possible = RATE_MAX * (64 if workers is None else workers)
    if scenario.rate_per_s > possible:
        worst = max(scenario.fleets, key=lambda fleet: fleet.rate_per_s * fleet.highest("rate"))
        needed = worst.interval_s * scenario.rate_per_s / possible
        advice = f"set it to {needed:.3g} or more"
        if workers is not None:
            advice += f", or use --workers {-int(-scenario.rate_per_s // RATE_MAX)}"
        raise ScenarioError(
            f"fleets.{worst.name}.interval_s: the fleets would send {scenario.rate_per_s:,.0f}"
            f" messages a second, and {workers or 64} processes can send {possible:,.0f}: {advice}"
        )


# Generalize the filters of many devices.


def _has_same_levels(one: str, other: str) -> bool:
    """Tell whether filters have equally many levels, so that one with `+` can match both."""
    return one.count("/") == other.count("/") and one.endswith("#") == other.endswith("#")


def _generalize(filters: list[str]) -> str:
    levels = [set(level) for level in zip(*(text.split("/") for text in filters), strict=True)]
    return "/".join(level.pop() if len(level) == 1 else "+" for level in levels)
