"""The verdict: limits on what a run saw. Pure.

A limit is a name, what it measures, and a default where every broker should hold it. Names that
end in `_max` may not be exceeded, names that end in `_min` must be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from iot_sim.judge.outcome import Outcome

Measure = Callable[[Outcome], float | None]
_PROMISED: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Limit:
    help: str
    measure: Measure  # None: there is nothing to measure in this run
    default: float | None = None  # None: only when the scenario says so


@dataclass(frozen=True, slots=True)
class Check:
    """A limit compared with the measured value of a run."""

    name: str
    allowed: float
    measured: float | None
    passed: bool

    def __str__(self) -> str:
        if self.measured is None:
            return f"{self.name}: not measured"
        sign = "<=" if self.name.endswith("_max") else ">="
        if not self.passed:
            sign = ">" if self.name.endswith("_max") else "<"
        return f"{self.name}: {number(self.measured)} {sign} {number(self.allowed)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    checks: tuple[Check, ...]
    remarks: tuple[str, ...]  # what to know when reading the figures

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def broken(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    def to_data(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "checks": [
                {
                    "limit": check.name,
                    "allowed": check.allowed,
                    "measured": check.measured,
                    "passed": check.passed,
                    "help": LIMITS[check.name].help,
                }
                for check in self.checks
            ],
            "remarks": list(self.remarks),
        }


def _total(name: str, qos: tuple[int, ...] = (0, 1, 2)) -> Measure:
    return lambda outcome: outcome.total(name, qos)


def _counter(name: str) -> Measure:
    return lambda outcome: outcome.counters[name]


def _share(part: Callable[[Outcome], float], whole: Callable[[Outcome], float]) -> Measure:
    def measure(outcome: Outcome) -> float | None:
        return part(outcome) / whole(outcome) if whole(outcome) else None

    return measure


def _latency(percent: float) -> Measure:
    return lambda outcome: _ms(outcome.latency().percentile(percent))


def _ms(us: int) -> float:
    return us / 1000


def _judged_qos0(outcome: Outcome) -> float:
    return sum(tally.sent - tally.unjudged for tally in outcome.tallies if not tally.qos)


LIMITS: Final[dict[str, Limit]] = {
    "sent_min": Limit("messages sent; fewer and the run shows nothing", _total("sent"), 1),
    "lost_max": Limit(
        "QoS 1 and 2: acknowledged and never delivered", _total("lost", _PROMISED), 0
    ),
    "lost_qos0_share_max": Limit(
        "QoS 0: share of what was sent and never delivered",
        _share(lambda one: one.total("lost", (0,)), _judged_qos0),
        0,
    ),
    "unconfirmed_max": Limit(
        "QoS 1 and 2: never acknowledged, though the client stayed", _total("unconfirmed"), 0
    ),
    "refused_max": Limit("publications the broker refused", _total("refused"), 0),
    "repeated_max": Limit("delivered twice without a reason", _total("repeated"), 0),
    "redelivered_share_max": Limit(
        "QoS 1: share delivered again after a reconnect",
        _share(lambda one: one.total("redelivered"), lambda one: one.total("delivered", (1,))),
    ),
    "reordered_max": Limit("delivered behind a later one of its flow", _total("reordered"), 0),
    "altered_max": Limit("payload, topic or QoS changed on the way", _total("altered"), 0),
    "unknown_max": Limit("delivered and never sent", lambda one: one.unknown, 0),
    "late_share_max": Limit(
        "share delivered later than late_after_ms",
        _share(lambda one: one.total("late"), lambda one: one.total("delivered")),
    ),
    "latency_p50_ms_max": Limit("send to delivery, median", _latency(50)),
    "latency_p95_ms_max": Limit("send to delivery, 95th percentile", _latency(95)),
    "latency_p99_ms_max": Limit("send to delivery, 99th percentile", _latency(99)),
    "latency_p999_ms_max": Limit("send to delivery, 99.9th percentile", _latency(99.9)),
    "ack_p99_ms_max": Limit(
        "send to acknowledgement, 99th percentile",
        lambda one: _ms(one.ack_latency().percentile(99)),
    ),
    "connect_p99_ms_max": Limit(
        "CONNECT to CONNACK, 99th percentile",
        lambda one: _ms(one.connect_latency.percentile(99)),
    ),
    "command_answered_share_min": Limit(
        "share of commands that were answered in time",
        _share(lambda one: one.commands.answered, lambda one: one.commands.sent),
    ),
    "command_p99_ms_max": Limit(
        "command to answer, 99th percentile",
        lambda one: _ms(one.commands.latency.percentile(99)),
    ),
    "sessions_lost_max": Limit(
        "sessions that should have been there", _counter("sessions_lost"), 0
    ),
    "sessions_strange_max": Limit(
        "sessions that were there after a clean start", _counter("sessions_strange"), 0
    ),
    "takeovers_unanswered_max": Limit(
        "old connections left open behind a twin", _counter("takeovers_unanswered"), 0
    ),
    "wills_missing_max": Limit(
        "wills that were due and never came", lambda one: one.wills.missing, 0
    ),
    "wills_unexpected_max": Limit(
        "wills that came although their client said goodbye, or twice",
        lambda one: one.wills.unexpected + one.wills.repeated,
        0,
    ),
    "dropped_max": Limit("connections the broker ended without a reason", _counter("dropped"), 0),
    "connect_failures_max": Limit(
        "connections that failed or were refused", _counter("connect_failures")
    ),
    "unsubscribed_max": Limit("subscriptions the broker refused", _counter("unsubscribed"), 0),
    "protocol_errors_max": Limit(
        "packets of the broker that break the protocol", _counter("protocol_errors"), 0
    ),
    "device_errors_max": Limit("mistakes of device models", _counter("device_errors"), 0),
    "schedule_lag_p99_ms_max": Limit(
        "how late the simulator itself was, 99th percentile",
        lambda one: _ms(one.schedule_lag.percentile(99)),
    ),
    "broker_cpu_cores_max": Limit("cores the broker kept busy", lambda one: one.broker_cpu_cores),
    "broker_rss_mb_max": Limit(
        "the broker's largest resident memory",
        lambda one: None if one.broker_rss_bytes_max is None else one.broker_rss_bytes_max / 1e6,
    ),
}

LAG_MS_FAIR: Final = 100.0  # beyond this the simulator's own delay shows in its latencies


def judge(outcome: Outcome, limits: Mapping[str, float]) -> Verdict:
    checks = []
    for name, allowed in limits.items():
        measured = LIMITS[name].measure(outcome)
        passed = (
            measured is None
            or (name.endswith("_max") and measured <= allowed)
            or (name.endswith("_min") and measured >= allowed)
        )
        checks.append(Check(name, allowed, measured, passed))
    return Verdict(tuple(checks), tuple(_remarks(outcome)))


def _remarks(outcome: Outcome) -> list[str]:
    remarks = []
    lag_ms = outcome.schedule_lag.percentile(99) / 1000
    if lag_ms > LAG_MS_FAIR:
        remarks.append(
            f"the simulator was late itself (p99 {lag_ms:,.0f} ms): use --workers or fewer devices"
            " before trusting the latencies"
        )
    if not outcome.is_drained:
        remarks.append("what was acknowledged had not all arrived when drain_s was over")
    if outcome.was_interrupted:
        remarks.append("the run was interrupted before its end")
    unjudged = outcome.total("unjudged")
    if unjudged:
        remarks.append(f"{unjudged:,} messages went where no observer listens and are not judged")
    if outcome.unstamped:
        remarks.append(
            f"{outcome.unstamped:,} messages without a stamp arrived: somebody else publishes there"
        )
    return remarks


def number(value: float) -> str:
    """Format a number for people."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}"
