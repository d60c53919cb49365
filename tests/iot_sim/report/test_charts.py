"""Charts: well-formed, small, with round numbers at their ends."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest

from iot_sim.report.charts import (
    LEFT,
    TICKS_MAX,
    Line,
    abbreviate,
    downsample,
    line_chart,
    milliseconds,
    step_of_time,
    time_text,
    value_step,
)

ROOT = Path(__file__).resolve().parents[3]


def test_charts_are_well_formed_and_small() -> None:
    values = [None if n % 7 == 0 else float(n % 50) for n in range(10_000)]
    seconds = [float(n) for n in range(10_000)]
    chart = line_chart("a <chart>", seconds, [Line("one", "a", values)], str)
    root = xml.etree.ElementTree.fromstring(chart)
    assert root.get("aria-label") == "a <chart>"
    assert len(chart) < 20_000
    assert (
        len(downsample(seconds)) <= 360
        and max(v for v in downsample(seconds) if v is not None) == 9999
    )
    empty = line_chart("nothing", [1.0], [Line("one", "a", [None])], str)
    xml.etree.ElementTree.fromstring(empty)


@pytest.mark.parametrize(
    ("most", "step"), [(0, 1), (1, 0.2), (1.1, 0.25), (5, 1), (99, 20), (740, 200), (3e6, 1e6)]
)
def test_values_have_round_ticks(most: float, step: float) -> None:
    assert value_step(most) == pytest.approx(step)
    assert most / step <= TICKS_MAX + 1e-9


@pytest.mark.parametrize(
    ("seconds", "step", "last"),
    [(1, 1, "1 s"), (15, 5, "15 s"), (25, 5, "25 s"), (90, 15, "90 s"), (60, 10, "60 s"),
     (600, 120, "10 min"), (4_000, 900, "60 min"), (86_400, 14_400 + 7_200, "24 h")],
)  # fmt: skip
def test_times_have_the_ticks_of_a_clock(seconds: int, step: int, last: str) -> None:
    found = step_of_time(seconds)
    assert found == step
    assert time_text(seconds // found * found, found) == last


def test_a_line_that_another_covers_still_shows() -> None:
    lines = [Line("sent", "a", [1.0, 2.0]), Line("delivered", "b", [1.0, 2.0])]
    drawn = xml.etree.ElementTree.fromstring(line_chart("both", [1.0, 2.0], lines, str))
    widths = [float(one.get("stroke-width", "0")) for one in drawn.iter("polyline")]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 2


NARROW_PX = 19 * 0.62  # a digit in the type of narrow pages: 19 px, as report.html has it


@pytest.mark.parametrize("most", [0.3, 1.2, 9.9, 74, 99, 131, 999, 1_250, 74_000, 599_000])
def test_labels_of_the_axis_have_room_and_one_form(most: float) -> None:
    """Not `75.0 ms` below `100 ms`, and none cut off at the left."""
    step = value_step(most)
    for show in (milliseconds, abbreviate):
        labels = [show(tick * step) for tick in range(TICKS_MAX + 1)]
        assert all(len(label) * NARROW_PX <= LEFT - 6 for label in labels), labels
        assert not [label for label in labels if ".0" in label and "0.0" not in label], labels
    assert "font-size: 19px" in (ROOT / "iot_sim/report/report.html").read_text()
