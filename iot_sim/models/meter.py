"""A smart meter: registers that only grow, load of a household, solar feed-in, a relay.

The registers are the integral of the reported power, whatever the interval. At local midnight the
meter also reports the past day; with thousands of meters that is the known load peak of such
fleets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from iot_sim.devices.commands import CommandRefused, CommandResult
from iot_sim.devices.device import TELEMETRY, Publication
from iot_sim.devices.device_model import EVENT_FIELDS, CommandHandler, DeviceModel, describe
from iot_sim.devices.model_info import BOOL, FLOAT, Command, Option
from iot_sim.devices.signals import DAY_S, HOUR_S, Signal, random_wait
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, LONG, STRING, Field


class Appliance(NamedTuple):
    watts: float
    lasts_s: float
    per_day: float


# Switched on at random while the household is awake.
APPLIANCES: Final = (
    Appliance(2_000.0, 180.0, 6.0),  # kettle
    Appliance(2_200.0, 2_400.0, 0.9),  # oven
    Appliance(900.0, 5_400.0, 0.7),  # washing machine
    Appliance(150.0, 9_000.0, 1.5),  # screens
)
_MAINS_V: Final = 230.0
_MAINS_HZ: Final = 50.0


class Meter(DeviceModel):
    MODEL = "meter"
    FIELDS: ClassVar = (
        Field("power", DOUBLE, "W", digits=1, help="mean since the last report; feed-in below 0"),
        Field("imported", DOUBLE, "kWh", digits=4, help="register"),
        Field("exported", DOUBLE, "kWh", digits=4, help="register"),
        Field("voltage", DOUBLE, "V", digits=1),
        Field("current", DOUBLE, "A", digits=2),
        Field("frequency", DOUBLE, "Hz", digits=3),
        Field("power_factor", DOUBLE, digits=3),
        Field("relay", BOOLEAN, help="true: closed, the customer is supplied"),
    )
    DAILY: ClassVar = (
        Field("id", STRING),
        Field("ts", LONG, "ms"),
        Field("imported", DOUBLE, "kWh", help="register at midnight"),
        Field("exported", DOUBLE, "kWh", help="register at midnight"),
        Field("day_imported", DOUBLE, "kWh"),
        Field("day_exported", DOUBLE, "kWh"),
        Field("day_peak", DOUBLE, "W"),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        rng, start = self.rng, self.spec.started_at
        draw = rng.random
        self._offset: float = options["utc_offset_h"] * HOUR_S
        self._solar: float = (
            options["solar_kw"] * 1_000.0 if draw() < options["solar_share"] else 0.0
        )
        self._size: float = options["household"] * (0.6 + 0.8 * draw())  # 1: an average household
        self._base = Signal(rng, 140.0, start, wander=35.0, wander_s=1_500, noise=6.0, low=25)
        self._volts = Signal(rng, _MAINS_V, start, wander=2.5, wander_s=900, noise=0.4)
        self._hertz = Signal(rng, _MAINS_HZ, start, wander=0.02, wander_s=300)
        self._clouds = Signal(rng, 0.75, start, wander=0.25, wander_s=2_400, low=0.05, high=1)
        self._left_s = [0.0] * len(APPLIANCES)  # remaining running time of each appliance
        self._measured_at = start
        self._imported = 50_000_000.0 * draw()  # Wh
        self._exported = 5_000_000.0 * draw() if self._solar else 0.0
        self._day_imported, self._day_exported = self._imported, self._exported
        self._day_peak = 0.0
        self._relay = True
        self._schedule_events(start)

    def booted(self, now: float) -> list[Publication]:
        self._schedule_events(now)
        return super().booted(now)

    def _schedule_events(self, now: float) -> None:
        options = self.spec.options
        if options["daily"]:
            self.call_at(self._next_midnight(now), self._report_day)
        if options["tampers_per_day"]:
            self.call_at(
                now + random_wait(self.event_rng.random, options["tampers_per_day"]), self._tamper
            )

    def measure(self, t: float) -> Sequence[Any]:
        gap = t - self._measured_at
        self._measured_at = t
        watts = self._consumed_watts(t, gap) - self._produced_watts(t) if self._relay else 0.0
        if watts > 0.0:
            self._imported += watts * gap / 3_600.0
            self._day_peak = max(self._day_peak, watts)
        else:
            self._exported -= watts * gap / 3_600.0
        volts = self._volts.at(t, -watts / 2_000.0)
        factor = 0.93 + 0.06 * min(1.0, abs(watts) / 2_500.0)
        return (
            watts,
            self._imported / 1_000.0,
            self._exported / 1_000.0,
            volts,
            abs(watts) / volts / factor,
            self._hertz.at(t),
            factor,
            self._relay,
        )

    def _consumed_watts(self, t: float, gap: float) -> float:
        """Return the mean power of the household over the last `gap` seconds."""
        draw = self.rng.random
        hour = (t + self._offset) % DAY_S / HOUR_S
        # Two peaks, in the morning and in the evening, and a little at night.
        awake: float = (
            0.08
            + math.exp(-(((hour - 7.3) / 1.4) ** 2))
            + 1.3 * math.exp(-(((hour - 19.2) / 2.6) ** 2))
        )
        watts = self._base.at(t)
        for at, (power, lasts_s, per_day) in enumerate(APPLIANCES):
            left = self._left_s[at]
            if left <= 0.0 and draw() < 1.0 - math.exp(-gap * awake * 3.0 * per_day / DAY_S):
                left = lasts_s * (0.7 + 0.6 * draw())
            if left > 0.0:
                if gap > 0.0:
                    watts += power * min(left, gap) / gap
                self._left_s[at] = left - gap
        return watts * self._size

    def _produced_watts(self, t: float) -> float:
        if not self._solar:
            return 0.0
        hour = (t + self._offset) % DAY_S / HOUR_S
        height = math.sin((hour - 6.0) / 12.0 * math.pi) if 6.0 < hour < 18.0 else 0.0
        return self._solar * height * self._clouds.at(t)

    def _next_midnight(self, now: float) -> float:
        midnight = math.floor((now + self._offset) / DAY_S + 1.0) * DAY_S - self._offset
        jitter: float = self.spec.options["jitter_s"]
        return midnight + jitter * self.event_rng.random()

    def _report_day(self, now: float) -> list[Publication]:
        content = {
            "id": self.spec.client_id,
            "ts": self.clock.read_ms(now),
            "imported": round(self._imported / 1_000.0, 4),
            "exported": round(self._exported / 1_000.0, 4),
            "day_imported": round((self._imported - self._day_imported) / 1_000.0, 4),
            "day_exported": round((self._exported - self._day_exported) / 1_000.0, 4),
            "day_peak": round(self._day_peak, 1),
        }
        self._day_imported, self._day_exported = self._imported, self._exported
        self._day_peak = 0.0
        self.call_at(self._next_midnight(now), self._report_day)
        return self.publish_or_buffer(
            [self.document(self.spec.topic + "/daily", content, TELEMETRY, qos=1)]
        )

    def _tamper(self, now: float) -> list[Publication]:
        self.call_at(
            now + random_wait(self.event_rng.random, self.spec.options["tampers_per_day"]),
            self._tamper,
        )
        return self.publish_or_buffer(
            [self.event(now, "tamper", "warning", text="the cover was opened")]
        )

    def _command_relay(self, args: Mapping[str, Any], now: float) -> CommandResult:
        closed = args.get("closed")
        if not isinstance(closed, bool):
            raise CommandRefused(f"closed must be true or false, not {closed!r:.64}")
        self._relay = closed
        state = "closed" if closed else "open"
        return CommandResult(text=state, publications=[self.event(now, f"relay {state}")])

    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {"relay": _command_relay}


INFO: Final = describe(
    Meter,
    "smart meter: registers, load of a household, solar feed-in, relay, daily report at midnight",
    (
        Option("household", FLOAT, 1.0, "consumption relative to an average household", 0, 100),
        Option("solar_share", FLOAT, 0.2, "share of the meters with solar cells", 0, 1),
        Option("solar_kw", FLOAT, 6.0, "peak power of the solar cells", 0, 10_000),
        Option("daily", BOOL, True, "report the day at local midnight, at QoS 1"),
        Option("tampers_per_day", FLOAT, 0.0, "tamper events per day", 0, 1_000),
    ),
    documents={"event": EVENT_FIELDS, "daily": Meter.DAILY},
    commands={"relay": Command("opens or closes the relay", {"closed": False})},
)
