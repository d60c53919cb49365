"""Two reports compared: what is worse, what is noise, and what cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest

from iot_sim.judge.outcome import Outcome
from iot_sim.judge.verdict import judge
from iot_sim.report import compare, report
from iot_sim.scenarios.file import load
from tests.iot_sim.outcomes import outcome_of


def report_of(outcome: Outcome, name: str = "factory") -> dict[str, Any]:
    scenario = load(name)
    verdict = judge(outcome, scenario.limits)
    return report.to_data(scenario, outcome, verdict, broker="mqtt://x:1", workers=1)


def worse(old: Outcome, new: Outcome, tolerance: float = 0.1) -> set[str]:
    found = compare.compare(report_of(old), report_of(new), tolerance)
    return {one.name for one in found if one.is_worse}


def slower(factor: float) -> Outcome:
    outcome = outcome_of()
    for tally in outcome.tallies:
        for _ in range(1000):
            tally.latency.record(round(100_000 * factor))
    return outcome


def test_a_report_is_not_worse_than_itself() -> None:
    assert worse(outcome_of(), outcome_of(), 0.0) == set()
    data = report_of(outcome_of())
    lines = compare.lines(compare.compare(data, data, 0.1), [], 0.1)
    assert lines[-1] == "NOT WORSE by more than 10%"
    assert any(line.split()[:3] == ["sent", "a", "second"] for line in lines)
    assert not any("lost" in line for line in lines)


@pytest.mark.parametrize("name", ["lost", "repeated", "reordered", "altered", "refused"])
def test_one_error_where_there_was_none_is_worse(name: str) -> None:
    assert worse(outcome_of(), outcome_of(**{name: 1})) == {name, "limits broken"}
    assert worse(outcome_of(**{name: 1}), outcome_of()) == set()


def test_errors_are_shares_of_what_was_sent() -> None:
    longer = outcome_of(late=20)
    for tally in longer.tallies:
        tally.sent *= 2
        tally.delivered *= 2
    longer.elapsed_s *= 2
    assert worse(outcome_of(late=10), longer) == set()
    assert worse(outcome_of(late=10), outcome_of(late=20)) == {"late"}


def test_a_lower_rate_is_worse() -> None:
    slow = outcome_of()
    slow.elapsed_s = 12.0
    assert worse(outcome_of(), slow) == {"sent a second", "delivered a second"}
    assert worse(outcome_of(), slow, 0.2) == set()
    assert worse(slow, outcome_of()) == set()


def test_a_latency_is_worse_by_the_tolerance_and_a_millisecond() -> None:
    names = {f"delivery {one} (ms)" for one in ("p95", "p99", "p99.9")}
    assert names <= worse(slower(1), slower(1.2))
    assert worse(slower(1), slower(1.05)) == set()
    assert worse(slower(1.2), slower(1)) == set()
    quick, other = outcome_of(), outcome_of()
    for tally in quick.tallies:
        tally.ack_latency.record(1)
    for tally in other.tallies:
        for _ in range(2000):
            tally.ack_latency.record(900)
    assert worse(quick, other) == set()


def test_the_brokers_process_is_compared_if_both_were_measured() -> None:
    old, new = outcome_of(), outcome_of()
    new.broker_cpu_cores, new.broker_rss_bytes_max = 1.0, 50_000_000
    assert worse(old, new) == set()
    old.broker_cpu_cores, old.broker_rss_bytes_max = 0.5, 50_000_000
    assert worse(old, new) == {"broker cores"}


def test_what_makes_two_runs_different_is_noted() -> None:
    late = outcome_of()
    late.schedule_lag.record(500_000)
    late.was_interrupted = True
    old, new = report_of(outcome_of()), report_of(late)
    new["scenario"]["devices"] = 30
    assert list(compare.remarks(old, new)) == [
        "devices is 300 in the old report and 30 in the new",
        "the new run was interrupted",
        "the simulator was late itself in the new run",
    ]


def test_other_scenarios_and_other_files_are_refused() -> None:
    with pytest.raises(compare.ReportError, match="different scenarios: factory and soak"):
        compare.compare(report_of(outcome_of()), report_of(outcome_of(), "soak"), 0.1)
    others: list[Any] = [[], {}, 3, {"scenario": {}}]
    for data in others:
        with pytest.raises(compare.ReportError, match=r"x\.json: not a report"):
            compare.check_report(data, "x.json")
    with pytest.raises(compare.ReportError, match=r"x\.json: format 2; this version reads 1"):
        compare.check_report({**report_of(outcome_of()), "format": 2}, "x.json")
