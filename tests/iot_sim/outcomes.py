"""Outcomes of runs that did not happen, for the judge and the reports."""

from __future__ import annotations

from iot_sim.judge.ledger import Tally
from iot_sim.judge.outcome import Outcome, Sample


def outcome_of(**changes: int) -> Outcome:
    """A good run of 1000 messages at each QoS, with the QoS 1 tally changed."""
    tallies = []
    for qos in (0, 1, 2):
        tally = Tally("telemetry", qos, sent=1000, delivered=1000)
        tally.acknowledged = 1000 if qos else 0
        for value in range(1, 1001):
            tally.latency.record(value * 10)
            tally.ack_latency.record(value)
            tally.latency_from_due.record(value * 20)
            tally.ack_latency_from_due.record(value * 2)
        tallies.append(tally)
    for name, value in changes.items():
        setattr(tallies[1], name, value)
    outcome = Outcome(tallies=tallies, elapsed_s=10.0, flows=3)
    for second in range(10):
        sample = Sample(second, 300, 200, 300, 51, 51)
        sample.latency.record(5000 + second)
        outcome.series.append(sample)
    return outcome
