"""An environmental sensor in a room: temperature, humidity, pressure, CO2, light.

Humidity falls as the temperature rises; CO2 and light follow the time of day. A set point moves
the temperature like a heating does, within about an hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import CommandResult, number
from iot_sim.devices.device_model import CommandHandler, DeviceModel, describe
from iot_sim.devices.model_info import FLOAT, Command, Option
from iot_sim.devices.signals import DAY_S, HOUR_S, Defects, Signal
from iot_sim.payloads.schema import DOUBLE, LONG, Field

_HEATING_S: Final = 1_200.0  # time constant of the way to a set point
_HUMIDITY_PER_DEGREE: Final = -1.8
_CO2_OUTSIDE: Final = 415.0


class Environment(DeviceModel):
    MODEL = "environment"
    FIELDS: ClassVar = (
        Field("temperature", DOUBLE, "°C", nullable=True),
        Field("humidity", DOUBLE, "%", nullable=True, digits=1),
        Field("pressure", DOUBLE, "hPa", nullable=True, digits=1),
        Field("co2", LONG, "ppm", nullable=True),
        Field("light", LONG, "lx", nullable=True),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        rng, start = self.rng, self.spec.started_at
        spread = rng.random()
        offset = options["utc_offset_h"] * HOUR_S
        self._midnight = -offset
        mean = options["temperature"] + 2.0 * spread - 1.0
        self._temperature = Signal(
            rng, mean, start, daily=2.5, peak_s=15.5 * HOUR_S - offset, wander=0.4,
            wander_s=1_800, noise=0.03, drift_per_day=options["drift_per_day"], low=-60, high=90,
        )  # fmt: skip
        self._humidity = Signal(
            rng, 45.0 + 8.0 * rng.random(), start, wander=3.0, wander_s=3 * HOUR_S,
            noise=0.2, low=2, high=100,
        )  # fmt: skip
        self._pressure = Signal(
            rng, 1_013.0, start, wander=7.0, wander_s=2 * DAY_S, noise=0.05, low=930, high=1_070
        )
        self._co2 = Signal(rng, 0.0, start, wander=60.0, wander_s=1_200, noise=4.0)
        self._crowd = 200.0 + 500.0 * rng.random()
        self._daylight = 150.0 + 400.0 * rng.random()
        self._set_point = mean
        self._moved = 0.0  # degrees that the heating has added
        self._moved_at = start
        self._defects = Defects(
            rng, start,
            stuck_per_day=options["stuck_per_day"],
            outliers_per_day=options["outliers_per_day"],
            gaps_per_day=options["gaps_per_day"],
            lasts_s=options["defect_s"],
        )  # fmt: skip

    def measure(self, t: float) -> Sequence[Any]:
        signal = self._temperature
        target = self._set_point - signal.mean
        if self._moved != target:
            keep = math.exp((self._moved_at - t) / _HEATING_S)
            self._moved = target + (self._moved - target) * keep
        self._moved_at = t
        temperature = signal.at(t, self._moved)
        # One daily wave for people and light, above 0 from 7:00 to 19:00.
        sun = math.cos((t - self._midnight) / DAY_S * math.tau - 13.0 / 24.0 * math.tau)
        by_day = sun if sun > 0.0 else 0.0
        values: list[float | None] = [
            temperature,
            self._humidity.at(t, _HUMIDITY_PER_DEGREE * (temperature - signal.mean)),
            self._pressure.at(t),
            max(_CO2_OUTSIDE, self._co2.at(t, _CO2_OUTSIDE + self._crowd * by_day)),
            self._daylight * by_day * (0.8 + 0.4 * self.rng.random()),
        ]
        if t >= self._defects.next_at:
            self._defects.apply(t, values)
        return values

    def _command_set_point(self, args: Mapping[str, Any], now: float) -> CommandResult:
        self._set_point = number(args, "temperature", -40.0, 60.0)
        return CommandResult(value=self._set_point)

    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {"set_point": _command_set_point}


DEFECT_OPTIONS: Final = (
    Option("stuck_per_day", FLOAT, 0.0, "stuck values per day", 0, 1e4),
    Option("outliers_per_day", FLOAT, 0.0, "outliers per day", 0, 1e6),
    Option("gaps_per_day", FLOAT, 0.0, "missing values per day", 0, 1e4),
    Option("defect_s", FLOAT, 600.0, "mean time a value is stuck or missing", 0, 86_400),
)

INFO: Final = describe(
    Environment,
    "environmental sensor: temperature, humidity, pressure, CO2, light",
    (
        Option("temperature", FLOAT, 21.0, "mean temperature of the room", -40, 60),
        Option("drift_per_day", FLOAT, 0.0, "drift of the sensor per day, in degrees", -10, 10),
        *DEFECT_OPTIONS,
    ),
    commands={"set_point": Command("heats or cools to a temperature", {"temperature": 23.5})},
)
