"""The progress of a run: a block that is redrawn on a terminal, or lines in a log file."""

from __future__ import annotations

from typing import Final, TextIO

from iot_sim.judge.histogram import Histogram
from iot_sim.judge.outcome import Sample
from iot_sim.scenarios.scenario import Scenario

LOG_EVERY_S: Final = 5
BAR_WIDTH: Final = 30
_UP: Final = "\x1b[{}A"
_CLEAR: Final = "\x1b[J"


class Progress:
    """Shows the progress of a run, from one sample per second."""

    def __init__(self, scenario: Scenario, stream: TextIO, *, is_terminal: bool) -> None:
        self._scenario = scenario
        self._stream = stream
        self._is_terminal = is_terminal
        self._lines = 0
        self._sent = 0
        self._acknowledged = 0
        self._delivered = 0
        self._errors = 0
        self._window: list[Sample] = []

    def put(self, sample: Sample) -> None:
        self._sent += sample.sent
        self._acknowledged += sample.acknowledged
        self._delivered += sample.delivered
        self._errors += sample.errors
        self._window.append(sample)
        if self._is_terminal:
            self._redraw(sample)
            self._window = self._window[-1:]
        elif (sample.second + 1) % LOG_EVERY_S == 0 or sample.second == 0:
            self._stream.write(self._line(sample) + "\n")
            self._stream.flush()
            self._window.clear()

    def close(self) -> None:
        """Write the last line, or leave the last block in place."""
        if not self._is_terminal and self._window:
            self._stream.write(self._line(self._window[-1]) + "\n")
        self._lines = 0
        self._stream.flush()

    def _figures(self) -> tuple[float, float, float, Histogram]:
        """Return rates per second, and latencies, since the last line."""
        seconds = max(1, len(self._window))
        latency = Histogram()
        for sample in self._window:
            latency.add(sample.latency)
        return (
            sum(sample.sent for sample in self._window) / seconds,
            sum(sample.acknowledged for sample in self._window) / seconds,
            sum(sample.delivered for sample in self._window) / seconds,
            latency,
        )

    def _line(self, sample: Sample) -> str:
        sent, acknowledged, delivered, latency = self._figures()
        parts = [
            f"{sample.second + 1:>5} s",
            f"online {sample.connected:,}/{sample.wanted:,}",
            f"sent {sent:,.0f}/s",
            f"acked {acknowledged:,.0f}/s",
            f"delivered {delivered:,.0f}/s",
            f"p50 {ms(latency.percentile(50))}",
            f"p99 {ms(latency.percentile(99))}",
            f"errors {self._errors:,}",
        ]
        if sample.broker_cpu is not None and sample.broker_rss_bytes is not None:
            parts.append(f"broker {sample.broker_cpu:.2f} cores")
            parts.append(f"{sample.broker_rss_bytes / 1e6:,.0f} MB")
        return "  ".join(parts)

    def _redraw(self, sample: Sample) -> None:
        sent, acknowledged, delivered, latency = self._figures()
        total = self._scenario.duration_s
        done = min(1.0, (sample.second + 1) / total)
        bar = "#" * round(done * BAR_WIDTH)
        rest = f"{sample.second + 1} of {total:g} s"
        if done >= 1:
            rest = "waiting for the last messages"
        lines = [
            f"{self._scenario.name}  [{bar:<{BAR_WIDTH}}]  {rest}",
            (
                f"  online     {sample.connected:>12,}   wanted {sample.wanted:,},"
                f" under a fault {sample.faulty:,}"
            ),
            f"  sent       {sent:>10,.0f}/s   {self._sent:,} in all",
            f"  acked      {acknowledged:>10,.0f}/s   {self._acknowledged:,} in all",
            f"  delivered  {delivered:>10,.0f}/s   {self._delivered:,} in all",
            (
                f"  latency    p50 {ms(latency.percentile(50))}, p99 {ms(latency.percentile(99))},"
                f" max {ms(latency.max_us)}"
            ),
            f"  errors     {self._errors:>12,}",
        ]
        if sample.broker_cpu is not None and sample.broker_rss_bytes is not None:
            lines.append(
                f"  broker     {sample.broker_cpu:>10.2f} cores,"
                f" {sample.broker_rss_bytes / 1e6:,.0f} MB"
            )
        if self._lines:
            self._stream.write(_UP.format(self._lines) + "\r" + _CLEAR)
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()
        self._lines = len(lines)


def ms(us: float) -> str:
    """Format a duration with its unit."""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1000:.1f} ms" if us < 1e5 else f"{us / 1000:.0f} ms"
