"""The figures of a run, second by second: rows on a terminal, and in a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TextIO

from iot_sim.bench.counts import Counts, Sample
from iot_sim.bench.plan import CONNECT, PUBLISH, SUBSCRIBE
from iot_sim.judge.histogram import Histogram
from iot_sim.report.progress import ms

HEAD_EVERY: Final = 20  # rows
WIDTH: Final = 11
GENERATOR_LATE_US: Final = 100_000


class Column(NamedTuple):
    name: str
    value: Callable[[Sample], str]


def _column(name: str, field: str) -> Column:
    return Column(name, lambda sample: f"{getattr(sample.counts, field):,}")


def _times(histogram: Callable[[Counts], Histogram]) -> tuple[Column, ...]:
    return tuple(
        Column(name, lambda sample, at=at: _time(histogram(sample.counts), at))  # type: ignore[misc]
        for name, at in (("p50", 50.0), ("p99", 99.0), ("max", 100.0))
    )


def _time(histogram: Histogram, percent: float) -> str:
    return ms(histogram.percentile(percent)) if histogram.count else "-"


_FIRST: Final = (
    Column("time", lambda sample: f"{sample.second + 1} s"),
    Column("online", lambda sample: f"{sample.online:,}"),
)
_LAST: Final = (
    _column("lost", "lost"),
    Column("errors", lambda sample: f"{sample.counts.error_count:,}"),
)
COLUMNS: Final = {
    CONNECT: (
        *_FIRST,
        _column("connects/s", "connected"),
        *_times(lambda counts: counts.connect),
        *_LAST,
    ),
    PUBLISH: (
        *_FIRST,
        _column("sent/s", "sent"),
        _column("acked/s", "acknowledged"),
        *_times(lambda counts: counts.acknowledgement),
        *_LAST,
    ),
    SUBSCRIBE: (
        *_FIRST,
        _column("received/s", "received"),
        *_times(lambda counts: counts.delivery),
        *_LAST,
    ),
}


class Table:
    """Prints a row each second, and the head again every few rows."""

    def __init__(self, action: str, stream: TextIO) -> None:
        self._columns = COLUMNS[action]
        self._stream = stream
        self._rows = 0

    def put(self, sample: Sample) -> None:
        if self._rows % HEAD_EVERY == 0:
            self._write([column.name for column in self._columns])
        self._rows += 1
        self._write([column.value(sample) for column in self._columns])

    def _write(self, cells: list[str]) -> None:
        self._stream.write("".join(f"{cell:>{WIDTH}}" for cell in cells) + "\n")
        self._stream.flush()


class CsvFile:
    """Writes a row of plain numbers each second; durations are in milliseconds."""

    HEAD: Final = (
        *("second", "online", "connected", "lost", "errors", "sent", "acknowledged", "received"),
        *(f"{what}_{name}_ms" for what in ("connect", "ack", "delivery")
          for name in ("p50", "p99", "max")),
        "generator_late_ms",
    )  # fmt: skip

    def __init__(self, stream: TextIO) -> None:
        self._writer = csv.writer(stream)
        self._stream = stream
        self._writer.writerow(self.HEAD)

    def put(self, sample: Sample) -> None:
        counts = sample.counts
        row: list[Any] = [
            *(sample.second + 1, sample.online, counts.connected, counts.lost, counts.error_count),
            *(counts.sent, counts.acknowledged, counts.received),
        ]
        for histogram in (counts.connect, counts.acknowledgement, counts.delivery):
            row += [histogram.percentile(at) / 1000 if histogram.count else ""
                    for at in (50.0, 99.0, 100.0)]  # fmt: skip
        self._writer.writerow([*row, sample.late_us / 1000])
        self._stream.flush()


def summary(action: str, total: Counts, seconds: float, late_us: int) -> list[str]:
    """Return the result of a run as lines."""
    lines = [f"{total.connected:,} connections, {total.lost:,} lost"]
    if total.connect.count:
        lines[0] += f"; connect {_percentiles(total.connect)}"
    if action == PUBLISH:
        lines.append(f"{total.sent:,} sent, {total.sent / seconds:,.0f} a second")
        if total.acknowledgement.count:
            lines[-1] += f"; {total.acknowledged:,} acknowledged"
            lines.append(f"due to acknowledgement {_percentiles(total.acknowledgement)}")
    if action == SUBSCRIBE:
        lines.append(f"{total.received:,} received, {total.received / seconds:,.0f} a second")
        if total.delivery.count:
            lines.append(f"due to delivery {_percentiles(total.delivery)}")
    if late_us > GENERATOR_LATE_US:
        lines.append(
            f"this program was up to {ms(late_us)} late itself: use --workers, or a lower rate"
        )
    lines += [
        f"error: {what} ({count:,})"
        for what, count in sorted(total.errors.items(), key=lambda item: -item[1])[:10]
    ]
    return lines


def _percentiles(histogram: Histogram) -> str:
    named = (("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("max", 100.0))
    return ", ".join(f"{name} {ms(histogram.percentile(at))}" for name, at in named)
