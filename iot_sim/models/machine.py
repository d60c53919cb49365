"""An industrial machine: speed, load, vibration, temperature, and the states it goes through.

    off <-> starting -> running <-> idle
                           |
                         fault -> maintenance -> starting

It works in shifts. Its bearing wears while it runs: vibration grows with the fourth power of
the life that is used, so a fault is announced by what is measured. A fault ends by the
command `reset`, or when it is repaired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import CommandRefused, Outcome, number
from iot_sim.devices.device import Publication
from iot_sim.devices.model_info import FLOAT, INT, Command, Option
from iot_sim.devices.signals import DAY_S, HOUR_S, Signal
from iot_sim.devices.thing import EVENT_FIELDS, Order, Thing, describe
from iot_sim.payloads.schema import DOUBLE, LONG, STRING, Field

OFF: Final = "off"
STARTING: Final = "starting"
IDLE: Final = "idle"
RUNNING: Final = "running"
FAULT: Final = "fault"
MAINTENANCE: Final = "maintenance"
STATES: Final = (OFF, STARTING, IDLE, RUNNING, FAULT, MAINTENANCE)
FAULTS: Final = ("bearing", "overheated", "jammed", "coolant")

RPM_MAX: Final = 6_000.0
_START_S: Final = 20.0
_WARMING_S: Final = 900.0  # time constant of the temperature
_SPINNING_S: Final = 6.0  # time constant of the speed
_SHIFT_S: Final = 8 * HOUR_S
_FIRST_SHIFT_S: Final = 6 * HOUR_S  # second of the local day


class Machine(Thing):
    MODEL = "machine"
    FIELDS: ClassVar = (
        Field("state", STRING, choices=STATES),
        Field("rpm", LONG, "1/min"),
        Field("load", DOUBLE, "%", digits=1),
        Field("vibration_x", DOUBLE, "mm/s", digits=3),
        Field("vibration_y", DOUBLE, "mm/s", digits=3),
        Field("temperature", DOUBLE, "°C", digits=1),
        Field("power", DOUBLE, "kW"),
        Field("parts", LONG, help="made since it was set up"),
        Field("fault", STRING, nullable=True, choices=FAULTS),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        chance, start = self.chance, self.spec.started_at
        self._offset: float = options["utc_offset_h"] * HOUR_S
        self._work_s: float = options["shifts"] * _SHIFT_S
        self._ambient = Signal(
            chance, 22.0, start, daily=3.0, peak_s=15 * HOUR_S - self._offset, wander=0.5
        )
        self._load = Signal(
            chance, 62.0, start, wander=9.0, wander_s=600, noise=1.5, low=8.0, high=100.0
        )
        self._vibration = Signal(chance, 0.0, start, noise=1.0)
        self._rpm_set = float(options["rpm"])
        self._rpm = 0.0
        self._heat = 0.0  # degrees above the place it stands in
        self._parts = 0.0
        self._moved_at = start
        self._life_h = self._draw_life()
        self._used_h = self._life_h * chance.random()
        self._ran_at = start
        self._fault: str | None = None
        self._held = False  # stopped by a command
        self._overtime_until = start  # started by a command, outside the shifts
        self._turn = 0  # which entering of a state is the last: timers of others are void
        self.state = OFF
        self._enter(STARTING if self._in_shift(start) else OFF, start)

    def booted(self, now: float) -> list[Publication]:
        """Start the controller: the machine stands, in FAULT if it had one, else in STARTING."""
        said = super().booted(now)
        return [*said, *self._enter(FAULT if self._fault else STARTING, now)]

    def reboot(self, now: float) -> None:
        self._move(now)
        self._turn += 1
        self.state = OFF
        super().reboot(now)

    def measure(self, t: float) -> Sequence[Any]:
        self._move(t)
        share = self._rpm / RPM_MAX
        load = self._load.at(t) if self.state == RUNNING else 0.0
        worn = min(1.0, self._used_h / self._life_h)
        base = 0.15 + 4.0 * share * (0.6 + load / 250.0) + 9.0 * share * worn**4
        if self._fault == "bearing":
            base += 4.0
        noise = self._vibration.at(t)
        other = self._vibration.at(t)
        return (
            self.state,
            self._rpm,
            load,
            base * (1.0 + 0.04 * noise),
            base * (0.8 + 0.03 * noise + 0.03 * other),  # both axes feel the same shaft
            self._ambient.at(t) + self._heat,
            0.0 if self.state == OFF else 0.4 + share * (2.0 + 0.14 * load),
            int(self._parts),
            self._fault,
        )

    # The states.

    def _enter(self, state: str, now: float) -> list[Publication]:
        """Enter a state, and schedule its end."""
        self._move(now)
        before, self.state = self.state, state
        self._turn += 1
        turn = self._turn
        draw = self.fate.random
        if state == OFF:
            ends = self._next_shift(now)
        elif state == STARTING:
            ends = now + _START_S
        elif state == IDLE:
            ends = math.inf if self._held else now + 120.0 + 600.0 * draw()
        elif state == RUNNING:
            ends = now + min(1_800.0 + 5_400.0 * draw(), (self._life_h - self._used_h) * HOUR_S)
        elif state == FAULT:
            self._fault = self._fault or FAULTS[int(draw() ** 2 * len(FAULTS))]
            ends = now + self.spec.options["repair_s"] * (0.5 + draw())
        else:
            ends = now + self.spec.options["maintenance_s"]
        if state in (STARTING, IDLE, RUNNING):
            ends = min(ends, self._shift_end(now))
        if ends < math.inf:
            self.at(ends, lambda when: self._leave(turn, when))
        if state == FAULT and before != FAULT:
            return self.say([self.event(now, "fault", "error", text=self._fault)])
        if before == MAINTENANCE:
            return self.say([self.event(now, "repaired")])
        return []

    def _leave(self, turn: int, now: float) -> list[Publication]:
        if turn != self._turn:  # a command was faster
            return []
        self._move(now)
        state = self.state
        if state == RUNNING and self._used_h >= self._life_h - 1e-9:
            return self._enter(FAULT, now)
        if state == FAULT:
            return self._enter(MAINTENANCE, now)
        if state == MAINTENANCE:
            self._repair()
        if not self._in_shift(now):
            return self._enter(OFF, now)
        if state in (OFF, MAINTENANCE):
            return self._enter(STARTING, now)
        if state == RUNNING:
            return self._enter(IDLE, now)
        return self._enter(IDLE if self._held else RUNNING, now)

    def _repair(self) -> None:
        self._fault = None
        self._used_h = 0.0
        self._life_h = self._draw_life()

    def _draw_life(self) -> float:
        """Draw the hours to the next fault, from a Weibull distribution of shape 2."""
        mean: float = self.spec.options["fault_every_h"]
        return max(0.05, mean * 1.128 * math.sqrt(-math.log(1.0 - self.fate.random())))

    def _move(self, t: float) -> None:
        """Advance speed, heat, parts and wear to the time `t`."""
        gap = t - self._moved_at
        if gap <= 0.0:
            return
        self._moved_at = t
        running = self.state == RUNNING
        target = self._rpm_set if running else self._rpm_set * 0.25 if self.state == IDLE else 0.0
        self._rpm += (target - self._rpm) * (1.0 - math.exp(-gap / _SPINNING_S))
        if self._rpm < 1.0:
            self._rpm = 0.0
        warm = 55.0 * self._rpm / RPM_MAX + (25.0 if self._fault == "overheated" else 0.0)
        self._heat += (warm - self._heat) * (1.0 - math.exp(-gap / _WARMING_S))
        if running:
            self._parts += gap * self._rpm / RPM_MAX / 4.0
            self._used_h += gap / HOUR_S

    # Shifts.

    def _in_shift(self, t: float) -> bool:
        return t < self._overtime_until or self._in_day(t) < self._work_s

    def _in_day(self, t: float) -> float:
        """Return the seconds since the first shift of the day began."""
        return (t + self._offset - _FIRST_SHIFT_S) % DAY_S

    def _shift_end(self, t: float) -> float:
        if self._work_s >= DAY_S:
            return math.inf
        if t < self._overtime_until:
            return self._overtime_until + self._work_s
        return t + self._work_s - self._in_day(t)

    def _next_shift(self, t: float) -> float:
        return t + DAY_S - self._in_day(t)

    # Commands.

    def _order_start(self, args: Mapping[str, Any], now: float) -> Outcome:
        if self.state == FAULT:
            raise CommandRefused(f"it has a fault: {self._fault}")
        self._held = False
        if not self._in_shift(now):
            self._overtime_until = self._next_shift(now)
        if self.state in (OFF, IDLE):
            self._enter(STARTING if self.state == OFF else RUNNING, now)
        return Outcome(text=self.state)

    def _order_stop(self, args: Mapping[str, Any], now: float) -> Outcome:
        self._held = True
        if self.state in (STARTING, RUNNING):
            self._enter(IDLE, now)
        return Outcome(text=self.state)

    def _order_reset(self, args: Mapping[str, Any], now: float) -> Outcome:
        if self.state != FAULT:
            raise CommandRefused("it has no fault")
        self._repair()
        self._enter(STARTING, now)
        return Outcome(text=self.state, says=[self.event(now, "reset")])

    def _order_speed(self, args: Mapping[str, Any], now: float) -> Outcome:
        self._move(now)
        self._rpm_set = number(args, "rpm", 0.0, RPM_MAX)
        return Outcome(value=self._rpm_set)

    ORDERS: ClassVar[Mapping[str, Order]] = {
        "start": _order_start,
        "stop": _order_stop,
        "reset": _order_reset,
        "set_speed": _order_speed,
    }


INFO: Final = describe(
    Machine,
    "industrial machine: vibration, temperature, load, states and faults that announce themselves",
    (
        Option("rpm", INT, 3_000, "speed that it runs at", 0, int(RPM_MAX)),
        Option("shifts", INT, 3, "shifts of eight hours a day, the first at six", 1, 3),
        Option("fault_every_h", FLOAT, 200.0, "mean running hours between two faults", 0.1, 1e6),
        Option("repair_s", FLOAT, 1_800.0, "mean time until somebody comes to a fault", 1, 1e6),
        Option("maintenance_s", FLOAT, 900.0, "time that the repair takes", 1, 1e6),
    ),
    documents={"event": EVENT_FIELDS},
    commands={
        "start": Command("runs, also outside its shifts"),
        "stop": Command("idles until it is started"),
        "reset": Command("clears a fault"),
        "set_speed": Command("changes the speed that it runs at", {"rpm": 2_500}),
    },
)
