"""Runs on several machines: what a report holds of a share, and one outcome made of all shares.

Each machine has a run id and observers of its own, so it judges its own messages by its own clock;
the outcomes add up, as those of several processes do.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import Tally, WillCounts
from iot_sim.judge.outcome import CommandCounts, Outcome, Sample
from iot_sim.judge.verdict import Verdict, judge
from iot_sim.report.compare import ReportError

APART_S: Final = 1.0  # shares that began further apart have not loaded the broker together
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FleetFacts:
    name: str
    model: str
    count: int
    interval_s: float


@dataclass(frozen=True, slots=True)
class ScenarioFacts:
    """A scenario as reports describe it, read from one."""

    name: str
    summary: str
    seed: int
    device_count: int
    duration_s: float
    speed: float
    fleets: tuple[FleetFacts, ...]
    faults: range

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> ScenarioFacts:
        return cls(
            data["name"],
            data["summary"],
            data["seed"],
            data["devices"],
            data["duration_s"],
            data["speed"],
            tuple(FleetFacts(**fleet) for fleet in data["fleets"]),
            range(data["faults"]),
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """All shares of a run as one."""

    scenario: ScenarioFacts
    outcome: Outcome
    verdict: Verdict
    broker: str
    workers: int


def share_data(index: int, count: int, outcome: Outcome) -> dict[str, Any]:
    """Return what a report of share `index` of `count`, from 1, holds to be merged."""
    return {"index": index, "count": count, "outcome": _dump(outcome)}


def merge(reports: Mapping[str, Mapping[str, Any]]) -> Merged:
    """Make one verdict of the reports of all shares, by their paths. Raises ReportError."""
    try:
        return _merge(reports)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ReportError(f"an incomplete report: {error}") from None


def _merge(reports: Mapping[str, Mapping[str, Any]]) -> Merged:
    _check_shares({path: report.get("share") for path, report in reports.items()})
    facts = _common(reports, "the scenario", lambda one: one["scenario"])
    limits = _common(reports, "the limits", _limits)
    outcomes = [_read(Outcome, report["share"]["outcome"]) for report in reports.values()]
    whole = outcomes[0]
    for other in outcomes[1:]:
        whole.add(other)
    outcome = dataclasses.replace(
        whole,
        series=_merge_series([one.series for one in outcomes]),
        broker_cpu_cores=_largest(one.broker_cpu_cores for one in outcomes),
        broker_rss_bytes_max=_largest(one.broker_rss_bytes_max for one in outcomes),
    )
    verdict = judge(outcome, limits)
    starts = [one.began_at for one in outcomes]
    apart_s = max(starts) - min(starts)
    if apart_s > APART_S:
        remark = f"the shares began {apart_s:,.1f} s apart: give all of them the same --start-at"
        verdict = dataclasses.replace(verdict, remarks=(*verdict.remarks, remark))
    brokers = dict.fromkeys(report["broker"] for report in reports.values())
    workers = sum(report["workers"] for report in reports.values())
    return Merged(ScenarioFacts.read(facts), outcome, verdict, ", ".join(brokers), workers)


def _check_shares(shares: Mapping[str, Any]) -> None:
    """Check that each share is there once. Raises ReportError."""
    seen: dict[int, str] = {}
    first, counts = next(iter(shares)), set()
    for path, share in shares.items():
        if not share:
            raise ReportError(f"{path}: not a report of fleetmq sim run --share")
        counts.add(share["count"])
        if len(counts) > 1:
            raise ReportError(
                f"{path} is a share of {share['count']}, and {first} of {shares[first]['count']}"
            )
        if share["index"] in seen:
            raise ReportError(
                f"{path} and {seen[share['index']]} are both share"
                f" {share['index']}/{share['count']}"
            )
        seen[share["index"]] = path
    count = counts.pop()
    if count > len(seen):
        missing = next(index for index in range(1, count + 1) if index not in seen)
        raise ReportError(f"no report of share {missing}/{count}: {len(seen)} of {count} are there")


def _limits(report: Mapping[str, Any]) -> dict[str, float]:
    return {check["limit"]: check["allowed"] for check in report["verdict"]["checks"]}


def _common(
    reports: Mapping[str, Mapping[str, Any]],
    what: str,
    find: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Return what is the same in all reports. Raises ReportError."""
    first_path, first = next(iter(reports.items()))
    wanted = find(first)
    for path, report in reports.items():
        found = find(report)
        for name in wanted.keys() | found.keys():
            if wanted.get(name) != found.get(name):
                raise ReportError(f"{name} of {what} is not the same in {first_path} and {path}")
    return wanted


def _merge_series(all_series: Sequence[Sequence[Sample]]) -> list[Sample]:
    merged: dict[int, Sample] = {}
    for series in all_series:
        for sample in series:
            whole = merged.setdefault(sample.second, Sample(sample.second))
            whole.add(sample)
    return [
        dataclasses.replace(
            merged[second],
            broker_cpu=_largest(_at(series, second, "broker_cpu") for series in all_series),
            broker_rss_bytes=_largest(
                _at(series, second, "broker_rss_bytes") for series in all_series
            ),
        )
        for second in sorted(merged)
    ]


def _at(series: Sequence[Sample], second: int, name: str) -> Any:
    return next((getattr(one, name) for one in series if one.second == second), None)


def _largest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


# Outcomes as plain data, without loss.


def _dump(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.dump()
    if dataclasses.is_dataclass(value):
        return {one.name: _dump(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, list):
        return [_dump(one) for one in value]
    return dict(value) if isinstance(value, dict) else value


def _read(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """Return the dataclass that `_dump` made `data` of; fields that it lacks get the default."""
    names = {one.name for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    found = {
        name: _READERS[name](value) if name in _READERS else value
        for name, value in data.items()
        if name in names
    }
    return kind(**found)


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "tallies": lambda value: [_read(Tally, one) for one in value],
    "wills": lambda value: _read(WillCounts, value),
    "commands": lambda value: _read(CommandCounts, value),
    "counters": Counter,
    "series": lambda value: [_read(Sample, one) for one in value],
    "latency": Histogram.restored,
    "ack_latency": Histogram.restored,
    "latency_from_due": Histogram.restored,
    "ack_latency_from_due": Histogram.restored,
    "connect_latency": Histogram.restored,
    "schedule_lag": Histogram.restored,
}
