"""Line charts as SVG text: no library, no script, nothing to load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 28
POINTS_MAX: Final = 360  # more than the pixels of a line show nothing more
TICKS: Final = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: name, class in the page's style, a value a second (None: a gap)."""

    name: str
    style: str
    values: Sequence[float | None]


def line_chart(
    label: str, seconds: Sequence[float], lines: Sequence[Line], show: Callable[[float], str]
) -> str:
    """Draw a line chart; `label` describes it in words, `show` formats a value of its axis."""
    lines = [Line(one.name, one.style, thin(one.values)) for one in lines]
    seconds = [second for second in thin(seconds) if second is not None]
    top = nice(max((v for one in lines for v in one.values if v is not None), default=1.0))
    last = max(1.0, seconds[-1] if seconds else 1.0)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    out = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">',
    ]
    for tick in range(TICKS + 1):
        y = bottom - (bottom - TOP) * tick / TICKS
        out.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(show(top * tick / TICKS))}</text>"
        )
    for tick in range(TICKS + 1):
        x = LEFT + (right - LEFT) * tick / TICKS
        anchor = "middle" if 0 < tick < TICKS else ("start" if not tick else "end")
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">'
            f"{time_text(last * tick / TICKS)}</text>"
        )
    for one in lines:
        out += [
            f'<polyline class="{one.style}" points="{points}"/>'
            for points in _runs(one.values, seconds, last, top)
        ]
    out.append("</svg>")
    return "".join(out)


def _runs(
    values: Sequence[float | None], seconds: Sequence[float], last: float, top: float
) -> list[str]:
    """Return the pieces of a line, which breaks where a value is missing."""
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


def thin(values: Sequence[float | None]) -> list[float | None]:
    """Return at most POINTS_MAX values, each the largest of those it stands for."""
    size = -(-len(values) // POINTS_MAX)
    if size <= 1:
        return list(values)
    out: list[float | None] = []
    for start in range(0, len(values), size):
        there = [value for value in values[start : start + size] if value is not None]
        out.append(max(there) if there else None)
    return out


def nice(value: float) -> float:
    """Return the next round number, for the end of the axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10):
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power


def time_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def short(value: float) -> str:
    """Shorten a number: 1200 as 1.2k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
