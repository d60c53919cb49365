"""Compare two reports of a scenario: what became better or worse. Pure.

Rates may fall and latencies rise by the tolerance. Errors are compared as shares of the sent
messages, so that runs of different lengths can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from iot_sim.judge.verdict import number

FORMAT: Final = 1
ERRORS: Final = (
    "lost", "repeated", "redelivered", "reordered", "altered", "refused", "unconfirmed", "late",
    "unknown",
)  # fmt: skip
PERCENTILES: Final = ("p50_ms", "p95_ms", "p99_ms", "p99_9_ms")
LATENCIES: Final = {
    "latency": "delivery",
    "latency_from_due": "delivery from due",
    "ack_latency": "ack",
    "ack_latency_from_due": "ack from due",
    "connect_latency": "connect",
}
SAME_MS: Final = 1.0  # latencies that differ by less are the same


class ReportError(Exception):
    """A file that is no report, or reports that cannot be compared or merged."""


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    old: float
    new: float
    is_worse: bool  # by more than the tolerance

    @property
    def change(self) -> str:
        """Format the change, in percent of the old value."""
        if self.old == self.new:
            return "="
        if not self.old:
            return "new"
        return f"{100 * (self.new - self.old) / self.old:+,.1f} %"


def check_report(data: Any, path: str) -> Mapping[str, Any]:
    """Return `data` if it is a report. Raises ReportError."""
    if not isinstance(data, dict) or not {"scenario", "totals", "verdict"} <= data.keys():
        raise ReportError(f"{path}: not a report of fleetmq sim run --report")
    if data.get("format") != FORMAT:
        raise ReportError(f"{path}: format {data.get('format')}; this version reads {FORMAT}")
    return data


def compare(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> list[Difference]:
    """Return the differences of two reports of one scenario; `tolerance` is a share.

    Raises ReportError for reports of different scenarios.
    """
    names = old["scenario"]["name"], new["scenario"]["name"]
    if names[0] != names[1]:
        raise ReportError(f"the reports are of different scenarios: {names[0]} and {names[1]}")
    return [
        *_rates(old["totals"], new["totals"], tolerance),
        *_errors(old["totals"], new["totals"], tolerance),
        *_latencies(old, new, tolerance),
        *_resources(old, new, tolerance),
        Difference(
            "limits broken",
            before := _broken(old),
            after := _broken(new),
            after > before,
        ),
    ]


def _broken(report: Mapping[str, Any]) -> int:
    return sum(not check["passed"] for check in report["verdict"]["checks"])


def _rates(
    old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    for name in ("sent", "delivered"):
        before, after = (round(one[name] / max(0.001, one["elapsed_s"]), 1) for one in (old, new))
        yield Difference(f"{name} a second", before, after, after < before * (1 - tolerance))


def _errors(
    old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    for name in ERRORS:
        before, after = (one.get(name, 0) / max(1, one["sent"]) for one in (old, new))
        is_worse = after > before * (1 + tolerance)
        yield Difference(name, old.get(name, 0), new.get(name, 0), is_worse)


def _latencies(
    old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    found = {title: (old.get(key), new.get(key)) for key, title in LATENCIES.items()}
    trips = [one.get("commands", {}).get("round_trip") for one in (old, new)]
    found["command"] = trips[0], trips[1]
    for title, (one, other) in found.items():
        if not one or not other or not one["count"] or not other["count"]:
            continue  # one of the runs has not measured it
        for name in PERCENTILES:
            before, after = one[name], other[name]
            is_worse = after > before * (1 + tolerance) and after - before >= SAME_MS
            label = name.removesuffix("_ms").replace("_", ".")
            yield Difference(f"{title} {label} (ms)", before, after, is_worse)


def _resources(
    old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float
) -> Iterator[Difference]:
    for key, title in (("cpu_cores", "broker cores"), ("rss_bytes_max", "broker bytes")):
        before, after = (one.get("broker_process", {}).get(key) for one in (old, new))
        if before is not None and after is not None:
            yield Difference(title, before, after, after > before * (1 + tolerance))


def remarks(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the two runs are not quite comparable."""
    for name in ("devices", "duration_s", "seed"):
        before, after = old["scenario"].get(name), new["scenario"].get(name)
        if before != after:
            yield f"{name} is {before} in the old report and {after} in the new"
    for title, one in (("old", old), ("new", new)):
        if one["totals"].get("interrupted"):
            yield f"the {title} run was interrupted"
        if one["verdict"].get("simulator_was_late"):
            yield f"the simulator was late itself in the {title} run"


def lines(differences: list[Difference], notes: list[str], tolerance: float) -> list[str]:
    """Return the comparison as lines for a terminal; figures that are 0 in both are left out."""
    shown = [one for one in differences if one.old or one.new]
    found = [f"  {'':<28} {'old':>14} {'new':>14} {'change':>10}"]
    found += [
        f"  {one.name:<28} {number(one.old):>14} {number(one.new):>14} {one.change:>10}"
        f"{'  worse' if one.is_worse else ''}"
        for one in shown
    ]
    found += [f"  note: {text}" for text in notes]
    worse = sum(one.is_worse for one in differences)
    found.append(
        f"WORSE: {worse} by more than {tolerance:.0%}"
        if worse
        else f"NOT WORSE by more than {tolerance:.0%}"
    )
    return found
