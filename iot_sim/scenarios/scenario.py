"""A scenario: what a run does, read from TOML and checked before anything is sent.

The file has these parts, and `scenario_file` reads them:

    name, summary, duration_s, seed, start, speed, drain_s, connect_rate_per_s
    [[fleets]]     devices of one model: how many, how often, where to, and the load over time
    [[faults]]     what breaks on purpose
    [[commands]]   what devices are told, and how long an answer may take
    [observers]    the simulator's own subscribers
    [limits]       what makes the verdict: see `verdict.LIMITS`
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
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
    """A scenario cannot be run as it is; one line with the key and what would be right."""


RATE_MAX: Final = 30_000.0  # messages a second that one process can send; measured 25,000
VERSIONS: Final = {"5": V5, "3.1.1": V311}
# A ratio that spreads the device numbers evenly over 0..1, whatever their count.
_GOLDEN: Final = 0.618033988749895


@dataclass(frozen=True, slots=True)
class Qos:
    """The shares of a fleet that publish at each QoS."""

    shares: tuple[float, float, float]

    def of(self, number: int) -> int:
        place = (number * _GOLDEN + 0.5) % 1.0 * sum(self.shares)
        if place < self.shares[0]:
            return 0
        return 1 if place < self.shares[0] + self.shares[1] else 2


@dataclass(frozen=True)
class Fleet:
    """Devices of one model that are alike but for their seeds."""

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

    def _filled(self, template: str, number: int, client_id: str) -> str:
        return template.format(
            fleet=self.name, number=number, client_id=client_id, model=self.model
        )

    def spec(self, number: int, seed: int, started_at: float) -> Spec:
        """Return the specification of device `number` of this fleet."""
        client_id = self._filled(self.client_id, number, "")
        return Spec(
            self.name,
            number,
            client_id,
            self._filled(self.topic, number, client_id),
            zlib.crc32(f"{seed}/{self.name}/{number}".encode()) << 32 | seed & 0xFFFF_FFFF,
            self.interval_s,
            self.qos.of(number),
            self.payload,
            started_at,
            self.options,
        )

    def factor(self, drives: str, t: float) -> float:
        """Return the factor of the load shapes at `t`; several of one kind multiply."""
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
        """Messages of telemetry a simulated second, all devices together, at the factor 1."""
        return self.count * self.info.per_interval(self.options) / self.interval_s

    def filters(self) -> list[str]:
        """Return the fewest filters that match all that its devices publish."""
        published = [self.info.published(self.spec(n, 0, 0.0)) for n in range(self.count)]
        found: list[str] = []
        for filters in published:
            for text in filters:
                if any(covers(one, text) for one in found):
                    continue
                alike = [text, *(one for one in found if _same_form(one, text))]
                found = [one for one in found if one not in alike]
                found.append(_generalised(alike))
        return disjoint(found)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that some devices of a fleet are sent repeatedly."""

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
        """Return the command's times as a fault, from which `faults.plan` draws devices."""
        drawn = Fault("command", self.fleet, self.share, self.at_s, self.every_s, self.spread_s)
        return drawn.scaled(factor)


@dataclass(frozen=True, slots=True)
class Observers:
    """The simulator's own subscribers."""

    connections: int = 1
    shared: str = ""  # the name of the shared subscription; empty: each has filters of its own
    session_expiry_s: int = 3600
    receive_maximum: int = 65_535
    version: int = V5

    @property
    def judges_order(self) -> bool:
        """The members of a shared subscription see parts of a flow each."""
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
    _extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device_count(self) -> int:
        return sum(fleet.count for fleet in self.fleets)

    @cached_property
    def rate_per_s(self) -> float:
        """The highest rate of telemetry the fleets may come to."""
        return self.speed * sum(
            fleet.rate_per_s * fleet.highest("rate") * min(1.0, fleet.highest("devices"))
            for fleet in self.fleets
        )

    def resized(self, devices: int | None, duration_s: float | None) -> Scenario:
        """Return the scenario with another number of devices, or another duration."""
        found = self
        if devices is not None:
            if devices < len(self.fleets):
                raise ScenarioError(
                    f"--devices: {self.name} has {len(self.fleets)} fleets, so it is"
                    f" {len(self.fleets)} or more, not {devices}"
                )
            share = devices / self.device_count
            found = replace(
                found,
                fleets=tuple(
                    replace(fleet, count=max(1, round(fleet.count * share)))
                    for fleet in self.fleets
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


def check_rate(scenario: Scenario, workers: int | None) -> None:
    """Check that so many processes can send what the fleets publish (None: any number)."""
    able = RATE_MAX * (64 if workers is None else workers)
    if scenario.rate_per_s > able:
        worst = max(scenario.fleets, key=lambda fleet: fleet.rate_per_s * fleet.highest("rate"))
        needed = worst.interval_s * scenario.rate_per_s / able
        ways = f"interval_s of {needed:.3g} or more"
        if workers is not None:
            ways += f", or --workers {-int(-scenario.rate_per_s // RATE_MAX)}"
        raise ScenarioError(
            f"fleets.{worst.name}.interval_s: the fleets would send {scenario.rate_per_s:,.0f}"
            f" messages a second, and {workers or 64} processes can send {able:,.0f}: {ways}"
        )


# The filters of many devices as one.


def _same_form(one: str, other: str) -> bool:
    """Tell whether topics have equally many levels, so that one filter can match both."""
    return one.count("/") == other.count("/") and one.endswith("#") == other.endswith("#")


def _generalised(filters: list[str]) -> str:
    levels = [set(level) for level in zip(*(text.split("/") for text in filters), strict=True)]
    return "/".join(level.pop() if len(level) == 1 else "+" for level in levels)
