"""Load over time: pure functions from the seconds into the run to a factor.

A shape drives `devices` (the share of a fleet that is connected) or `rate` (how many times as
often each device reports). The factor 1 is the fleet's configured `count` and `interval_s`.

    steady    always 1
    ramp      from `low` to `high` between `start_s` and `end_s`
    spike     `low`, and `high` for `for_s` seconds at `start_s`, again every `every_s`
    diurnal   a wave between `low` and `high` with the period `period_s`, highest at `peak_s`
    steps     from `low` to `high` in `steps` equal steps between `start_s` and `end_s`
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

KINDS: Final = {
    "steady": (),
    "ramp": ("low", "high", "start_s", "end_s"),
    "spike": ("low", "high", "start_s", "for_s", "every_s"),
    "diurnal": ("low", "high", "period_s", "peak_s"),
    "steps": ("low", "high", "start_s", "end_s", "steps"),
}
DRIVES: Final = ("rate", "devices")


@dataclass(frozen=True, slots=True)
class LoadShape:
    kind: str = "steady"
    drives: str = "rate"
    low: float = 0.0
    high: float = 1.0
    start_s: float = 0.0
    end_s: float = 0.0
    for_s: float = 0.0
    every_s: float = 0.0
    period_s: float = 0.0
    peak_s: float = 0.0
    steps: int = 1

    def at(self, t: float) -> float:
        """Return the factor `t` seconds into the run."""
        if self.kind == "steady":
            return 1.0
        span = self.high - self.low
        if self.kind == "diurnal":
            turn = 2 * math.pi * (t - self.peak_s) / self.period_s
            return self.low + span * (1 + math.cos(turn)) / 2
        if self.kind == "spike":
            since = t - self.start_s
            if since >= 0 and self.every_s:
                since %= self.every_s
            return self.high if 0 <= since < self.for_s else self.low
        done = (t - self.start_s) / (self.end_s - self.start_s)
        done = min(1.0, max(0.0, done))
        if self.kind == "steps":
            done = min(1.0, (math.floor(done * self.steps) + 1) / self.steps if done > 0 else 0.0)
        return self.low + span * done

    @property
    def highest(self) -> float:
        return 1.0 if self.kind == "steady" else max(self.low, self.high)

    def scaled(self, factor: float) -> LoadShape:
        """Return the shape for a run that takes `factor` times as long."""
        return LoadShape(
            self.kind,
            self.drives,
            self.low,
            self.high,
            self.start_s * factor,
            self.end_s * factor,
            self.for_s * factor,
            self.every_s * factor,
            self.period_s * factor,
            self.peak_s * factor,
            self.steps,
        )
