"""Shares of a run on several machines, under one verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iot_sim.judge.outcome import Outcome
from iot_sim.judge.verdict import judge
from iot_sim.report import report, share
from iot_sim.report.compare import ReportError
from iot_sim.scenarios.file import load
from tests.iot_sim.outcomes import outcome_of


def share_of(index: int, count: int, outcome: Outcome) -> dict[str, Any]:
    scenario = load("factory")
    verdict = judge(outcome, scenario.limits)
    data = report.to_data(scenario, outcome, verdict, broker="mqtt://x:1", workers=2)
    data["share"] = share.share_data(index, count, outcome)
    read: dict[str, Any] = json.loads(json.dumps(data))
    return read


def three() -> dict[str, dict[str, Any]]:
    return {str(n): share_of(n, 3, outcome_of(lost=n - 1)) for n in (1, 2, 3)}


def test_an_outcome_survives_a_report_without_loss() -> None:
    outcome = outcome_of(lost=3)
    outcome.examples = {"lost": ["a/b/c"]}
    outcome.counters["connects"] = 7
    outcome.schedule_lag.record(123_456)
    outcome.wills.due = 2
    outcome.commands.sent = 4
    outcome.series[3].broker_cpu = 0.5
    alone = share.merge({"x": share_of(1, 1, outcome)})
    before = report.to_data(load("factory"), outcome, alone.verdict, broker="b", workers=2)
    after = report.to_data(alone.scenario, alone.outcome, alone.verdict, broker="b", workers=2)
    before["ended_at"] = after["ended_at"]
    assert after == before
    assert alone.outcome.counters["never"] == 0


def test_shares_add_up_to_one_verdict() -> None:
    merged = share.merge(three())
    assert merged.outcome.total("sent") == 9000 and merged.outcome.total("lost") == 3
    assert merged.outcome.latency().count == 9000
    assert merged.workers == 6 and merged.broker == "mqtt://x:1"
    assert [str(check) for check in merged.verdict.broken] == ["lost_max: 3 > 0"]
    assert len(merged.outcome.series) == 10 and merged.outcome.series[0].sent == 900
    text = "\n".join(report.summary_lines(merged.scenario, merged.outcome, merged.verdict))
    assert text.startswith("factory: 300 devices") and text.endswith("FAILED")
    page = report.to_html(merged.scenario, merged.outcome, merged.verdict, broker="b", workers=6)
    assert "FAILED" in page


def test_an_interrupted_share_interrupts_the_whole() -> None:
    outcome = outcome_of()
    outcome.was_interrupted = True
    merged = share.merge({"1": share_of(1, 2, outcome), "2": share_of(2, 2, outcome_of())})
    assert merged.verdict.word == "INTERRUPTED"


def test_shares_that_began_apart_are_noted() -> None:
    late = outcome_of()
    late.began_at = 7.5
    merged = share.merge({"1": share_of(1, 2, outcome_of()), "2": share_of(2, 2, late)})
    assert merged.verdict.remarks == (
        "the shares began 7.5 s apart: give all of them the same --start-at",
    )


def test_what_one_machine_measured_of_the_broker_is_kept() -> None:
    near = outcome_of()
    near.broker_cpu_cores, near.broker_rss_bytes_max = 0.5, 1000
    near.series[2].broker_cpu = 0.7
    merged = share.merge({"1": share_of(1, 2, outcome_of()), "2": share_of(2, 2, near)})
    assert (merged.outcome.broker_cpu_cores, merged.outcome.broker_rss_bytes_max) == (0.5, 1000)
    assert [one.broker_cpu for one in merged.outcome.series[1:4]] == [None, 0.7, None]


@pytest.mark.parametrize(
    ("path", "keys", "value", "text"),
    [
        ("2", "share/index", 1, "2 and 1 are both share 1/3"),
        ("2", "share/count", 4, "2 is a share of 4, and 1 of 3"),
        ("3", "scenario/seed", 9, "seed of the scenario is not the same in 1 and 3"),
        ("3", "verdict/checks", [], "of the limits is not the same in 1 and 3"),
        ("1", "share", None, "1: not a report of fleetmq sim run --share"),
        ("2", "share/outcome", None, "an incomplete report"),
        ("2", "share/outcome/tallies", [3], "an incomplete report"),
        ("2", "share/outcome/schedule_lag", [], "an incomplete report"),
        ("2", "share/outcome/counters", 5, "an incomplete report"),
    ],
)
def test_reports_that_do_not_belong_together_are_refused(
    path: str, keys: str, value: Any, text: str
) -> None:
    reports = three()
    *way, last = keys.split("/")
    place = reports[path]
    for key in way:
        place = place[key]
    place[last] = value
    with pytest.raises(ReportError, match=text):
        share.merge(reports)


def test_a_share_that_is_missing_is_named() -> None:
    reports = three()
    del reports["2"]
    with pytest.raises(ReportError, match=r"no report of share 2/3: 2 of 3 are there"):
        share.merge(reports)
    for one in reports.values():
        one["share"]["count"] = 10**15
    with pytest.raises(ReportError, match=r"no report of share 2/1000000000000000"):
        share.merge(reports)
