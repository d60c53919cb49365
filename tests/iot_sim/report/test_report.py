"""Reports of a run: as data, as a page that stands alone, and for the terminal."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from iot_sim.judge.verdict import judge
from iot_sim.report import report
from iot_sim.scenarios.file import load
from tests.iot_sim.outcomes import outcome_of


def test_the_report_as_data_is_json_and_complete() -> None:
    scenario, outcome = load("factory"), outcome_of(lost=1)
    verdict = judge(outcome, scenario.limits)
    data = report.to_data(scenario, outcome, verdict, broker="mqtt://x:1", workers=2)
    again = json.loads(json.dumps(data))
    assert again == data
    assert data["format"] == 1
    assert data["verdict"]["passed"] is False
    assert data["totals"]["lost"] == 1 and data["totals"]["sent"] == 3000
    assert data["latency"]["max_ms"] == 10 and data["latency_from_due"]["max_ms"] == 20
    assert data["messages"][0]["ack_latency_from_due"]["max_ms"] == 2
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
    assert sum(line.startswith("    from due p50 ") for line in lines) == 2
    assert any(line.startswith("  limit broken: lost_max: 1 > 0") for line in lines)
    assert any("telemetry.1.0/3" in line for line in lines)
    good = report.summary_lines(scenario, outcome_of(), judge(outcome_of(), scenario.limits))
    assert good[-1] == "PASSED"


def test_an_interrupted_run_has_not_passed() -> None:
    scenario, outcome = load("factory"), outcome_of()
    outcome.was_interrupted = True
    verdict = judge(outcome, scenario.limits)
    data = report.to_data(scenario, outcome, verdict, broker="mqtt://x:1", workers=1)
    page = report.to_html(scenario, outcome, verdict, broker="mqtt://x:1", workers=1)
    assert report.summary_lines(scenario, outcome, verdict)[-1] == "INTERRUPTED"
    assert data["verdict"]["result"] == "interrupted" and data["verdict"]["passed"] is False
    assert ">INTERRUPTED</span>" in page and "PASSED" not in page


def test_a_simulator_that_was_late_says_so_beside_the_verdict() -> None:
    scenario, outcome = load("factory"), outcome_of()
    outcome.schedule_lag.record(150_000)
    verdict = judge(outcome, scenario.limits)
    data = report.to_data(scenario, outcome, verdict, broker="mqtt://x:1", workers=1)
    page = report.to_html(scenario, outcome, verdict, broker="mqtt://x:1", workers=1)
    said = "the simulator was late itself: p99 150 ms"
    assert report.summary_lines(scenario, outcome, verdict)[-1] == f"PASSED ({said})"
    assert data["verdict"]["simulator_was_late"] is True
    assert f'PASSED</span> <span class="doubt">{said}</span>' in page
    on_time = report.to_html(
        scenario, outcome_of(), judge(outcome_of(), {}), broker="mqtt://x:1", workers=1
    )
    assert 'class="doubt"' not in on_time
