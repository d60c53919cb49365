"""The pure state machine of `anomalies`: learn the usual values of one device.

It keeps an exponentially weighted mean and variance of the values of each metric, and of their rate
of change. A value too many deviations from the mean is an outlier, such a rate a jump. An unusual
value is clipped to the limit before it changes the mean, so that one spike has little effect and a
new level is learnt eventually.

An alert has a beginning and an end: a metric that stays unusual is one alert, not one a message.
The key of an alert is device, metric, kind and beginning, which depend only on the log.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from spark_ingest.analysis.keyed import Finding, Reading
from spark_ingest.analysis.silence import Silence

OUTLIER: Final = "outlier"
JUMP: Final = "jump"
SILENT: Final = "silent"
# The deviation is at least this share of the mean: a sensor with two digits has steps.
FLOOR: Final = 0.002
_TINY: Final = 1e-9
# The square of a larger value would overflow.
_HUGE: Final = 1e150


@dataclass(frozen=True, slots=True)
class AnomalyLimits:
    alpha: float = 0.05  # weight of a new value
    sigma: float = 6.0  # deviations that make an outlier
    jump: float = 8.0  # deviations of the rate that make a jump
    warm_up: int = 30  # number of values before any is unusual
    silence_us: int = 0  # a device is silent after this time without a message; 0: never


class Usual:
    """Mean and deviation of values, with exponentially decreasing weights."""

    __slots__ = ("count", "mean", "variance")

    def __init__(self, count: int = 0, mean: float = 0.0, variance: float = 0.0) -> None:
        self.count = count
        self.mean = mean
        self.variance = variance

    @property
    def deviation(self) -> float:
        return max(math.sqrt(self.variance), FLOOR * abs(self.mean), _TINY)

    def score(self, value: float) -> float:
        """Return the distance from the mean in standard deviations."""
        score = (value - self.mean) / self.deviation
        return min(max(score, -sys.float_info.max), sys.float_info.max)

    def learn(self, value: float, limits: AnomalyLimits, most_deviations: float) -> None:
        if self.count:
            if self.count >= limits.warm_up:  # before, too few values to tell what is unusual
                most = most_deviations * self.deviation
                value = min(max(value, self.mean - most), self.mean + most)
            weight = max(limits.alpha, 1.0 / (self.count + 1))  # a plain mean at first
            step = value - self.mean
            variance = (1.0 - weight) * (self.variance + weight * step * step)
            if not math.isfinite(variance):  # otherwise no value would be unusual any more
                return
            self.mean += weight * step
            self.variance = variance
        elif abs(value) < _HUGE:
            self.mean = value
        else:
            return
        self.count += 1


class _Metric:
    """A metric: its usual range, its last value, and its open alerts."""

    __slots__ = ("at_us", "last", "open", "rate", "value")

    def __init__(self) -> None:
        self.value = Usual()
        self.rate = Usual()
        self.at_us: int | None = None
        self.last = 0.0
        self.open: dict[str, int] = {}  # kind: when it began

    def state(self) -> list[Any]:
        value, rate = self.value, self.rate
        return [
            *(value.count, value.mean, value.variance, rate.count, rate.mean, rate.variance),
            *(self.at_us, self.last, self.open),
        ]

    @classmethod
    def of(cls, state: list[Any]) -> _Metric:
        one = cls()
        one.value, one.rate = Usual(*state[0:3]), Usual(*state[3:6])
        one.at_us, one.last, one.open = state[6:9]
        return one


class Statistics:
    """A `keyed.Machine`."""

    def __init__(self, device: str, limits: AnomalyLimits) -> None:
        self._device = device
        self._limits = limits
        self._metrics: dict[str, _Metric] = {}
        self._silence = Silence(limits.silence_us)

    def restore(self, state: Any) -> None:
        self._silence.heard_us, self._silence.is_told, metrics = state
        self._metrics = {name: _Metric.of(one) for name, one in metrics.items()}

    def state(self) -> Any:
        metrics = {name: one.state() for name, one in self._metrics.items()}
        return [self._silence.heard_us, self._silence.is_told, metrics]

    def read(self, reading: Reading) -> Iterator[Finding]:
        yield from self._heard(reading.received_us)
        if reading.is_rejected:
            return
        for name, value in reading.values.items():
            if math.isfinite(value):
                metric = self._metrics.setdefault(name, _Metric())
                yield from self._measure(name, metric, value, reading.at_us)

    def summary(self) -> Iterator[Finding]:
        return iter(())

    # Values.

    def _measure(self, name: str, metric: _Metric, value: float, at_us: int) -> Iterator[Finding]:
        limits = self._limits
        yield from self._judge(name, metric, OUTLIER, metric.value, value, value, at_us)
        metric.value.learn(value, limits, limits.sigma)
        if metric.at_us is not None:
            if at_us <= metric.at_us:  # it was delayed: its rate is unknown
                return
            rate = (value - metric.last) / ((at_us - metric.at_us) / 1e6)
            yield from self._judge(name, metric, JUMP, metric.rate, rate, value, at_us)
            metric.rate.learn(rate, limits, limits.jump)
        metric.at_us, metric.last = at_us, value

    def _judge(
        self,
        name: str,
        metric: _Metric,
        kind: str,
        usual: Usual,
        measured: float,
        value: float,
        at_us: int,
    ) -> Iterator[Finding]:
        limits = self._limits
        if usual.count < limits.warm_up:
            return
        score = usual.score(measured)
        is_unusual = abs(score) >= (limits.sigma if kind == OUTLIER else limits.jump)
        began_us = metric.open.get(kind)
        if is_unusual and began_us is None:
            metric.open[kind] = at_us
            yield self._alert(kind, name, at_us, value=value, usual=usual.mean, score=score)
        elif not is_unusual and began_us is not None:
            del metric.open[kind]
            yield self._alert(
                kind, name, began_us, ended_us=at_us, value=value, usual=usual.mean, score=score
            )

    # Silence.

    def _heard(self, at_us: int) -> Iterator[Finding]:
        began_us = self._silence.hear(at_us)
        if began_us is not None:
            yield self._alert(SILENT, "", began_us, ended_us=at_us)

    def silent_at_us(self) -> int | None:
        return self._silence.due_us()

    def on_silence(self) -> Iterator[Finding]:
        began_us = self._silence.tell()
        if began_us is not None:
            yield self._alert(SILENT, "", began_us)

    def _alert(
        self,
        kind: str,
        metric: str,
        began_us: int,
        *,
        ended_us: int | None = None,
        value: float | None = None,
        usual: float | None = None,
        score: float | None = None,
    ) -> Finding:
        return {
            "device": self._device,
            "metric": metric,
            "kind": kind,
            "began_us": began_us,
            "ended_us": ended_us,
            "value": value,
            "usual": usual,
            "score": score,
        }
