"""A battery-powered sensor in deep sleep: it wakes up to measure, and connects seldom to report.

It buffers its measurements until `report_every` of them are there; then it connects, publishes
them, waits a moment for messages that the broker queued for it, and sleeps again. Every step uses
charge; with an empty battery the device is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from iot_sim.devices.device import Publication
from iot_sim.devices.device_model import EVENT_FIELDS, DeviceModel, describe
from iot_sim.devices.model_info import BOOL, FLOAT, INT, Option
from iot_sim.devices.signals import HOUR_S, Battery, Defects, Signal
from iot_sim.models.environment import DEFECT_OPTIONS
from iot_sim.payloads.schema import DOUBLE, LONG, Field

_LOW: Final = 0.1  # share of the charge at which it warns


class BatterySensor(DeviceModel):
    MODEL = "battery_sensor"
    FIELDS: ClassVar = (
        Field("temperature", DOUBLE, "°C", nullable=True),
        Field("humidity", DOUBLE, "%", nullable=True, digits=1),
        Field("voltage", DOUBLE, "V", digits=3),
        Field("charge", DOUBLE, "%", digits=1),
        Field("wakes", LONG, help="times that the radio was switched on"),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        rng, start = self.rng, self.spec.started_at
        offset = options["utc_offset_h"] * HOUR_S
        self._temperature = Signal(
            rng, 11.0 + 4.0 * rng.random(), start, daily=6.0, peak_s=15 * HOUR_S - offset,
            wander=1.2, wander_s=4 * HOUR_S, noise=0.05, low=-40, high=85,
        )  # fmt: skip
        self._humidity = Signal(
            rng, 70.0, start, wander=6.0, wander_s=6 * HOUR_S, noise=0.3, low=5, high=100
        )
        self._defects = Defects(
            rng, start,
            stuck_per_day=options["stuck_per_day"],
            outliers_per_day=options["outliers_per_day"],
            gaps_per_day=options["gaps_per_day"],
            lasts_s=options["defect_s"],
        )  # fmt: skip
        self.battery = Battery(
            options["battery_mah"], options["battery_charge"], options["rest_ua"] / 1_000.0, start
        )
        self._measured = 0
        self._wakes = 0
        self._awake_at = start
        self._announced = False
        self._warned = False
        self.awake = False
        self._sleeps_at = start
        self._wake_up(start)

    def booted(self, now: float) -> list[Publication]:
        self._announced = False
        self.awake = False
        self._wake_up(now)
        return super().booted(now)

    def measure(self, t: float) -> Sequence[Any]:
        options = self.spec.options
        self.battery.draw(t, options["measure_mas"] / 3_600.0)
        temperature = self._temperature.at(t)
        values: list[float | None] = [
            temperature,
            self._humidity.at(t, -2.2 * (temperature - self._temperature.mean)),
        ]
        if t >= self._defects.next_at:
            self._defects.apply(t, values)
        share = self.battery.share
        # The voltage is lower in the cold.
        volts = self.battery.voltage() - max(0.0, 10.0 - temperature) * 0.006
        self._measured += 1
        if self._measured % options["report_every"] == 0:
            self._wake_up(t)
        return *values, volts, 100.0 * share, self._wakes

    def act(self, now: float) -> list[Publication]:
        out = super().act(now)
        if self.battery.share < _LOW and not self._warned:
            self._warned = True
            out = [*out, *self.publish_or_buffer([self.event(now, "battery low", "warning")])]
        if self.battery.empty and not self.down:
            self.awake = False
            self.stop()
        return out

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        out = super().on_connected(now, session_present=session_present)
        if not self.down:
            self._wake_up(now)  # the connect may have taken longer than `connect_s`
            self._listen(now)
        return out

    def births(self, now: float) -> list[Publication]:
        """Return the births once per boot, not at every wake-up."""
        if self._announced and self.update is None and not self.spec.options["announce"]:
            return []
        self._announced = True
        return super().births(now)

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        out = super().on_message(message, now)
        self._listen(now)
        return out

    def wants_link(self, now: float) -> bool:
        return self.awake and not self.down

    def goodbye(self, now: float) -> list[Publication]:
        if self.battery.empty:
            return [self._state(now, online=False, reason="battery")]
        if self.down or self.awake:  # it reboots, or the run ends
            return super().goodbye(now)
        if self.spec.options["announce"]:
            return [self._state(now, online=False, reason="sleep")]
        return []

    # Awake and asleep.

    def _wake_up(self, t: float) -> None:
        if not self.awake:
            self.awake = True
            self._awake_at = t
            self._wakes += 1
            self._sleep_after(t, self.spec.options["connect_s"])

    def _listen(self, t: float) -> None:
        if self.awake:
            self._sleep_after(t, self.spec.options["listen_s"])

    def _sleep_after(self, t: float, seconds: float) -> None:
        self._sleeps_at = t + seconds
        self.call_at(self._sleeps_at, self._sleep)

    def _sleep(self, now: float) -> list[Publication]:
        if now < self._sleeps_at or not self.awake:  # postponed by a message
            return []
        if self.connected and self.update is not None:
            self._listen(now)
            return []
        self.awake = False
        self.connected = False  # the radio is off before the fleet has closed the connection
        self.battery.draw(now, self.spec.options["radio_ma"] * (now - self._awake_at) / HOUR_S)
        return []


INFO: Final = describe(
    BatterySensor,
    "battery sensor in deep sleep: buffers its measurements, connects seldom, and runs down",
    (
        Option("report_every", INT, 6, "measurements between two connects", 1, 100_000),
        Option("listen_s", FLOAT, 2.0, "time awake after the last message received", 0, 3_600),
        Option("connect_s", FLOAT, 30.0, "timeout of a connect", 0.1, 3_600),
        Option("announce", BOOL, False, "publish the state at every wake-up and sleep"),
        Option("battery_mah", FLOAT, 2_400.0, "capacity of the battery", 0.001, 1e6),
        Option("battery_charge", FLOAT, 1.0, "share of the charge at the start", 0, 1),
        Option("rest_ua", FLOAT, 8.0, "current while asleep", 0, 1e6),
        Option("measure_mas", FLOAT, 15.0, "charge of one measurement, in mA s", 0, 1e6),
        Option("radio_ma", FLOAT, 110.0, "current while the radio is on", 0, 1e5),
        *DEFECT_OPTIONS,
    ),
    documents={"event": EVENT_FIELDS},
)  # fmt: skip
