"""Line charts as SVG text, without a library or script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT: Final = 92  # room for a label in the large type of narrow pages
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 34
POINTS_MAX: Final = 360  # more points than pixels are not visible
TICKS_MAX: Final = 5
_MINUTE: Final = 60
_HOUR: Final = 3_600
# Steps of a clock, then multiples of days.
_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * many for many in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * many for many in (1, 2, 3, 6, 12, 24)),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: name, CSS class, and one value per second (None: a gap)."""

    name: str
    style: str
    values: Sequence[float | None]


def line_chart(
    label: str, seconds: Sequence[float], lines: Sequence[Line], show: Callable[[float], str]
) -> str:
    """Draw a line chart; `label` is its text alternative, `show` formats a value of the axis."""
    lines = [Line(one.name, one.style, downsample(one.values)) for one in lines]
    seconds = [second for second in downsample(seconds) if second is not None]
    most = max((v for one in lines for v in one.values if v is not None), default=1.0)
    step = value_step(most)
    top = step * max(1, math.ceil(most / step - 1e-9))
    last = max(1.0, seconds[-1] if seconds else 1.0)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    out = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">',
    ]
    for tick in range(round(top / step) + 1):
        y = bottom - (bottom - TOP) * tick * step / top
        out.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(show(tick * step))}</text>"
        )
    time_step = step_of_time(last)
    for tick in range(int(last / time_step) + 1):
        x = LEFT + (right - LEFT) * tick * time_step / last
        anchor = "middle" if x < right - 20 else "end"
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">'
            f"{time_text(tick * time_step, time_step)}</text>"
        )
    # A line that another covers shows on both sides of it: the first is the widest, and pale.
    for index, one in enumerate(lines):
        below = len(lines) - 1 - index
        width, opacity = 2 + 3 * below, 1 / (1 + 0.7 * below)
        stroke = f'stroke-width="{width}" stroke-opacity="{opacity:.2f}"'
        out += [
            f'<polyline class="{one.style}" {stroke} points="{points}"/>'
            for points in _runs(one.values, seconds, last, top)
        ]
    out.append("</svg>")
    return "".join(out)


def _runs(
    values: Sequence[float | None], seconds: Sequence[float], last: float, top: float
) -> list[str]:
    """Return the pieces of a line, which has gaps where values are missing."""
    runs: list[list[str]] = [[]]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for second, value in zip(seconds, values, strict=True):
        if value is None:
            runs.append([])
            continue
        x = LEFT + (right - LEFT) * second / last
        y = bottom - (bottom - TOP) * min(1.0, value / top)
        runs[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(points) for points in runs if points]


def downsample(values: Sequence[float | None]) -> list[float | None]:
    """Return at most POINTS_MAX values, each the largest of the values it replaces."""
    size = -(-len(values) // POINTS_MAX)
    if size <= 1:
        return list(values)
    out: list[float | None] = []
    for start in range(0, len(values), size):
        there = [value for value in values[start : start + size] if value is not None]
        out.append(max(there) if there else None)
    return out


def value_step(most: float) -> float:
    """Return a round distance of ticks, so that at most TICKS_MAX reach the largest value."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / TICKS_MAX))
    for many in (1, 2, 2.5, 5):
        if most <= many * power * TICKS_MAX * (1 + 1e-9):
            return many * power
    return 10 * power


def step_of_time(seconds: float) -> int:
    """Return a distance of ticks in seconds as clocks have them, with at most seven ticks."""
    for step in _TIME_STEPS:
        if seconds <= step * 6:
            return step
    day = 24 * _HOUR
    return day * math.ceil(seconds / (6 * day))


def time_text(seconds: int, step: int) -> str:
    """Format a time in the unit of the distance of ticks."""
    if step % _HOUR == 0:
        return f"{seconds // _HOUR} h"
    if step % _MINUTE == 0:
        return f"{seconds // _MINUTE} min"
    return f"{seconds} s"


def milliseconds(value: float) -> str:
    """Format a duration of an axis, which is a round number, with no more digits than it has."""
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"


def abbreviate(value: float) -> str:
    """Shorten a number: 1200 as 1.2k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
