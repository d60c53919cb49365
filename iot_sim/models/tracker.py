"""A GPS tracker in a vehicle that drives along roads, stops at lights, parks and loses its fix.

All trackers of a fleet drive in one town, which is computed from the fleet's name. Most of them
are parked between 20:00 and 6:00.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import CommandResult
from iot_sim.devices.device_model import CommandHandler, DeviceModel, describe
from iot_sim.devices.model_info import FLOAT, INT, Command, Option
from iot_sim.devices.roads import Drive, Town, to_degrees
from iot_sim.devices.signals import DAY_S, HOUR_S, Signal, random_wait
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, Field


class Tracker(DeviceModel):
    MODEL = "tracker"
    FIELDS: ClassVar = (
        Field("lat", DOUBLE, "°", nullable=True, digits=6, help="null without a fix"),
        Field("lon", DOUBLE, "°", nullable=True, digits=6),
        Field("speed", DOUBLE, "km/h", nullable=True, digits=1),
        Field("heading", LONG, "°", nullable=True),
        Field("satellites", LONG),
        Field("odometer", DOUBLE, "km", digits=3),
        Field("ignition", BOOLEAN),
        Field("supply", DOUBLE, "V", help="the vehicle's battery"),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        rng, start = self.rng, self.spec.started_at
        draw = rng.random
        self._offset: float = options["utc_offset_h"] * HOUR_S
        self._latitude: float = options["latitude"]
        self._longitude: float = options["longitude"]
        town = Town(zlib.crc32(self.spec.fleet.encode()), options["blocks"])
        self.drive = Drive(
            town, draw, start, park_s=self._park_s, traffic_factor=self._traffic_factor
        )
        self._odometer = 200_000.0 * draw()
        # The error of a receiver changes by a few metres a minute.
        self._east = Signal(rng, 0.0, start, wander=2.5, wander_s=60, noise=0.3)
        self._north = Signal(rng, 0.0, start, wander=2.5, wander_s=60, noise=0.3)
        self._sky = Signal(rng, 10.0, start, wander=2.0, wander_s=120, low=4, high=16)
        self._lost_at = start + random_wait(draw, options["lost_per_day"])
        self._found_at = start

    def measure(self, t: float) -> Sequence[Any]:
        fix = self.drive.fix(t)
        ignition = not self.drive.parked
        odometer = self._odometer + self.drive.driven(t) / 1_000.0
        east, north = self._east.at(t), self._north.at(t)
        satellites = int(self._sky.at(t))
        supply = (13.9 if ignition else 12.6) + 0.05 * self.rng.random()
        if t >= self._lost_at:
            draw = self.rng.random
            self._found_at = t + 20.0 + 160.0 * draw()
            self._lost_at = self._found_at + random_wait(draw, self.spec.options["lost_per_day"])
        if t < self._found_at:
            return None, None, None, None, 0, odometer, ignition, supply
        lat, lon = to_degrees(fix.x + east, fix.y + north, self._latitude, self._longitude)
        speed = fix.speed * 3.6
        return lat, lon, speed, int(fix.heading), satellites, odometer, ignition, supply

    def _hour(self, t: float) -> float:
        return (t + self._offset) % DAY_S / HOUR_S

    def _park_s(self, t: float) -> float:
        hour = self._hour(t)
        draw = self.rng.random
        if 6.0 <= hour < 20.0:
            return 120.0 + 2_400.0 * draw()
        # Until the morning, except for a few that drive at night.
        night = ((6.0 - hour) % 24.0) * HOUR_S
        return night + 5_400.0 * draw() if draw() < 0.9 else 1_800.0 * draw()

    def _traffic_factor(self, t: float) -> float:
        hour = self._hour(t)
        return 1.0 - 0.4 * (
            math.exp(-(((hour - 8.0) / 1.2) ** 2)) + math.exp(-(((hour - 17.5) / 1.5) ** 2))
        )

    def _command_locate(self, args: Mapping[str, Any], now: float) -> CommandResult:
        return CommandResult(text="reported", publications=[self.report(now)])

    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {"locate": _command_locate}


INFO: Final = describe(
    Tracker,
    "GPS tracker: a vehicle on roads, with lights, rush hours, parking and lost fixes",
    (
        Option("latitude", FLOAT, 48.2082, "latitude of the town's centre", -80, 80),
        Option("longitude", FLOAT, 16.3738, "longitude of the town's centre", -179, 179),
        Option("blocks", INT, 25, "blocks of 220 m from the centre to the edge", 2, 200),
        Option("lost_per_day", FLOAT, 12.0, "losses of the fix per day, as in tunnels", 0, 1e4),
    ),
    commands={"locate": Command("publishes a report at once")},
)
