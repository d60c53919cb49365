"""The verdict and the reports that are made of a run."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from html.parser import HTMLParser

import pytest

from iot_sim.judge.ledger import Tally
from iot_sim.judge.outcome import COUNTERS, Outcome, Sample
from iot_sim.judge.verdict import LIMITS, judge, number
from iot_sim.report import report
from iot_sim.report.charts import Line, line_chart, nice, thin
from iot_sim.scenarios.file import load


def outcome_of(**changes: int) -> Outcome:
    """A good run of 1000 messages at each QoS, with the QoS 1 tally changed."""
    tallies = []
    for qos in (0, 1, 2):
        tally = Tally("telemetry", qos, sent=1000, delivered=1000)
        tally.acknowledged = 1000 if qos else 0
        for value in range(1, 1001):
            tally.latency.record(value * 10)
            tally.ack_latency.record(value)
        tallies.append(tally)
    for name, value in changes.items():
        setattr(tallies[1], name, value)
    outcome = Outcome(tallies=tallies, elapsed_s=10.0, flows=3)
    for second in range(10):
        sample = Sample(second, 300, 200, 300, 51, 51)
        sample.latency.record(5000 + second)
        outcome.series.append(sample)
    return outcome


DEFAULTS = {name: one.default for name, one in LIMITS.items() if one.default is not None}


def test_a_good_run_passes_every_limit_there_is_by_default() -> None:
    verdict = judge(outcome_of(), DEFAULTS)
    assert verdict.passed and not verdict.remarks
    assert len(verdict.checks) == len(DEFAULTS)


@pytest.mark.parametrize(
    ("counted", "limit"),
    [
        ("lost", "lost_max"),
        ("repeated", "repeated_max"),
        ("reordered", "reordered_max"),
        ("altered", "altered_max"),
        ("refused", "refused_max"),
        ("unconfirmed", "unconfirmed_max"),
    ],
)
def test_one_mistake_is_enough(counted: str, limit: str) -> None:
    verdict = judge(outcome_of(**{counted: 1}), DEFAULTS)
    assert [check.name for check in verdict.broken] == [limit]
    assert str(verdict.broken[0]) == f"{limit}: 1 > 0"
    assert judge(outcome_of(**{counted: 1}), {**DEFAULTS, limit: 1}).passed


def test_qos_0_has_a_limit_of_its_own() -> None:
    outcome = outcome_of()
    outcome.tallies[0].lost = 10
    assert [one.name for one in judge(outcome, DEFAULTS).broken] == ["lost_qos0_share_max"]
    assert judge(outcome, {**DEFAULTS, "lost_qos0_share_max": 0.01}).passed
    assert not judge(outcome, {**DEFAULTS, "lost_qos0_share_max": 0.009}).passed


@pytest.mark.parametrize(
    ("counter", "limit"),
    [
        ("sessions_lost", "sessions_lost_max"),
        ("sessions_strange", "sessions_strange_max"),
        ("takeovers_unanswered", "takeovers_unanswered_max"),
        ("dropped", "dropped_max"),
        ("protocol_errors", "protocol_errors_max"),
        ("device_errors", "device_errors_max"),
        ("unsubscribed", "unsubscribed_max"),
    ],
)
def test_counters_have_limits(counter: str, limit: str) -> None:
    assert counter in COUNTERS
    outcome = outcome_of()
    outcome.counters[counter] = 1
    assert [one.name for one in judge(outcome, DEFAULTS).broken] == [limit]


def test_wills_have_limits() -> None:
    outcome = outcome_of()
    outcome.wills.missing = outcome.wills.unexpected = 1
    broken = {one.name for one in judge(outcome, DEFAULTS).broken}
    assert broken == {"wills_missing_max", "wills_unexpected_max"}


def test_latency_limits_are_of_all_classes() -> None:
    outcome = outcome_of()
    limits = {"latency_p50_ms_max": 5.1, "latency_p99_ms_max": 9.95, "ack_p99_ms_max": 1}
    assert judge(outcome, limits).passed
    outcome.tallies[2].latency.record(3_000_000)
    assert judge(outcome, limits).passed  # one in three thousand
    assert not judge(outcome, {"latency_p999_ms_max": 9.9}).passed


def test_what_cannot_be_measured_breaks_nothing() -> None:
    verdict = judge(outcome_of(), {"broker_rss_mb_max": 1, "command_answered_share_min": 1})
    assert verdict.passed
    assert str(verdict.checks[0]) == "broker_rss_mb_max: not measured"


def test_an_empty_run_proves_nothing() -> None:
    verdict = judge(Outcome(), DEFAULTS)
    assert [str(one) for one in verdict.broken] == ["sent_min: 0 < 1"]


def test_what_makes_the_figures_doubtful_is_said() -> None:
    outcome = outcome_of(unjudged=7)
    outcome.is_drained = False
    outcome.was_interrupted = True
    outcome.unstamped = 3
    for _ in range(100):
        outcome.schedule_lag.record(500_000)
    text = " ".join(judge(outcome, DEFAULTS).remarks)
    for word in ("--workers", "drain_s", "interrupted", "no observer", "without a stamp"):
        assert word in text


def test_the_report_as_data_is_json_and_complete() -> None:
    scenario, outcome = load("factory"), outcome_of(lost=1)
    verdict = judge(outcome, scenario.limits)
    data = report.to_data(scenario, outcome, verdict, broker="mqtt://x:1", workers=2)
    again = json.loads(json.dumps(data))
    assert again == data
    assert data["format"] == 1
    assert data["verdict"]["passed"] is False
    assert data["totals"]["lost"] == 1 and data["totals"]["sent"] == 3000
    assert len(data["series"]) == 10 and len(data["messages"]) == 3
    assert set(data["latency"]) == {
        "count", "mean_ms", "min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "p99_9_ms", "max_ms",
    }  # fmt: skip


class Page(HTMLParser):
    """What a page would load, and whether its tags close."""

    VOID = ("meta", "br", "line", "polyline", "i")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_says_the_verdict() -> None:
    scenario, outcome = load("factory"), outcome_of(lost=1)
    outcome.errors = ["<script>alert(1)</script>"]
    outcome.examples = {"lost": ["run/<b>dev</b>/telemetry.1.0/3"]}
    outcome.broker_cpu_cores, outcome.broker_rss_bytes_max = 0.5, 40_000_000
    for sample in outcome.series:
        sample.broker_cpu, sample.broker_rss_bytes = 0.5, 40_000_000
    verdict = judge(outcome, scenario.limits)
    page = report.to_html(scenario, outcome, verdict, broker="mqtt://x:1", workers=1)
    parser = Page()
    parser.feed(page)
    assert not parser.open and not parser.loads
    assert "<script" not in page and "<b>dev" not in page and "url(" not in page
    assert "FAILED" in page and "lost_max" in page and "&lt;script&gt;" in page
    assert page.count("<svg") == 5


def test_the_terminal_gets_the_same_verdict() -> None:
    scenario, outcome = load("factory"), outcome_of(lost=1)
    outcome.examples = {"lost": ["run/dev/telemetry.1.0/3"]}
    lines = report.summary_lines(scenario, outcome, judge(outcome, scenario.limits))
    assert lines[-1] == "FAILED"
    assert any(line.startswith("  limit broken: lost_max: 1 > 0") for line in lines)
    assert any("telemetry.1.0/3" in line for line in lines)
    good = report.summary_lines(scenario, outcome_of(), judge(outcome_of(), scenario.limits))
    assert good[-1] == "PASSED"


def test_charts_are_well_formed_and_small() -> None:
    values = [None if n % 7 == 0 else float(n % 50) for n in range(10_000)]
    seconds = [float(n) for n in range(10_000)]
    chart = line_chart("a <chart>", seconds, [Line("one", "a", values)], str)
    root = xml.etree.ElementTree.fromstring(chart)
    assert root.get("aria-label") == "a <chart>"
    assert len(chart) < 20_000
    assert len(thin(seconds)) <= 360 and max(v for v in thin(seconds) if v is not None) == 9999
    empty = line_chart("nothing", [1.0], [Line("one", "a", [None])], str)
    xml.etree.ElementTree.fromstring(empty)


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 1.2), (99, 100), (3e6, 3.2e6)])
def test_axes_end_with_round_numbers(value: float, top: float) -> None:
    assert nice(value) == pytest.approx(top)


def test_figures_for_people() -> None:
    assert [number(one) for one in (0, 1234567, 0.25, 1e-6)] == ["0", "1,234,567", "0.25", "1e-06"]
