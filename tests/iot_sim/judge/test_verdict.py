"""The verdict on a run: each limit, and what makes the figures doubtful."""

from __future__ import annotations

import pytest

from iot_sim.judge.outcome import COUNTERS, Outcome
from iot_sim.judge.verdict import LIMITS, judge, number
from tests.iot_sim.outcomes import outcome_of

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
    for word in ("--workers", "drain_s", "interrupted", "without an observer", "without a stamp"):
        assert word in text


def test_figures_for_people() -> None:
    assert [number(one) for one in (0, 1234567, 0.25, 1e-6)] == ["0", "1,234,567", "0.25", "1e-06"]
