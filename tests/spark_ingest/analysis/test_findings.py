"""The pure machines of `anomalies` and `quality`: no Spark in sight."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from spark_ingest.analysis.findings import Findings
from spark_ingest.analysis.findings import QualityLimits as QualityLimits
from spark_ingest.analysis.keyed import Finding, Machine, Reading
from spark_ingest.analysis.statistics import AnomalyLimits, Statistics
from tests.property_examples import examples

SECOND = 1_000_000


def reading(
    number: int,
    value: float | None = None,
    *,
    at_s: float | None = None,
    sequence: int | None = None,
    is_rejected: bool = False,
) -> Reading:
    at_us = int((number if at_s is None else at_s) * SECOND)
    values = {} if value is None else {"t": value}
    return Reading(0, number, at_us, at_us, sequence, is_rejected, values)


def feed(machine: Machine, readings: Iterable[Reading]) -> list[Finding]:
    found: list[Finding] = []
    for one in readings:
        found += machine.read(one)
    return found


def told(found: Iterable[Finding]) -> list[tuple[object, ...]]:
    return [(one["kind"], one["began_us"], one["ended_us"]) for one in found]


def noisy(count: int) -> list[float]:
    draw = random.Random(3)
    return [round(draw.gauss(20, 0.5), 2) for _ in range(count)]


def test_a_spike_is_one_alert_with_an_end() -> None:
    values = noisy(100)
    values[60] = 60.0
    found = feed(Statistics("d", AnomalyLimits()), [reading(n, v) for n, v in enumerate(values)])
    outliers = [one for one in found if one["kind"] == "outlier"]
    assert told(outliers) == [
        ("outlier", 60 * SECOND, None),
        ("outlier", 60 * SECOND, 61 * SECOND),
    ]
    assert outliers[0]["value"] == 60.0 and abs(outliers[0]["usual"] - 20) < 1
    assert {one["kind"] for one in found} == {"outlier", "jump"}


def test_a_new_level_is_learnt() -> None:
    values = noisy(100) + [value + 10 for value in noisy(300)]
    found = feed(Statistics("d", AnomalyLimits()), [reading(n, v) for n, v in enumerate(values)])
    outliers = [one for one in found if one["kind"] == "outlier"]
    assert len(outliers) == 2 and outliers[1]["ended_us"] is not None


def test_nothing_is_unusual_in_noise_or_before_it_is_known() -> None:
    assert (
        feed(Statistics("d", AnomalyLimits()), [reading(n, v) for n, v in enumerate(noisy(2_000))])
        == []
    )
    few = [reading(n, v) for n, v in enumerate([20.0, 20.1, 900.0])]
    assert feed(Statistics("d", AnomalyLimits()), few) == []


def test_silence_is_the_same_by_the_timer_and_by_the_next_row() -> None:
    limits = AnomalyLimits(silence_us=10 * SECOND)
    by_row, by_timer = Statistics("d", limits), Statistics("d", limits)
    feed(by_row, [reading(0), reading(5)])
    feed(by_timer, [reading(0), reading(5)])
    assert by_timer.silent_at_us() == 15 * SECOND
    assert told(by_timer.on_silence()) == [("silent", 15 * SECOND, None)]
    assert by_timer.silent_at_us() is None and list(by_timer.on_silence()) == []
    end = [("silent", 15 * SECOND, 60 * SECOND)]
    assert told(by_timer.read(reading(60))) == end
    assert told(by_row.read(reading(60))) == end
    assert by_timer.state() == by_row.state()


def test_a_late_row_has_no_rate() -> None:
    values = noisy(50)
    rows = [reading(n, v) for n, v in enumerate(values)]
    rows.append(reading(50, 20.0, at_s=3))
    rows.append(reading(51, 20.0, at_s=49))
    assert feed(Statistics("d", AnomalyLimits(jump=1e-6, warm_up=60, sigma=1e6)), rows) == []


def quality(limits: QualityLimits | None = None) -> Findings:
    return Findings("d", limits or QualityLimits())


def totals(machine: Findings) -> dict[str, object]:
    (found,) = machine.summary()
    return {key: value for key, value in found.items() if isinstance(value, int) and value}


def sequences(*numbers: int) -> list[Reading]:
    return [reading(n, sequence=number) for n, number in enumerate(numbers)]


def test_a_gap_that_is_filled_ends() -> None:
    machine = quality()
    rows = sequences(1, 2, 6, 4, 3, 5)
    found = feed(machine, rows)
    assert [(one["kind"], one["number"], one["count"], one["ended_us"]) for one in found] == [
        ("gap", 3, 3, None),
        ("gap", 3, 3, 5 * SECOND),
    ]
    assert totals(machine)["reordered"] == 3 and "missing" not in totals(machine)


def test_duplicates_and_restarts_are_told_apart_by_event_time() -> None:
    machine = quality()
    rows = [
        reading(0, sequence=7), reading(1, sequence=8),
        reading(2, sequence=8, at_s=1), reading(3, sequence=1), reading(4, sequence=2),
    ]  # fmt: skip
    assert [one["kind"] for one in feed(machine, rows)] == ["duplicate", "restart"]
    assert totals(machine)["duplicates"] == totals(machine)["restarts"] == 1


def test_a_stuck_sensor_is_told_once_and_when_it_moves() -> None:
    machine = quality(QualityLimits(stuck_count=3, stuck_us=2 * SECOND))
    values = [1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]
    found = feed(machine, [reading(n, v) for n, v in enumerate(values)])
    assert told(found) == [("stuck", SECOND, None), ("stuck", SECOND, 5 * SECOND)]
    assert found[1]["count"] == 4


@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 30)), max_size=60),
    st.integers(0, 60),
)
@examples(150)
def test_quality_counts_what_a_set_counts(numbers: list[tuple[int, bool, int]], cut: int) -> None:
    """Without restarts: missing is what lies between and was not seen; state survives JSON."""
    machine, other = quality(), quality()
    rows = [
        reading(at, sequence=number, is_rejected=is_rejected, at_s=0)
        for at, (number, is_rejected, _) in enumerate(numbers)
    ]
    found = feed(machine, rows)
    again = feed(other, rows[:cut])
    revived = quality()
    revived.restore(json.loads(json.dumps(other.state())))
    again += feed(revived, rows[cut:])
    assert again == found and revived.state() == machine.state()
    good = [number for number, is_rejected, _ in numbers if not is_rejected]
    seen: set[int] = set()
    duplicates = 0
    for number in good:
        duplicates += number in seen or (bool(seen) and number < good[0])
        seen.add(number)
    counted = totals(machine)
    assert counted.get("duplicates", 0) == duplicates
    if good:
        between = set(range(good[0], max(good) + 1))
        assert counted.get("missing", 0) == len(between - seen)


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(-5, 40), st.booleans()), max_size=80),
    st.integers(0, 80),
)
@examples(150)
def test_statistics_go_on_from_their_state(values: list[tuple[float, int, bool]], cut: int) -> None:
    limits = AnomalyLimits(warm_up=5, sigma=3, silence_us=20 * SECOND)
    rows = []
    now = 100
    for at, (value, step, is_rejected) in enumerate(values):
        now += step
        rows.append(reading(at, value, at_s=now, is_rejected=is_rejected))
    whole, first, second = (Statistics("d", limits) for _ in range(3))
    found = feed(whole, rows)
    again = feed(first, rows[:cut])
    second.restore(json.loads(json.dumps(first.state())))
    again += feed(second, rows[cut:])
    assert again == found and second.state() == whole.state()
    keys = [(one["metric"], one["kind"], one["began_us"], one["ended_us"]) for one in found]
    assert len(keys) >= len(set(keys))
