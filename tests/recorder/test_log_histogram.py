"""Histograms of times in few bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.recorder.log_histogram import LogHistogram


def test_without_times() -> None:
    assert LogHistogram().quantile(0.5) == 0.0


@given(st.lists(st.floats(0.0, 30_000.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_a_quarter_too_high_at_most(times: list[float], share: float) -> None:
    histogram = LogHistogram()
    for seconds in times:
        histogram.add(seconds)
    times.sort()
    exact = times[max(0, -int(-share * len(times) // 1) - 1)]
    found = histogram.quantile(share)
    assert exact <= found <= exact * 1.25 + 0.001


def test_what_is_long_ago_counts_less() -> None:
    histogram = LogHistogram()
    for _ in range(70_000):
        histogram.add(1.0)
    for _ in range(60_000):
        histogram.add(0.01)
    assert histogram.quantile(0.5) < 0.02


@pytest.mark.parametrize("seconds", [-5.0, 1e9])
def test_extremes(seconds: float) -> None:
    histogram = LogHistogram()
    histogram.add(seconds)
    assert histogram.quantile(1.0) > 0.0


def test_a_mixture() -> None:
    rng = random.Random(1)
    histogram = LogHistogram()
    for _ in range(10_000):
        histogram.add(rng.choice([0.004] * 97 + [2.0] * 3))
    assert 0.004 <= histogram.quantile(0.5) <= 0.005
    assert 2.0 <= histogram.quantile(0.99) <= 2.5
