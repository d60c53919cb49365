"""A GPS tracker in a vehicle: it drives along roads, stops at lights, parks, loses its fix.

All trackers of a fleet drive in one town, which follows from the fleet's name. Between eight
in the evening and six in the morning most of them stand.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import Outcome
from iot_sim.devices.model_info import FLOAT, INT, Command, Option
from iot_sim.devices.roads import Drive, Town, to_degrees
from iot_sim.devices.signals import DAY_S, HOUR_S, Signal, wait
from iot_sim.devices.thing import Order, Thing, describe
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, Field


class Tracker(Thing):
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
        chance, start = self.chance, self.spec.started_at
        draw = chance.random
        self._offset: float = options["utc_offset_h"] * HOUR_S
        self._latitude: float = options["latitude"]
        self._longitude: float = options["longitude"]
        town = Town(zlib.crc32(self.spec.fleet.encode()), options["blocks"])
        self.drive = Drive(town, draw, start, park_s=self._park_s, rush=self._rush)
        self._odometer = 200_000.0 * draw()
        # A receiver is wrong by the same few metres for a minute or so.
        self._east = Signal(chance, 0.0, start, wander=2.5, wander_s=60, noise=0.3)
        self._north = Signal(chance, 0.0, start, wander=2.5, wander_s=60, noise=0.3)
        self._sky = Signal(chance, 10.0, start, wander=2.0, wander_s=120, low=4, high=16)
        self._lost_at = start + wait(draw, options["lost_per_day"])
        self._found_at = start

    def measure(self, t: float) -> Sequence[Any]:
        fix = self.drive.fix(t)
        ignition = not self.drive.parked
        odometer = self._odometer + self.drive.driven(t) / 1_000.0
        east, north = self._east.at(t), self._north.at(t)
        satellites = int(self._sky.at(t))
        supply = (13.9 if ignition else 12.6) + 0.05 * self.chance.random()
        if t >= self._lost_at:
            draw = self.chance.random
            self._found_at = t + 20.0 + 160.0 * draw()
            self._lost_at = self._found_at + wait(draw, self.spec.options["lost_per_day"])
        if t < self._found_at:
            return None, None, None, None, 0, odometer, ignition, supply
        lat, lon = to_degrees(fix.x + east, fix.y + north, self._latitude, self._longitude)
        speed = fix.speed * 3.6
        return lat, lon, speed, int(fix.heading), satellites, odometer, ignition, supply

    def _hour(self, t: float) -> float:
        return (t + self._offset) % DAY_S / HOUR_S

    def _park_s(self, t: float) -> float:
        hour = self._hour(t)
        draw = self.chance.random
        if 6.0 <= hour < 20.0:
            return 120.0 + 2_400.0 * draw()
        # Until the morning; a few drive at night.
        night = ((6.0 - hour) % 24.0) * HOUR_S
        return night + 5_400.0 * draw() if draw() < 0.9 else 1_800.0 * draw()

    def _rush(self, t: float) -> float:
        hour = self._hour(t)
        return 1.0 - 0.4 * (
            math.exp(-(((hour - 8.0) / 1.2) ** 2)) + math.exp(-(((hour - 17.5) / 1.5) ** 2))
        )

    def _order_locate(self, args: Mapping[str, Any], now: float) -> Outcome:
        return Outcome(text="reported", says=[self.report(now)])

    ORDERS: ClassVar[Mapping[str, Order]] = {"locate": _order_locate}


INFO: Final = describe(
    Tracker,
    "GPS tracker: a vehicle on roads, with lights, rush hours, parking and lost fixes",
    (
        Option("latitude", FLOAT, 48.2082, "centre of the town", -80, 80),
        Option("longitude", FLOAT, 16.3738, "centre of the town", -179, 179),
        Option("blocks", INT, 25, "blocks of 220 m from the centre to the edge", 2, 200),
        Option(
            "lost_per_day", FLOAT, 12.0, "times a day that it has no fix, as in a tunnel", 0, 1e4
        ),
    ),
    commands={"locate": Command("reports at once")},
)
