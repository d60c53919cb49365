"""The verdict: the outcome of a run compared with limits. Pure.

A limit has a name, a measured value, and a default if every broker should meet it. A limit that
ends in `_max` must not be exceeded, one that ends in `_min` must be reached.
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
    measure: Measure  # returns None if the run has nothing to measure
    default: float | None = None  # None: checked only if the scenario sets the limit


@dataclass(frozen=True, slots=True)
class Check:
    """A limit compared with the value measured in a run."""

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
    remarks: tuple[str, ...]  # notes on how to read the figures
    was_interrupted: bool = False
    late_ms: float | None = None  # delay of the simulator itself, if the latencies contain it

    @property
    def passed(self) -> bool:
        return self.holds and not self.was_interrupted

    @property
    def holds(self) -> bool:
        """Tell whether all limits hold, also those of a run that was interrupted."""
        return all(check.passed for check in self.checks)

    @property
    def word(self) -> str:
        """Return the result as one word."""
        if self.was_interrupted:
            return "INTERRUPTED"
        return "PASSED" if self.holds else "FAILED"

    @property
    def reservation(self) -> str:
        """Return why the figures are doubtful, to stand beside the result; empty: they are not."""
        if self.late_ms is None:
            return ""
        return f"the simulator was late itself: p99 {self.late_ms:,.0f} ms"

    @property
    def broken(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    def to_data(self) -> dict[str, Any]:
        return {
            "result": self.word.lower(),
            "passed": self.passed,
            "simulator_was_late": self.late_ms is not None,
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
    "sent_min": Limit("messages sent", _total("sent"), 1),
    "lost_max": Limit(
        "QoS 1 and 2: acknowledged and never delivered", _total("lost", _PROMISED), 0
    ),
    "lost_qos0_share_max": Limit(
        "QoS 0: share of the sent messages that were never delivered",
        _share(lambda one: one.total("lost", (0,)), _judged_qos0),
        0,
    ),
    "unconfirmed_max": Limit(
        "QoS 1 and 2: never acknowledged, although the client stayed", _total("unconfirmed"), 0
    ),
    "refused_max": Limit("publications refused by the broker", _total("refused"), 0),
    "repeated_max": Limit("messages delivered twice without a cause", _total("repeated"), 0),
    "redelivered_share_max": Limit(
        "QoS 1: share of the deliveries that were repeated after a reconnect",
        _share(lambda one: one.total("redelivered"), lambda one: one.total("delivered", (1,))),
    ),
    "reordered_max": Limit(
        "messages delivered after a later one of their flow", _total("reordered"), 0
    ),
    "altered_max": Limit("messages with another payload, topic or QoS", _total("altered"), 0),
    "unknown_max": Limit("messages delivered and never sent", lambda one: one.unknown, 0),
    "late_share_max": Limit(
        "share of the deliveries later than late_after_ms",
        _share(lambda one: one.total("late"), lambda one: one.total("delivered")),
    ),
    "latency_p50_ms_max": Limit("send to delivery, median", _latency(50)),
    "latency_p95_ms_max": Limit("send to delivery, 95th percentile", _latency(95)),
    "latency_p99_ms_max": Limit("send to delivery, 99th percentile", _latency(99)),
    "latency_p999_ms_max": Limit("send to delivery, 99.9th percentile", _latency(99.9)),
    "latency_from_due_p99_ms_max": Limit(
        "due time to delivery, 99th percentile",
        lambda one: _ms(one.latency_from_due().percentile(99)),
    ),
    "ack_p99_ms_max": Limit(
        "send to acknowledgement, 99th percentile",
        lambda one: _ms(one.ack_latency().percentile(99)),
    ),
    "connect_p99_ms_max": Limit(
        "CONNECT to CONNACK, 99th percentile",
        lambda one: _ms(one.connect_latency.percentile(99)),
    ),
    "command_answered_share_min": Limit(
        "share of the commands answered in time",
        _share(lambda one: one.commands.answered, lambda one: one.commands.sent),
    ),
    "command_p99_ms_max": Limit(
        "command to answer, 99th percentile",
        lambda one: _ms(one.commands.latency.percentile(99)),
    ),
    "sessions_lost_max": Limit(
        "sessions that the broker should still have had", _counter("sessions_lost"), 0
    ),
    "sessions_strange_max": Limit(
        "sessions resumed in spite of a clean start", _counter("sessions_strange"), 0
    ),
    "takeovers_unanswered_max": Limit(
        "old connections kept open after a take-over", _counter("takeovers_unanswered"), 0
    ),
    "wills_missing_max": Limit(
        "wills that were due and not published", lambda one: one.wills.missing, 0
    ),
    "wills_unexpected_max": Limit(
        "wills published after a DISCONNECT, or twice",
        lambda one: one.wills.unexpected + one.wills.repeated,
        0,
    ),
    "dropped_max": Limit("connections ended by the broker without a cause", _counter("dropped"), 0),
    "connect_failures_max": Limit(
        "connections that failed or were refused", _counter("connect_failures")
    ),
    "unsubscribed_max": Limit("subscriptions refused by the broker", _counter("unsubscribed"), 0),
    "protocol_errors_max": Limit(
        "packets of the broker that violate the protocol", _counter("protocol_errors"), 0
    ),
    "device_errors_max": Limit("exceptions of device models", _counter("device_errors"), 0),
    "schedule_lag_p99_ms_max": Limit(
        "delay of the simulator's own schedule, 99th percentile",
        lambda one: _ms(one.schedule_lag.percentile(99)),
    ),
    "broker_cpu_cores_max": Limit("CPU cores used by the broker", lambda one: one.broker_cpu_cores),
    "broker_rss_mb_max": Limit(
        "largest resident memory of the broker",
        lambda one: None if one.broker_rss_bytes_max is None else one.broker_rss_bytes_max / 1e6,
    ),
}

LAG_MS_MAX: Final = 100.0  # a longer delay of the simulator distorts the latencies


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
    lag_ms = outcome.schedule_lag.percentile(99) / 1000
    late_ms = lag_ms if lag_ms > LAG_MS_MAX else None
    remarks = tuple(_remarks(outcome, late_ms))
    return Verdict(tuple(checks), remarks, outcome.was_interrupted, late_ms)


def _remarks(outcome: Outcome, late_ms: float | None) -> list[str]:
    remarks = []
    if late_ms is not None:
        remarks.append(
            f"the simulator was late itself (p99 {late_ms:,.0f} ms), so the latencies are too long:"
            " use more --workers or fewer --devices"
        )
    if not outcome.is_drained:
        remarks.append("some acknowledged messages had not arrived after drain_s")
    if outcome.was_interrupted:
        remarks.append(
            "the run was interrupted: the limits were checked on what had happened until then"
        )
    left = outcome.counters["retained_left"]
    if left:
        remarks.append(
            f"{left:,} retained messages are left on the broker: publish an empty one to each"
            " topic (fleetmq pub -t TOPIC -r -n)"
        )
    unjudged = outcome.total("unjudged")
    if unjudged:
        remarks.append(f"{unjudged:,} messages were sent to topics without an observer: not judged")
    if outcome.unstamped:
        remarks.append(
            f"{outcome.unstamped:,} messages without a stamp arrived: another client publishes to"
            " the same topics"
        )
    return remarks


def number(value: float) -> str:
    """Format a number for people."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}"
