"""The progress display, on a terminal and in a log."""

from __future__ import annotations

import io

from iot_sim.judge.outcome import Sample
from iot_sim.report.progress import Progress, ms
from tests.iot_sim.fleets import scenario_of

SCENARIO = """
duration_s = 20
[[fleets]]
name = "a"
model = "environment"
count = 10
interval_s = 1
"""


def sample(second: int) -> Sample:
    one = Sample(second, 1000 + second, 500, 990, 10, 11, 2, int(second == 3))
    for value in range(100):
        one.latency.record(1000 + value)
    return one


def shown(seconds: int, *, is_terminal: bool, broker: bool = False) -> str:
    stream = io.StringIO()
    progress = Progress(scenario_of(SCENARIO), stream, is_terminal=is_terminal)
    for second in range(seconds):
        one = sample(second)
        if broker:
            one.broker_cpu, one.broker_rss_bytes = 0.25, 50_000_000
        progress.put(one)
    progress.close()
    return stream.getvalue()


def test_a_log_gets_plain_lines_now_and_then() -> None:
    text = shown(12, is_terminal=False, broker=True)
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    assert [int(line.split()[0]) for line in lines] == [1, 5, 10, 12]
    assert "online 10/11" in lines[0] and "sent 1,000/s" in lines[0]
    assert "p50 1.1 ms" in lines[0] and "errors 0" in lines[0]
    assert "errors 1" in lines[1]
    assert "broker 0.25 cores  50 MB" in lines[0]


def test_a_terminal_is_redrawn_in_place() -> None:
    text = shown(3, is_terminal=True)
    first, second, third = text.split("\x1b[J")
    lines = first.splitlines()[:-1]
    assert second.endswith(f"\x1b[{len(lines)}A\r")
    assert "3 of 20 s" in third and "3,003 in all" in third
    assert "under a fault 2" in third and "####" in third


def test_the_drain_is_said() -> None:
    assert "waiting for the last messages" in shown(21, is_terminal=True)


def test_nothing_happened_nothing_breaks() -> None:
    stream = io.StringIO()
    progress = Progress(scenario_of(SCENARIO), stream, is_terminal=False)
    progress.put(Sample(0))
    progress.close()
    assert "p99 0.0 ms" in stream.getvalue()


def test_durations_for_people() -> None:
    assert [ms(one) for one in (0, 1234, 250_000, 2_500_000)] == [
        "0.0 ms",
        "1.2 ms",
        "250 ms",
        "2.50 s",
    ]
