"""Roads, and a vehicle that drives on them: pure geometry and kinematics.

A town is a warped grid of streets, every fifth of them a main road. It is computed from a seed,
crossing by crossing, so all vehicles of a fleet drive in the same town and no map is stored. A
vehicle accelerates, cruises and brakes at usual rates; its reported speed is the derivative of
its reported position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

BLOCK_M: Final = 220.0
_EARTH_M: Final = 111_320.0  # metres in a degree of latitude
_ACCELERATE: Final = 1.4  # m/s²
_BRAKE: Final = 2.0
_TURNING_MPS: Final = 5.0
_MAIN_EVERY: Final = 5
_MAIN_MPS: Final = 60 / 3.6
_STREET_MPS: Final = 40 / 3.6
_RED_S_MAX: Final = 45.0

_DIRECTIONS: Final = ((0, 1), (1, 0), (0, -1), (-1, 0))  # north, east, south, west


class Fix(NamedTuple):
    """The position of a vehicle: metres east and north of the town's centre."""

    x: float
    y: float
    speed: float  # m/s
    heading: float  # degrees from north, clockwise


class Town:
    """The crossings of a grid, displaced by a smooth warp and a little random offset."""

    __slots__ = ("_phase", "_seed", "blocks")

    def __init__(self, seed: int, blocks: int) -> None:
        self.blocks = blocks  # from the centre to the edge
        self._seed = seed & 0x7FFF_FFFF
        self._phase = (self._seed % 628) / 100.0

    def crossing(self, i: int, j: int) -> tuple[float, float]:
        mixed = (i * 73_856_093 ^ j * 19_349_663 ^ self._seed * 83_492_791) & 0xFFFF_FFFF
        mixed = (mixed ^ mixed >> 15) * 2_246_822_519 & 0xFFFF_FFFF
        own_x = (mixed & 0xFFFF) / 65_535.0 - 0.5
        own_y = (mixed >> 16) / 65_535.0 - 0.5
        x = i * BLOCK_M + 45.0 * math.sin(0.31 * j + self._phase) + 30.0 * own_x
        y = j * BLOCK_M + 45.0 * math.sin(0.27 * i - self._phase) + 30.0 * own_y
        return x, y

    @staticmethod
    def limit(i: int, j: int, direction: int) -> float:
        """Return the speed limit, in m/s, of the road that leaves a crossing in a direction."""
        line = i if direction % 2 == 0 else j
        return _MAIN_MPS if line % _MAIN_EVERY == 0 else _STREET_MPS


class Leg:
    """From one crossing to the next: accelerate, cruise, brake."""

    __slots__ = (
        "_brake_at", "_cruise", "_cruise_at", "_cruise_s", "_from", "_to", "_unit", "_v_in",
        "heading", "lasts_s", "length", "v_out",
    )  # fmt: skip

    def __init__(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        v_in: float,
        v_out: float,
        limit: float,
    ) -> None:
        dx, dy = end[0] - start[0], end[1] - start[1]
        self.length = length = math.hypot(dx, dy)
        self._from = start
        self._to = end
        self._unit = dx / length, dy / length
        self.heading = math.degrees(math.atan2(dx, dy)) % 360.0
        # The speeds that can be reached from v_in within this length.
        v_out = min(v_out, math.sqrt(v_in * v_in + 2.0 * _ACCELERATE * length))
        v_out = max(v_out, math.sqrt(max(0.0, v_in * v_in - 2.0 * _BRAKE * length)))
        peak = math.sqrt(
            (2.0 * _ACCELERATE * _BRAKE * length + _BRAKE * v_in**2 + _ACCELERATE * v_out**2)
            / (_ACCELERATE + _BRAKE)
        )
        cruise = max(v_in, v_out, min(limit, peak))
        self._v_in = v_in
        self.v_out = v_out
        self._cruise = cruise
        self._cruise_at = (cruise - v_in) / _ACCELERATE
        used = (cruise**2 - v_in**2) / (2.0 * _ACCELERATE) + (cruise**2 - v_out**2) / (2.0 * _BRAKE)
        self._cruise_s = max(0.0, length - used) / cruise if cruise else 0.0
        self._brake_at = self._cruise_at + self._cruise_s
        self.lasts_s = self._brake_at + (cruise - v_out) / _BRAKE

    def at(self, t: float) -> tuple[float, float]:
        """Return the metres driven and the speed, `t` seconds after the start of the leg."""
        if t >= self.lasts_s:
            return self.length, self.v_out
        if t < self._cruise_at:
            return self._v_in * t + _ACCELERATE * t * t / 2.0, self._v_in + _ACCELERATE * t
        done = (self._v_in + self._cruise) / 2.0 * self._cruise_at
        if t < self._brake_at:
            return done + self._cruise * (t - self._cruise_at), self._cruise
        braking = t - self._brake_at
        done += self._cruise * self._cruise_s
        return (
            done + self._cruise * braking - _BRAKE * braking * braking / 2.0,
            self._cruise - _BRAKE * braking,
        )

    def point(self, metres: float) -> tuple[float, float]:
        ux, uy = self._unit
        return self._from[0] + ux * metres, self._from[1] + uy * metres


class Drive:
    """A vehicle that drives trip after trip. Call `fix` with times that never run backwards."""

    __slots__ = (
        "_direction",
        "_draw",
        "_here",
        "_leg",
        "_leg_at",
        "_legs_left",
        "_metres",
        "_park_s",
        "_speed_factor",
        "_stands_until",
        "_town",
        "_traffic_factor",
        "parked",
    )  # fmt: skip

    def __init__(
        self,
        town: Town,
        draw: Callable[[], float],
        start: float,
        *,
        park_s: Callable[[float], float],  # parking time after a trip that ends at this time
        traffic_factor: Callable[[float], float],  # share of the limit possible at this time
    ) -> None:
        self._town = town
        self._draw = draw
        self._park_s = park_s
        self._traffic_factor = traffic_factor
        self._speed_factor = 0.85 + 0.25 * draw()
        size = 2 * town.blocks + 1
        self._here = int(draw() * size) - town.blocks, int(draw() * size) - town.blocks
        self._direction = int(draw() * 4)
        self._leg: Leg | None = None
        self._leg_at = start  # when the leg begins
        self._legs_left = 0
        self._metres = 0.0  # of the completed legs
        self.parked = True
        self._stands_until = start + park_s(start) * draw()

    @property
    def metres(self) -> float:
        return self._metres

    def fix(self, t: float) -> Fix:
        while True:
            if self._leg is None:
                if t < self._stands_until:
                    x, y = self._town.crossing(*self._here)
                    return Fix(x, y, 0.0, self._direction * 90.0)
                self._set_off(self._stands_until)
            leg = self._leg
            assert leg is not None
            if t < self._leg_at + leg.lasts_s:
                metres, speed = leg.at(t - self._leg_at)
                x, y = leg.point(metres)
                return Fix(x, y, speed, leg.heading)
            self._arrive(leg)

    def driven(self, t: float) -> float:
        """Return the metres driven in all, at `t`, the time of the last fix."""
        if self._leg is None:
            return self._metres
        return self._metres + self._leg.at(t - self._leg_at)[0]

    def _set_off(self, t: float) -> None:
        if self.parked:
            self.parked = False
            self._legs_left = 4 + int(self._draw() * 30)
        self._begin(t, 0.0)

    def _arrive(self, leg: Leg) -> None:
        end = self._leg_at + leg.lasts_s
        self._metres += leg.length
        self._legs_left -= 1
        if leg.v_out > 0.0:
            self._begin(end, leg.v_out)
            return
        self._leg = None
        if self._legs_left <= 0:
            self.parked = True
            self._stands_until = end + self._park_s(end)
        else:  # a red light
            self._stands_until = end + 2.0 + (_RED_S_MAX - 2.0) * self._draw()

    def _begin(self, t: float, v_in: float) -> None:
        """Begin the next leg; what follows it (stop, turn or straight on) sets its end speed."""
        i, j = self._here
        di, dj = _DIRECTIONS[self._direction]
        there = i + di, j + dj
        turned = self._turn(there)
        town, draw = self._town, self._draw
        pace = self._speed_factor * self._traffic_factor(t)
        limit = town.limit(i, j, self._direction) * pace
        if self._legs_left <= 1 or draw() < 0.3:
            v_out = 0.0
        elif turned != self._direction:
            v_out = _TURNING_MPS
        else:
            v_out = min(limit, town.limit(*there, turned) * pace)
        self._leg = Leg(town.crossing(i, j), town.crossing(*there), v_in, v_out, limit)
        self._leg_at = t
        self._here = there
        self._direction = turned

    def _turn(self, there: tuple[int, int]) -> int:
        """Choose the next road: mostly straight on, never back, never out of town."""
        if not self._inside(there):
            return self._direction
        which = self._draw()
        turn = 0 if which < 0.6 else 1 if which < 0.8 else 3
        for more in (turn, 1, 3, 0, 2):
            direction = (self._direction + more) % 4
            di, dj = _DIRECTIONS[direction]
            if self._inside((there[0] + di, there[1] + dj)):
                return direction
        return self._direction

    def _inside(self, crossing: tuple[int, int]) -> bool:
        return max(abs(crossing[0]), abs(crossing[1])) <= self._town.blocks


def to_degrees(x: float, y: float, latitude: float, longitude: float) -> tuple[float, float]:
    """Convert metres east and north of a place to degrees."""
    return (
        latitude + y / _EARTH_M,
        longitude + x / (_EARTH_M * math.cos(math.radians(latitude))),
    )
