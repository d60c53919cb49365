"""What a run retained is cleared at its end, or it is told how to clear it."""

from __future__ import annotations

import pytest

from iot_sim.fleet.retained import RetainedCleaner
from iot_sim.judge.outcome import Outcome
from iot_sim.run import processes
from iot_sim.scenarios.file import load
from iot_sim.scenarios.scenario import Scenario
from tests.iot_sim import fleets
from tests.server.running import Running

SCENARIO = """
duration_s = 1
[[fleets]]
name = "stubs"
model = "tests.iot_sim.stub_device:Stub"
count = 20
interval_s = 0.1
qos = 1
"""


def retained(broker: Running) -> set[str]:
    found = broker.ask(lambda: list(broker.server.broker.retained.values()))
    return {one.envelope.topic for one in found if not one.envelope.topic.startswith("$")}


def played(broker: Running, scenario: Scenario, workers: int = 1) -> Outcome:
    return processes.run(scenario, processes.Broker("127.0.0.1", broker.port), workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_leaves_nothing_behind(workers: int) -> None:
    with Running() as broker:
        outcome = played(broker, fleets.scenario_of(SCENARIO), workers)
        assert outcome.counters["retained_left"] == 0 and outcome.unstamped == 0
        assert retained(broker) == set()


def test_a_run_that_is_told_to_leave_them_does() -> None:
    with Running() as broker:
        played(broker, fleets.scenario_of("keep_retained = true\n" + SCENARIO))
        assert len(retained(broker)) == 20
        played(broker, fleets.scenario_of(SCENARIO))
        assert retained(broker) == set()


def test_more_topics_than_the_receive_maximum() -> None:
    with Running(receive_maximum=3) as broker:
        played(broker, fleets.scenario_of(SCENARIO))
        assert retained(broker) == set()


@pytest.mark.parametrize("name", ["smart_home", "factory", "flaky_cellular"])
def test_ready_scenarios_leave_nothing_behind(name: str) -> None:
    with Running() as broker:
        outcome = played(broker, load(name).resized(12, 3))
        assert outcome.counters["retained_left"] == 0
        assert retained(broker) == set()


def test_a_will_that_is_retained_is_noted() -> None:
    with Running() as broker:
        run, _ = fleets.begin(SCENARIO.replace("tests.iot_sim.stub_device:Stub", "environment"),
                              broker.port)  # fmt: skip
        seen: set[str] = set()
        context = run.context
        context.engine.after(0.5, lambda: seen.update(context.retained))
        run.run()
        assert len(seen) == 20 and retained(broker) == set()


def test_a_broker_that_is_gone_is_a_remark() -> None:
    with Running() as broker:
        run, _ = fleets.begin(SCENARIO, broker.port)
        run.context.retained.add("a/b")
    cleaner = RetainedCleaner(run.context, "cleaner")
    cleaner.connect()
    engine = run.context.engine
    while not cleaner.is_over:
        engine.turn(engine.clock.now() + 0.1)
    assert cleaner.left == ["a/b"] and cleaner.problem
    engine.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"\x20\x03\x00\x87\x00", "connection refused: not authorized"),
        (b"\x20\x03\x00\x00\x00\x40\x03\x00\x01\x87", "refused: not authorized"),
        (b"\x20\x03\x00\x00\x00\xe0\x01\x8b", "disconnected by the broker"),
        (b"\x20\xff\xff\xff\xff", "broke the protocol"),
    ],
)
def test_what_the_broker_refuses_is_left(answer: bytes, problem: str) -> None:
    with Running() as broker:
        run, _ = fleets.begin(SCENARIO, broker.port)
        run.context.retained.add("a/b")
        cleaner = RetainedCleaner(run.context, "cleaner")
        link = run.context.engine.connect(run.context.target, run.context.address, cleaner)
        cleaner.on_data(link, answer)
        assert cleaner.is_over and cleaner.left == ["a/b"]
        assert problem in cleaner.problem.lower()
        run.context.engine.close()
