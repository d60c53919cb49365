"""The number of Locust users over time, from the load shapes of a scenario.

    locust -f iot_sim/locustfile.py,iot_sim/locust_users/shape.py --sim-scenario soak --host ...

The scenario's `devices` shapes set the share of its fleets that is connected, and its `duration_s`
the end of the test. Each device publishes at its own interval.
"""

from __future__ import annotations

from typing import Final

from locust import LoadTestShape

from iot_sim.scenarios.file import load
from iot_sim.scenarios.scenario import Scenario

SCENARIO_DEFAULT: Final = "smart_home"
OTHERS_SHARE: Final = 1.15  # subscribers, commanders and churners beside the devices


def users_at(scenario: Scenario, t: float) -> int:
    """Return the number of users at `t`: the devices, and a share of other users."""
    devices = sum(
        round(fleet.count * min(1.0, fleet.factor("devices", t))) for fleet in scenario.fleets
    )
    return max(1, round(devices * OTHERS_SHARE))


class ScenarioShape(LoadTestShape):
    """The number of users by the load shapes of the scenario; Locust calls `tick` every second."""

    _scenario: Scenario | None = None

    def tick(self) -> tuple[int, float] | None:
        if self._scenario is None:
            assert self.runner is not None, "Locust sets the runner before the first tick"
            options = self.runner.environment.parsed_options
            self._scenario = load(getattr(options, "sim_scenario", SCENARIO_DEFAULT))
        t = self.get_run_time()  # type: ignore[no-untyped-call]
        if t >= self._scenario.duration_s:
            return None
        return users_at(self._scenario, t), self._scenario.connect_rate_per_s
