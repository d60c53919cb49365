"""An industrial machine: speed, load, vibration, temperature, and a state machine.

    off <-> starting -> running <-> idle
                           |
                         fault -> maintenance -> starting

It works in shifts. Its bearing wears while it runs: vibration grows with the fourth power of the
used share of its life, so the measurements announce a fault. The command `reset` ends a fault, and
so does a repair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import CommandRefused, CommandResult, number
from iot_sim.devices.device import Publication
from iot_sim.devices.device_model import EVENT_FIELDS, CommandHandler, DeviceModel, describe
from iot_sim.devices.model_info import FLOAT, INT, Command, Option
from iot_sim.devices.signals import DAY_S, HOUR_S, Signal
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


class Machine(DeviceModel):
    MODEL = "machine"
    FIELDS: ClassVar = (
        Field("state", STRING, choices=STATES),
        Field("rpm", LONG, "1/min"),
        Field("load", DOUBLE, "%", digits=1),
        Field("vibration_x", DOUBLE, "mm/s", digits=3),
        Field("vibration_y", DOUBLE, "mm/s", digits=3),
        Field("temperature", DOUBLE, "°C", digits=1),
        Field("power", DOUBLE, "kW"),
        Field("parts", LONG, help="parts made since the start"),
        Field("fault", STRING, nullable=True, choices=FAULTS),
    )

    def setup(self, options: Mapping[str, Any]) -> None:
        rng, start = self.rng, self.spec.started_at
        self._offset: float = options["utc_offset_h"] * HOUR_S
        self._work_s: float = options["shifts"] * _SHIFT_S
        self._ambient = Signal(
            rng, 22.0, start, daily=3.0, peak_s=15 * HOUR_S - self._offset, wander=0.5
        )
        self._load = Signal(
            rng, 62.0, start, wander=9.0, wander_s=600, noise=1.5, low=8.0, high=100.0
        )
        self._vibration = Signal(rng, 0.0, start, noise=1.0)
        self._rpm_set = float(options["rpm"])
        self._rpm = 0.0
        self._heat = 0.0  # degrees above the ambient temperature
        self._parts = 0.0
        self._moved_at = start
        self._life_h = self._draw_life_h()
        self._used_h = self._life_h * rng.random()
        self._ran_at = start
        self._fault: str | None = None
        self._is_stopped = False  # stopped by a command
        self._overtime_until = start  # started by a command, outside the shifts
        self._state_number = 0  # counts state changes, to tell timers of earlier states
        self.state = OFF
        self._enter_state(STARTING if self._in_shift(start) else OFF, start)

    def booted(self, now: float) -> list[Publication]:
        """Start the controller, in FAULT if the machine had a fault before, else in STARTING."""
        publications = super().booted(now)
        return [*publications, *self._enter_state(FAULT if self._fault else STARTING, now)]

    def reboot(self, now: float) -> None:
        self._advance(now)
        self._state_number += 1
        self.state = OFF
        super().reboot(now)

    def measure(self, t: float) -> Sequence[Any]:
        self._advance(t)
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
            base * (0.8 + 0.03 * noise + 0.03 * other),  # the axes correlate
            self._ambient.at(t) + self._heat,
            0.0 if self.state == OFF else 0.4 + share * (2.0 + 0.14 * load),
            int(self._parts),
            self._fault,
        )

    # The states.

    def _enter_state(self, state: str, now: float) -> list[Publication]:
        """Enter a state, and schedule its end."""
        self._advance(now)
        before, self.state = self.state, state
        self._state_number += 1
        number = self._state_number
        draw = self.event_rng.random
        if state == OFF:
            ends = self._next_shift(now)
        elif state == STARTING:
            ends = now + _START_S
        elif state == IDLE:
            ends = math.inf if self._is_stopped else now + 120.0 + 600.0 * draw()
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
            self.call_at(ends, lambda when: self._end_state(number, when))
        if state == FAULT and before != FAULT:
            return self.publish_or_buffer([self.event(now, "fault", "error", text=self._fault)])
        if before == MAINTENANCE:
            return self.publish_or_buffer([self.event(now, "repaired")])
        return []

    def _end_state(self, number: int, now: float) -> list[Publication]:
        if number != self._state_number:  # a command has changed the state
            return []
        self._advance(now)
        state = self.state
        if state == RUNNING and self._used_h >= self._life_h - 1e-9:
            return self._enter_state(FAULT, now)
        if state == FAULT:
            return self._enter_state(MAINTENANCE, now)
        if state == MAINTENANCE:
            self._repair()
        if not self._in_shift(now):
            return self._enter_state(OFF, now)
        if state in (OFF, MAINTENANCE):
            return self._enter_state(STARTING, now)
        if state == RUNNING:
            return self._enter_state(IDLE, now)
        return self._enter_state(IDLE if self._is_stopped else RUNNING, now)

    def _repair(self) -> None:
        self._fault = None
        self._used_h = 0.0
        self._life_h = self._draw_life_h()

    def _draw_life_h(self) -> float:
        """Draw the hours to the next fault, from a Weibull distribution of shape 2."""
        mean: float = self.spec.options["fault_every_h"]
        return max(0.05, mean * 1.128 * math.sqrt(-math.log(1.0 - self.event_rng.random())))

    def _advance(self, t: float) -> None:
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
        return t < self._overtime_until or self._shift_time(t) < self._work_s

    def _shift_time(self, t: float) -> float:
        """Return the seconds since the first shift of the day began."""
        return (t + self._offset - _FIRST_SHIFT_S) % DAY_S

    def _shift_end(self, t: float) -> float:
        if self._work_s >= DAY_S:
            return math.inf
        if t < self._overtime_until:
            return self._overtime_until + self._work_s
        return t + self._work_s - self._shift_time(t)

    def _next_shift(self, t: float) -> float:
        return t + DAY_S - self._shift_time(t)

    # Commands.

    def _command_start(self, args: Mapping[str, Any], now: float) -> CommandResult:
        if self.state == FAULT:
            raise CommandRefused(f"the machine has a fault ({self._fault}): reset it first")
        self._is_stopped = False
        if not self._in_shift(now):
            self._overtime_until = self._next_shift(now)
        if self.state in (OFF, IDLE):
            self._enter_state(STARTING if self.state == OFF else RUNNING, now)
        return CommandResult(text=self.state)

    def _command_stop(self, args: Mapping[str, Any], now: float) -> CommandResult:
        self._is_stopped = True
        if self.state in (STARTING, RUNNING):
            self._enter_state(IDLE, now)
        return CommandResult(text=self.state)

    def _command_reset(self, args: Mapping[str, Any], now: float) -> CommandResult:
        if self.state != FAULT:
            raise CommandRefused("the machine has no fault")
        self._repair()
        self._enter_state(STARTING, now)
        return CommandResult(text=self.state, publications=[self.event(now, "reset")])

    def _command_set_speed(self, args: Mapping[str, Any], now: float) -> CommandResult:
        self._advance(now)
        self._rpm_set = number(args, "rpm", 0.0, RPM_MAX)
        return CommandResult(value=self._rpm_set)

    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {
        "start": _command_start,
        "stop": _command_stop,
        "reset": _command_reset,
        "set_speed": _command_set_speed,
    }


INFO: Final = describe(
    Machine,
    "industrial machine: vibration, temperature, load, states, and faults that vibration announces",
    (
        Option("rpm", INT, 3_000, "speed", 0, int(RPM_MAX)),
        Option("shifts", INT, 3, "shifts of eight hours a day, the first at 6:00", 1, 3),
        Option("fault_every_h", FLOAT, 200.0, "mean running hours between two faults", 0.1, 1e6),
        Option("repair_s", FLOAT, 1_800.0, "mean time from a fault to its repair", 1, 1e6),
        Option("maintenance_s", FLOAT, 900.0, "duration of the repair", 1, 1e6),
    ),
    documents={"event": EVENT_FIELDS},
    commands={
        "start": Command("starts the machine, also outside its shifts"),
        "stop": Command("idles until the command start"),
        "reset": Command("clears a fault"),
        "set_speed": Command("sets the speed", {"rpm": 2_500}),
    },
)
