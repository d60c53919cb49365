"""Runs a scenario from text against a broker, in this process."""

from __future__ import annotations

import socket
import tomllib
from dataclasses import dataclass
from typing import Any

from iot_sim.fleet.engine import Target
from iot_sim.judge.outcome import Outcome, Sample
from iot_sim.judge.verdict import Verdict, judge
from iot_sim.run.process import ProcessRun
from iot_sim.scenarios.file import read
from iot_sim.scenarios.scenario import Scenario


@dataclass(slots=True)
class Result:
    scenario: Scenario
    outcome: Outcome
    verdict: Verdict
    samples: list[Sample]

    def total(self, name: str, *qos: int) -> int:
        return self.outcome.total(name, qos or (0, 1, 2))

    @property
    def broken(self) -> set[str]:
        return {check.name for check in self.verdict.broken}

    def explain(self) -> str:
        """For an assert that fails."""
        return f"{self.verdict.broken} {self.outcome.errors} {self.outcome.examples}"


def scenario_of(text: str) -> Scenario:
    return read(tomllib.loads(text), "test")


def begin(text: str, port: int, **options: Any) -> tuple[ProcessRun, list[Sample]]:
    samples: list[Sample] = []
    options.setdefault("run_id", "test")
    address = (socket.AF_INET, ("127.0.0.1", port))
    run = ProcessRun(
        scenario_of(text), Target("127.0.0.1", port), address, on_sample=samples.append, **options
    )
    return run, samples


def run(text: str, port: int, **options: Any) -> Result:
    one, samples = begin(text, port, **options)
    outcome = one.run()
    return Result(one.scenario, outcome, judge(outcome, one.scenario.limits), samples)
