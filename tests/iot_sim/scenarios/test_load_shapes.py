"""Load shapes, plans of faults, and what a fleet is seen through: the pure parts of a scenario."""

from __future__ import annotations

import pytest

from iot_sim.judge.filters import covers, matches
from iot_sim.scenarios.faults import Fault, plan
from iot_sim.scenarios.load_shapes import LoadShape
from tests.iot_sim.fleets import scenario_of


@pytest.mark.parametrize(
    ("shape", "points"),
    [
        (LoadShape(), {0: 1, 1e9: 1}),
        (
            LoadShape("ramp", low=0.2, high=1, start_s=10, end_s=20),
            {0: 0.2, 10: 0.2, 15: 0.6, 20: 1, 99: 1},
        ),
        (LoadShape("ramp", low=1, high=0, end_s=10), {0: 1, 5: 0.5, 10: 0}),
        (
            LoadShape("spike", low=1, high=5, start_s=10, for_s=2),
            {9: 1, 10: 5, 11.9: 5, 12: 1, 20: 1},
        ),
        (
            LoadShape("spike", low=1, high=5, start_s=10, for_s=2, every_s=10),
            {9: 1, 10: 5, 12: 1, 20: 5, 31: 5, 33: 1},
        ),
        (
            LoadShape("diurnal", low=0.5, high=1.5, period_s=100, peak_s=25),
            {25: 1.5, 75: 0.5, 0: 1, 50: 1, 125: 1.5},
        ),
        (
            LoadShape("steps", low=0, high=1, end_s=40, steps=4),
            {0: 0, 1: 0.25, 11: 0.5, 25: 0.75, 40: 1, 50: 1},
        ),
    ],
)
def test_shapes(shape: LoadShape, points: dict[float, float]) -> None:
    for t, factor in points.items():
        assert shape.at(t) == pytest.approx(factor), t
        if shape.kind != "steps":
            assert shape.scaled(0.5).at(t * 0.5) == pytest.approx(factor), t
    assert max(shape.at(t / 10) for t in range(2000)) <= shape.highest + 1e-9


def test_a_fault_hits_its_share_each_time() -> None:
    fault = Fault("stall", share=0.2, at_s=5, every_s=10, spread_s=4)
    hits = plan(fault, 100, 40, 7)
    assert hits == plan(fault, 100, 40, 7) != plan(fault, 100, 40, 8)
    assert hits == sorted(hits, key=lambda hit: (hit.at_s, hit.number))
    for start in (5, 15, 25):
        turn = [hit for hit in hits if start <= hit.at_s < start + 10]
        assert len({hit.number for hit in turn}) == 20
        assert all(hit.at_s <= start + 4 for hit in turn)
    assert all(hit.at_s < 40 for hit in hits)
    assert len({hit.number for hit in hits}) > 40  # not always the same


def test_a_fault_hits_once_and_somebody() -> None:
    (hit,) = plan(Fault("kill", share=0.001, at_s=1), 5, 10, 1)
    assert hit.at_s == 1 and 0 <= hit.number < 5
    assert plan(Fault("kill", at_s=10), 5, 10, 1) == []


def test_a_fleet_is_seen_through_one_filter() -> None:
    scenario = scenario_of("""
        duration_s = 10
        [[fleets]]
        name = "a"
        model = "environment"
        count = 500
        interval_s = 1
        topic = "site/{number}/x/{client_id}"
        [[fleets]]
        name = "edge"
        model = "sparkplug_node"
        count = 30
        interval_s = 1
        [[fleets]]
        name = "single"
        model = "meter"
        count = 1
        interval_s = 1
        topic = "one/meter"
    """)
    (seen,) = scenario.fleets[0].filters()
    assert covers("site/+/x/+/#", seen) and matches(seen, "site/7/x/a-7/telemetry")
    edge = scenario.fleets[1]
    for number in range(30):
        for text in edge.info.published(edge.spec(number, 0, 0.0)):
            assert any(covers(one, text) for one in edge.filters())
    assert len(edge.filters()) <= 4
    assert all(text.startswith("one/meter/") for text in scenario.fleets[2].filters())
