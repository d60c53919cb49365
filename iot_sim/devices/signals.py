"""Measured signals: daily patterns, drift, noise, and defects of sensors.

Every signal depends on the seeded `Random` of its device and on simulated time only, so a device
measures the same whatever the network does. Noise is the sum of three draws of `random()`: close
enough to a normal distribution for sensors, bounded, and three times faster than `gauss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Final

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
_DAY_TURN: Final = math.tau / DAY_S


def bell_curve(draw: Callable[[], float]) -> float:
    """Draw from a bell curve with mean 0, standard deviation 1 and limits -3 and 3."""
    return (draw() + draw() + draw() - 1.5) * 2.0


def random_wait(draw: Callable[[], float], per_day: float) -> float:
    """Draw the seconds to the next random event, of which there are `per_day` on average."""
    return -math.log(1.0 - draw()) * DAY_S / per_day if per_day > 0.0 else math.inf


def hour_of(t: float, utc_offset_h: float = 0.0) -> float:
    """Return the hour of the local day, 0 to 24."""
    return (t + utc_offset_h * HOUR_S) % DAY_S / HOUR_S


class Signal:
    """A mean with a daily wave, a slow drift, a mean-reverting random walk, and noise."""

    __slots__ = (
        "_daily",
        "_decay",
        "_drift",
        "_gap",
        "_high",
        "_innovation",
        "_last",
        "_low",
        "_noise",
        "_peak",
        "_random",
        "_start",
        "_wander",
        "_wander_s",
        "_wander_value",
        "mean",
    )  # fmt: skip

    def __init__(
        self,
        rng: Random,
        mean: float,
        start: float,
        *,
        daily: float = 0.0,  # amplitude
        peak_s: float = 15 * HOUR_S,  # second of the day, UTC, at which it is highest
        drift_per_day: float = 0.0,
        noise: float = 0.0,  # standard deviation of the uncorrelated noise
        wander: float = 0.0,  # standard deviation of the random walk
        wander_s: float = HOUR_S,  # correlation time of the random walk
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        self.mean = mean
        self._random = rng.random
        self._start = self._last = start
        self._daily = daily
        self._peak = peak_s
        self._drift = drift_per_day / DAY_S
        self._noise = noise
        self._wander = wander
        self._wander_s = wander_s
        self._wander_value = wander * bell_curve(self._random) if wander else 0.0
        self._gap = -1.0  # the time between samples for which `_decay` and `_innovation` hold
        self._decay = self._innovation = 0.0
        self._low = low
        self._high = high

    def at(self, t: float, shift: float = 0.0) -> float:
        """Return the value at `t` plus `shift`. `t` never runs backwards."""
        value = self.mean + shift + self._drift * (t - self._start)
        if self._daily:
            value += self._daily * math.cos((t - self._peak) * _DAY_TURN)
        draw = self._random
        if self._wander:
            gap = t - self._last
            self._last = t
            if gap != self._gap:
                self._gap = gap
                self._decay = math.exp(-gap / self._wander_s)
                self._innovation = self._wander * math.sqrt(1.0 - self._decay * self._decay)
            self._wander_value = moved = self._wander_value * self._decay + self._innovation * (
                (draw() + draw() + draw() - 1.5) * 2.0
            )
            value += moved
        if self._noise:
            value += self._noise * (draw() + draw() + draw() - 1.5) * 2.0
        if value < self._low:
            return self._low
        if value > self._high:
            return self._high
        return value


class Defects:
    """Defects of a sensor: a stuck value, an outlier or a gap, one at a time.

    Call `apply` only when `t >= next_at`, so that most reports cost one comparison.
    """

    __slots__ = (
        "_draw", "_gaps", "_held", "_index", "_kind", "_lasts_s", "_outliers", "_stuck",
        "_until", "next_at",
    )  # fmt: skip

    def __init__(
        self,
        rng: Random,
        start: float,
        *,
        stuck_per_day: float = 0.0,
        outliers_per_day: float = 0.0,
        gaps_per_day: float = 0.0,
        lasts_s: float = 600.0,
    ) -> None:
        self._draw = rng.random
        self._stuck = stuck_per_day
        self._outliers = outliers_per_day
        self._gaps = gaps_per_day
        self._lasts_s = lasts_s
        self._kind = ""
        self._index = 0
        self._until = 0.0
        self._held: float | None = None
        self.next_at = self._draw_next(start)

    def _draw_next(self, t: float) -> float:
        total_per_day = self._stuck + self._outliers + self._gaps
        return t + random_wait(self._draw, total_per_day) if total_per_day else math.inf

    def apply(self, t: float, values: list[float | None]) -> None:
        """Change one of the values by the current defect."""
        if not self._kind:
            self._begin(t, values)
        elif t >= self._until:
            self._kind = ""
            self.next_at = self._draw_next(t)
            return
        if self._kind == "outlier":
            value = values[self._index]
            if value is not None:
                values[self._index] = value * (3.0 + 7.0 * self._draw())
            self._kind = ""
            self.next_at = self._draw_next(t)
        else:
            values[self._index] = self._held

    def _begin(self, t: float, values: list[float | None]) -> None:
        draw = self._draw
        self._index = int(draw() * len(values))
        which = draw() * (self._stuck + self._outliers + self._gaps)
        if which < self._outliers:
            self._kind = "outlier"
            return
        self._kind = "stuck"
        self._held = values[self._index] if which < self._outliers + self._stuck else None
        self._until = t + self._lasts_s * (0.5 + draw())


class Battery:
    """A cell that discharges: by its idle current, and by what is drawn in addition."""

    __slots__ = ("_capacity_mah", "_charge_mah", "_last", "_rest_ma")

    # Share of the charge, and the voltage of a lithium cell at it.
    _CURVE: Final = (
        (0.0, 2.5), (0.03, 2.9), (0.1, 3.25), (0.3, 3.45), (0.7, 3.55), (0.95, 3.62), (1.0, 3.65),
    )  # fmt: skip

    def __init__(self, capacity_mah: float, share: float, rest_ma: float, start: float) -> None:
        self._capacity_mah = capacity_mah
        self._charge_mah = capacity_mah * share
        self._rest_ma = rest_ma
        self._last = start

    @property
    def share(self) -> float:
        return self._charge_mah / self._capacity_mah

    @property
    def empty(self) -> bool:
        return self._charge_mah <= 0.0

    def draw(self, t: float, mah: float = 0.0) -> None:
        used = self._rest_ma * max(0.0, t - self._last) / HOUR_S + mah
        self._last = max(t, self._last)
        self._charge_mah = max(0.0, self._charge_mah - used)

    def voltage(self) -> float:
        share = self.share
        below = self._CURVE[0]
        for above in self._CURVE[1:]:
            if share <= above[0]:
                part = (share - below[0]) / (above[0] - below[0])
                return below[1] + part * (above[1] - below[1])
            below = above
        return below[1]


class Clock:
    """A device's own clock, with an error when it is set and a drift afterwards."""

    __slots__ = ("_ahead_s", "_rate", "_set_at")

    def __init__(self, start: float, ahead_s: float = 0.0, drift_ppm: float = 0.0) -> None:
        self._set_at = start
        self._ahead_s = ahead_s
        self._rate = drift_ppm * 1e-6

    def read_ms(self, t: float) -> int:
        """Return the milliseconds since 1970 by the device's clock."""
        return int((t + self._ahead_s + (t - self._set_at) * self._rate) * 1000.0)

    def set(self, t: float) -> None:
        """Set the clock, as from a time server: the error starts at zero again."""
        self._set_at = t
        self._ahead_s = 0.0
