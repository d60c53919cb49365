"""Roads, and a vehicle on them: driven as a car drives, continuous, within the town."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from iot_sim.devices.roads import Drive, Leg, Town
from tests.iot_sim.day import START


def test_a_leg_is_driven_as_a_car_drives() -> None:
    chance = Random(5)
    for _ in range(300):
        v_in, v_out = 17 * chance.random(), 17 * chance.random()
        length = 100 + 200 * chance.random()
        leg = Leg((0.0, 0.0), (0.0, length), v_in, v_out, 8 + 9 * chance.random())
        steps = [leg.at(n * leg.lasts_s / 400) for n in range(401)]
        assert steps[0] == pytest.approx((0.0, v_in), abs=1e-6)
        assert steps[-1] == pytest.approx((length, leg.v_out), abs=1e-6)
        step_s = leg.lasts_s / 400
        for (s0, v0), (s1, v1) in pairwise(steps):
            assert (s1 - s0) / step_s == pytest.approx((v0 + v1) / 2, abs=0.02)
            assert -2.01 <= (v1 - v0) / step_s <= 1.41


def test_a_drive_is_continuous_on_roads_and_within_the_town() -> None:
    town = Town(1, 6)
    drive = Drive(
        town, Random(2).random, START, park_s=lambda t: 60.0, traffic_factor=lambda t: 1.0
    )
    roads = []
    for i in range(-6, 7):
        for j in range(-6, 7):
            for there in ((i + 1, j), (i, j + 1)):
                if max(there) <= 6:
                    roads.append((town.crossing(i, j), town.crossing(*there)))
    before = drive.fix(START)
    driven = 0.0
    for n in range(1, 6_000):
        now = drive.fix(START + n)
        moved = math.hypot(now.x - before.x, now.y - before.y)
        assert moved <= (before.speed + now.speed) / 2 + 1.5
        assert now.speed <= 60 / 3.6 * 1.1 + 1e-6
        total = drive.driven(START + n)
        assert total - driven >= moved - 1e-6
        driven = total
        before = now
        if n % 100 == 0:
            assert min(_distance(now.x, now.y, road) for road in roads) < 0.01
    assert driven > 10_000


def _distance(x: float, y: float, road: tuple[tuple[float, float], tuple[float, float]]) -> float:
    (ax, ay), (bx, by) = road
    dx, dy = bx - ax, by - ay
    along = max(0.0, min(1.0, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy)))
    return math.hypot(x - ax - along * dx, y - ay - along * dy)


def test_asked_seldom_or_often_it_is_at_the_same_place() -> None:
    places = []
    for step in (1, 60, 3_600):
        drive = Drive(
            Town(1, 10),
            Random(2).random,
            START,
            park_s=lambda t: 300.0,
            traffic_factor=lambda t: 0.9,
        )
        for n in range(0, 36_000, step):
            drive.fix(START + n)
        places.append((drive.fix(START + 36_000), drive.driven(START + 36_000)))
    assert places[0] == places[1] == places[2]
