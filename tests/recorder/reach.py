"""How far back the recorder sees: `python -m tests.recorder.reach` prints the table of docs/WHY.md.

Each topic has a publisher of its own, and one client gets everything at QoS 1 and acknowledges it.
Devices publish in turn, so that each message is a call of its own up to the rate of its topic.
"""

from __future__ import annotations

import sys

from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.runs import ClientRuns, TopicRuns

BYTES = 64 << 20
CASES = ((1_000, 1_000), (10_000, 1_000), (10_000, 10_000), (100_000, 1_000), (100_000, 10_000))


def reach_s(rate: int, topics: int, size: int = BYTES) -> float:
    """Return how many seconds a recorder of so many bytes sees back to."""
    recorder = Recorder(size, 0.0)
    runs = [TopicRuns(f"site/{n % 40}/device/{n}/telemetry") for n in range(topics)]
    publishers = [ClientRuns(f"device-{n:06d}") for n in range(topics)]
    collector = ClientRuns("collector")
    burst = max(1, rate // topics // 2)  # messages of a topic that come together
    now, turn = 0.0, 0
    while not recorder.traffic.has_lost:
        for _ in range(1_000):
            topic = turn % topics
            recorder.published(runs[topic], publishers[topic], burst, 1, 64 * burst, now)
            recorder.acknowledged(collector, runs[topic].topic, burst, now, now, now)
            turn += 1
            now += burst / rate
    return now - recorder.traffic.begins_ms / 1000


def main() -> None:
    for rate, topics in CASES:
        found = reach_s(rate, topics)
        sys.stdout.write(f"| {rate:,} | {topics:,} | {found:,.0f} s |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
