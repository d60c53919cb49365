"""JUnit XML and CSV: what CI and spreadsheets read of a run."""

from __future__ import annotations

import csv
from xml.etree import ElementTree

from iot_sim.judge.outcome import Outcome
from iot_sim.judge.verdict import LIMITS, judge
from iot_sim.report.files import to_csv, to_junit
from iot_sim.scenarios.file import load
from tests.iot_sim.outcomes import outcome_of

LIMITS_SET = {"lost_max": 0, "latency_p99_ms_max": 250, "command_answered_share_min": 1}


def suite_of(outcome: Outcome) -> ElementTree.Element:
    verdict = judge(outcome, LIMITS_SET)
    text = to_junit(load("factory"), outcome, verdict, broker="mqtt://x:1")
    (suite,) = ElementTree.fromstring(text.encode()).findall("testsuite")
    return suite


def test_each_limit_is_a_test_case() -> None:
    suite = suite_of(outcome_of())
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert list(cases) == ["run", *LIMITS_SET]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        "4", "0", "0", "1",
    ]  # fmt: skip
    assert all(case.get("classname") == "fleetmq.sim.factory" for case in cases.values())
    assert [tag.tag for tag in cases["command_answered_share_min"]] == ["skipped"]
    assert not list(cases["lost_max"])
    said = suite.findtext("system-out") or ""
    assert said.endswith("PASSED") and "factory: 300 devices" in said


def test_a_broken_limit_is_a_failure_with_both_values() -> None:
    suite = suite_of(outcome_of(lost=3))
    (failure,) = suite.findall("testcase[@name='lost_max']/failure")
    assert suite.get("failures") == "1"
    assert failure.get("message") == "lost_max: 3 > 0" and failure.text == LIMITS["lost_max"].help


def test_an_interrupted_run_is_an_error() -> None:
    outcome = outcome_of()
    outcome.was_interrupted = True
    suite = suite_of(outcome)
    assert suite.get("errors") == "1"
    assert suite.find("testcase[@name='run']/error") is not None


def test_texts_that_xml_cannot_contain_are_replaced() -> None:
    outcome = outcome_of()
    outcome.errors = ["dev-1: \x00\x1b[31m <b>&\ud800\uffff"]
    assert "dev-1: \ufffd\ufffd[31m <b>&\ufffd\ufffd" in (
        suite_of(outcome).findtext("system-out") or ""
    )


def test_csv_has_a_row_for_each_second() -> None:
    outcome = outcome_of()
    outcome.series[0].broker_cpu = 0.5
    rows = list(csv.DictReader(to_csv(outcome.series).splitlines()))
    assert [row["second"] for row in rows] == [str(n) for n in range(10)]
    assert (rows[0]["sent"], rows[0]["acknowledged"], rows[0]["delivered"]) == ("300", "200", "300")
    assert (rows[0]["broker_cpu"], rows[1]["broker_cpu"]) == ("0.5", "")
    assert float(rows[3]["p99_ms"]) > 4
    assert to_csv([]).startswith("second,sent,acknowledged,delivered,")
