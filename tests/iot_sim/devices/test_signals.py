"""Signals, defects, the battery and the clock: what they promise, over simulated days."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import pytest

from iot_sim.devices.signals import (
    DAY_S,
    HOUR_S,
    Battery,
    Clock,
    Defects,
    Signal,
    bell_curve,
    hour_of,
    random_wait,
)

START = 1_772_668_800.0


def sampled(signal: Signal, seconds: float, step_s: float) -> list[float]:
    return [signal.at(START + n * step_s) for n in range(int(seconds / step_s))]


def test_noise_has_mean_deviation_and_bounds() -> None:
    draw = Random(1).random
    drawn = [bell_curve(draw) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(0, abs=0.03)
    assert pstdev(drawn) == pytest.approx(1, abs=0.02)
    assert all(abs(value) <= 3 for value in drawn)


def test_a_day_has_its_peak_and_its_trough() -> None:
    signal = Signal(Random(1), 20.0, START, daily=5.0, peak_s=15 * HOUR_S)
    day = sampled(signal, DAY_S, 600.0)
    assert max(day) == pytest.approx(25, abs=0.01)
    assert min(day) == pytest.approx(15, abs=0.01)
    assert day.index(max(day)) * 600 / HOUR_S == pytest.approx(15, abs=0.2)


def test_drift_is_that_much_a_day() -> None:
    signal = Signal(Random(1), 0.0, START, drift_per_day=1.5)
    assert signal.at(START + 2 * DAY_S) == pytest.approx(3.0)


def test_wandering_is_correlated_and_keeps_its_deviation_at_any_step() -> None:
    for step_s in (1.0, 60.0, 1_800.0):
        drawn = sampled(Signal(Random(3), 0.0, START, wander=2.0, wander_s=600.0), 6e6, 1_800.0)
        assert pstdev(drawn) == pytest.approx(2.0, rel=0.1)
        signal = Signal(Random(3), 0.0, START, wander=2.0, wander_s=600.0)
        fine = sampled(signal, step_s * 4_000, step_s)
        kept = fmean(a * b for a, b in pairwise(fine)) / fmean(a * a for a in fine)
        assert kept == pytest.approx(math.exp(-step_s / 600.0), abs=0.08)


def test_limits_hold() -> None:
    signal = Signal(Random(1), 0.0, START, noise=10.0, low=-1.0, high=2.0)
    drawn = sampled(signal, 1_000.0, 1.0)
    assert (min(drawn), max(drawn)) == (-1.0, 2.0)


def test_a_pull_moves_it() -> None:
    signal = Signal(Random(1), 10.0, START)
    assert signal.at(START, -4.0) == 6.0


def test_the_same_moment_twice_is_no_time_between() -> None:
    signal = Signal(Random(1), 10.0, START, wander=3.0)
    assert signal.at(START + 5) == signal.at(START + 5)


def test_events_come_at_their_rate() -> None:
    draw = Random(1).random
    assert fmean(random_wait(draw, 24.0) for _ in range(5_000)) == pytest.approx(HOUR_S, rel=0.05)
    assert random_wait(draw, 0.0) == math.inf


def test_the_hour_of_the_local_day() -> None:
    assert hour_of(START) == 0.0
    assert hour_of(START, 5.5) == 5.5
    assert hour_of(START, -1.0) == 23.0


def spoiled(defects: Defects, days: float = 10.0) -> list[list[float | None]]:
    """Values that are 10 and 20 with a ramp, as they come out; a minute apart."""
    found = []
    for n in range(int(days * 1_440)):
        t = START + 60.0 * n
        values: list[float | None] = [10.0 + n * 1e-6, 20.0 + n * 1e-6]
        if t >= defects.next_at:
            defects.apply(t, values)
        found.append(values)
    return found


def test_no_defects_without_a_rate() -> None:
    assert Defects(Random(1), START).next_at == math.inf


def test_outliers_are_single_and_as_many_as_asked() -> None:
    rows = spoiled(Defects(Random(1), START, outliers_per_day=20.0))
    hits = [n for n, row in enumerate(rows) if row[0] > 15 or row[1] > 30]  # type: ignore[operator]
    assert 140 < len(hits) < 260
    assert sum(b - a == 1 for a, b in pairwise(hits)) < 10


def test_gaps_are_null_for_a_while_and_end() -> None:
    rows = spoiled(Defects(Random(1), START, gaps_per_day=4.0, lasts_s=1_800.0))
    missing = sum(None in row for row in rows)
    assert 40 * 10 < missing < 40 * 60  # about forty of half an hour, some cut short
    assert None not in rows[0]
    assert all(row.count(None) <= 1 for row in rows)


def test_a_stuck_value_repeats_while_the_other_moves() -> None:
    rows = spoiled(Defects(Random(1), START, stuck_per_day=4.0, lasts_s=1_800.0))
    repeats = sum((a[0] == b[0]) != (a[1] == b[1]) for a, b in pairwise(rows))
    assert 40 * 10 < repeats < 40 * 60
    assert not any(a[0] == b[0] and a[1] == b[1] for a, b in pairwise(rows))


def test_a_battery_runs_down_and_its_voltage_with_it() -> None:
    battery = Battery(100.0, 1.0, 1.0, START)  # 100 h at rest
    voltages = []
    for hour in range(101):
        battery.draw(START + hour * HOUR_S)
        voltages.append(battery.voltage())
    assert battery.empty
    assert voltages == sorted(voltages, reverse=True)
    assert (voltages[0], voltages[-1]) == (3.65, 2.5)


def test_what_is_drawn_beside_the_rest_counts() -> None:
    battery = Battery(100.0, 0.5, 0.0, START)
    battery.draw(START, 25.0)
    assert battery.share == 0.25
    battery.draw(START - 10.0, 100.0)  # a time that ran back draws no rest
    assert battery.share == 0.0
    assert battery.voltage() == 2.5


def test_a_clock_is_ahead_runs_off_and_is_set() -> None:
    def ahead(t: float) -> float:
        return clock.read_ms(t) / 1000 - t

    clock = Clock(START, 2.0, 100.0)
    assert ahead(START) == 2.0
    assert ahead(START + DAY_S) == pytest.approx(2.0 + 8.64, abs=0.002)
    clock.set(START + DAY_S)
    assert ahead(START + DAY_S) == 0.0
    assert ahead(START + 2 * DAY_S) == pytest.approx(8.64, abs=0.002)
