"""The simulator over ws:// and wss://: faults, verdict, bench, and what is said at other ports."""

from __future__ import annotations

import pytest

from iot_sim.bench import run as bench
from iot_sim.bench.counts import Sample
from iot_sim.bench.plan import PUBLISH, Plan
from iot_sim.judge.verdict import judge
from iot_sim.run import processes
from mqtt_broker.testing import ThreadedBroker
from tests.iot_sim.fleets import scenario_of

SCENARIO = """
duration_s = 2
[[fleets]]
name = "stubs"
model = "tests.iot_sim.stub_device:Stub"
count = 20
interval_s = 0.1
qos = { 0 = 0.3, 1 = 0.4, 2 = 0.3 }
backoff_min_s = 0.05
backoff_max_s = 0.2
"""
FAULTS = """
[[faults]]
kind = "link_loss"
share = 0.5
at_s = 0.4
for_s = 0.1
[[faults]]
kind = "stall"
share = 0.3
at_s = 0.8
for_s = 0.3
[[faults]]
kind = "takeover"
share = 0.3
at_s = 1.2
[[faults]]
kind = "slow_reader"
fleet = "observers"
share = 1
at_s = 0.6
for_s = 0.4
bytes_per_s = 40000
[limits]
lost_qos0_share_max = 0.2
"""


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_fleet_over_a_websocket_passes(scheme: str) -> None:
    scenario = scenario_of(SCENARIO)
    with ThreadedBroker(tls=scheme == "wss", websocket=True) as running:
        broker = processes.parse_broker(running.urls[scheme], ca_file=running.ca_file or "")
        assert str(broker).startswith(f"{scheme}://")
        outcome = processes.run(scenario, broker)
    verdict = judge(outcome, scenario.limits)
    assert verdict.passed, f"{verdict.broken} {outcome.errors}"
    assert outcome.total("sent") == outcome.total("delivered") > 300


def test_faults_work_as_over_tcp() -> None:
    scenario = scenario_of(SCENARIO + FAULTS)
    with ThreadedBroker(websocket=True) as running:
        outcome = processes.run(scenario, processes.parse_broker(running.urls["ws"]))
    verdict = judge(outcome, scenario.limits)
    assert verdict.passed, f"{verdict.broken} {outcome.errors}"
    assert outcome.counters["resumed"] >= 10 and outcome.counters["takeovers"] == 6
    assert outcome.counters["stalls"] == 6


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_bench_loads_a_websocket_with_large_messages(qos: int) -> None:
    samples: list[Sample] = []
    plan = Plan(PUBLISH, 3, connect_rate=1e6, topic="b/%i", interval_s=0.001, messages=5, qos=qos,
                payload_bytes=300_000)  # fmt: skip
    with ThreadedBroker(websocket=True) as running:
        whole = bench.run(plan, processes.parse_broker(running.urls["ws"]), 1, samples.append)
    assert (whole.total.connected, whole.total.sent, whole.total.errors) == (3, 15, {})
    assert whole.total.acknowledged == (15 if qos else 0)


def test_a_port_without_websocket_and_another_path_are_told() -> None:
    scenario = scenario_of(SCENARIO)
    with ThreadedBroker(websocket=True) as running:
        plain = processes.parse_broker(running.url.replace("mqtt://", "ws://"))
        with pytest.raises(processes.SetupError, match="WebSocket"):
            processes.run(scenario, plain)
        elsewhere = processes.parse_broker(running.urls["ws"].replace("/mqtt", "/elsewhere"))
        with pytest.raises(processes.SetupError, match=r"not a WebSocket: .*404"):
            processes.run(scenario, elsewhere)


def test_the_path_of_a_url() -> None:
    assert processes.parse_broker("ws://host").target().websocket_url == "ws://host:80/mqtt"
    found = processes.parse_broker("wss://u:p@[::1]:8084/a/b?c=1").target()
    assert found.websocket_url == "wss://[::1]:8084/a/b?c=1"
    assert (found.username, found.password) == ("u", b"p")
    assert processes.parse_broker("mqtt://host").target().websocket_url == ""
    with pytest.raises(processes.SetupError, match="remove '/x'"):
        processes.parse_broker("mqtt://host/x")
