"""Fleets against a real broker: traffic, sessions, faults, wills, commands, the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from iot_sim.run.process import NotReady, WorkerShare
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse, Verdict
from mqtt_broker.testing import ThreadedBroker
from tests.iot_sim.crooked import Proxy
from tests.iot_sim.fleets import begin, run
from tests.server.running import Running

FLEET = """
[[fleets]]
name = "stubs"
model = "tests.iot_sim.stub_device:Stub"
count = 20
interval_s = 0.1
backoff_min_s = 0.05
backoff_max_s = 0.2
"""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadedBroker() as broker:
        yield broker.port


@pytest.mark.parametrize("mqtt", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_that_is_sent_arrives(port: int, mqtt: str, qos: int) -> None:
    result = run(f'duration_s = 1\n{FLEET}qos = {qos}\nmqtt = "{mqtt}"', port)
    assert result.verdict.passed, result.explain()
    assert result.outcome.is_drained
    telemetry = next(one for one in result.outcome.tallies if one.kind == "telemetry")
    assert telemetry.sent == telemetry.delivered == telemetry.latency.count
    assert 150 <= telemetry.sent <= 220
    assert telemetry.acknowledged == (telemetry.sent if qos else 0)
    # A birth and a goodbye for each.
    others = sum(one.delivered for one in result.outcome.tallies if one.kind != "telemetry")
    assert others == 40
    assert result.outcome.counters["goodbyes"] == 21


def test_two_observers_share_the_filters_or_a_subscription(port: int) -> None:
    two = FLEET.replace("stubs", "others")
    split = run(f"duration_s = 1\n{FLEET}qos = 1\n{two}\n[observers]\nconnections = 2", port)
    assert split.verdict.passed, split.explain()
    shared = run(
        f'duration_s = 1\n{FLEET}qos = 1\n[observers]\nconnections = 3\nshared = "s"', port
    )
    assert shared.verdict.passed, shared.explain()
    assert shared.outcome.counters["connects"] == 23


def test_without_observers_nothing_is_judged(port: int) -> None:
    result = run(f"duration_s = 1\n{FLEET}qos = 1\nobserve = false", port)
    assert result.verdict.passed, result.explain()
    assert result.total("unjudged") == result.total("sent") > 100
    assert any("without an observer" in remark for remark in result.verdict.remarks)


@pytest.mark.parametrize(
    ("kind", "counter", "least"),
    [
        ("link_loss", "link_losses", 20),
        ("storm", "link_losses", 20),
        ("half_open", "half_opens", 10),
        ("stall", "stalls", 10),
        ("slow_reader", "slow_readers", 10),
        ("takeover", "takeovers", 20),
        ("kill", "kills", 20),
    ],
)
def test_faults_hit_and_nothing_promised_is_lost(
    port: int, kind: str, counter: str, least: int
) -> None:
    text = f"""
        duration_s = 2
        {FLEET}
        qos = {{ 1 = 0.5, 2 = 0.5 }}
        session_expiry_s = 60
        [[faults]]
        kind = "{kind}"
        share = 0.5
        at_s = 0.5
        every_s = 0.5
        for_s = 0.2
        """
    result = run(text, port)
    assert result.verdict.passed, result.explain()
    counters = result.outcome.counters
    assert counters[counter] >= least
    assert counters["dropped"] == counters["protocol_errors"] == 0
    if kind in ("link_loss", "storm", "takeover", "half_open"):
        assert counters["resumed"] >= least
        assert result.outcome.wills.due == result.outcome.wills.delivered >= least
    if kind == "kill":
        assert counters["resumed"] == 0


def test_an_observer_that_loses_its_link_misses_nothing(port: int) -> None:
    text = f"""
        duration_s = 2
        {FLEET}
        qos = {{ 1 = 0.5, 2 = 0.5 }}
        [[faults]]
        kind = "link_loss"
        fleet = "observers"
        share = 1.0
        at_s = 0.5
        every_s = 0.5
        for_s = 0.1
        """
    result = run(text, port)
    assert result.verdict.passed, result.explain()
    assert result.outcome.counters["resumed"] == 3


def test_delayed_wills_are_held_back_when_the_device_returns(port: int) -> None:
    text = f"""
        duration_s = 2
        {FLEET}
        session_expiry_s = 60
        options = {{ will_delay_s = 30 }}
        [[faults]]
        kind = "link_loss"
        share = 1.0
        at_s = 0.5
        for_s = 0.1
        [limits]
        lost_qos0_share_max = 1.0
        """
    result = run(text, port)
    assert result.verdict.passed, result.explain()
    assert result.outcome.wills.delivered == result.outcome.wills.due == 0
    assert result.outcome.counters["resumed"] == 20


def test_commands_are_answered(port: int) -> None:
    text = f"""
        duration_s = 2
        {FLEET}
        [[commands]]
        fleet = "stubs"
        command = "ping"
        at_s = 0.5
        every_s = 0.5
        share = 0.5
        [limits]
        command_answered_share_min = 1.0
        """
    result = run(text, port)
    assert result.verdict.passed, result.explain()
    commands = result.outcome.commands
    assert commands.sent == commands.answered == commands.latency.count == 30
    kinds = {(one.kind, one.delivered) for one in result.outcome.tallies}
    assert ("command", 30) in kinds and ("response", 30) in kinds


def test_a_session_without_its_subscriptions_gets_them(port: int) -> None:
    """The link went between CONNACK and SUBSCRIBE: the session is there, and nothing in it."""
    text = """
        duration_s = 2
        drain_s = 5
        [[fleets]]
        name = "stubs"
        model = "tests.iot_sim.stub_device:Stub"
        count = 10
        interval_s = 0.1
        backoff_min_s = 0.05
        backoff_max_s = 0.2
        session_expiry_s = 60
        [[commands]]
        fleet = "stubs"
        command = "ping"
        at_s = 1
        [limits]
        dropped_max = 10
        """
    with Proxy(port, lambda packet: [packet], cuts=10) as proxy:
        result = run(text, proxy.port)
        assert not proxy.cuts
    assert result.outcome.commands.answered == result.outcome.commands.sent > 0
    assert not [one for one in result.outcome.tallies if one.lost]


def test_a_mistake_of_a_model_costs_its_device_alone(port: int) -> None:
    text = f"""
        duration_s = 1
        {FLEET}
        qos = 1
        [[commands]]
        fleet = "stubs"
        command = "fail"
        at_s = 0.5
        share = 0.05
        timeout_s = 0.2
        """
    result = run(text, port)
    assert result.broken == {"device_errors_max"}, result.explain()
    assert "told to fail" in result.outcome.errors[0]
    assert result.total("sent", 1) > 50


def test_the_load_follows_its_shapes(port: int) -> None:
    text = f"""
        duration_s = 4
        {FLEET}
        qos = 1
        load = [
            {{ shape = "ramp", drives = "devices", low = 0.5, end_s = 2 }},
            {{ shape = "spike", start_s = 2, for_s = 1, low = 0.5, high = 3 }},
        ]
        """
    result = run(text, port)
    assert result.verdict.passed, result.explain()
    first, _, third, last = [sample.sent for sample in result.samples[:4]]
    assert third > 1.5 * first and third > 1.5 * last  # a busy machine sends some a second late
    assert result.samples[0].wanted < result.samples[2].wanted == 20


def test_the_parts_of_a_run_have_all_of_it(port: int) -> None:
    text = f"duration_s = 1\n{FLEET}qos = 1"
    parts = []
    for index in range(3):
        result = run(text, port, part=WorkerShare(index, 3), run_id=f"p{index}")
        assert result.verdict.passed, result.explain()
        parts.append(result.outcome)
    assert sum(outcome.flows for outcome in parts) == 60  # telemetry, birth and death of each
    whole = parts[0]
    for outcome in parts[1:]:
        whole.add(outcome)
    assert whole.total("sent") == whole.total("delivered")


def test_an_interrupt_ends_in_order(port: int) -> None:
    one, _ = begin(f"duration_s = 60\n{FLEET}qos = 1", port)
    timer = threading.Timer(0.7, one.interrupt)
    timer.start()
    outcome = one.run()
    assert outcome.was_interrupted and outcome.is_drained
    assert outcome.elapsed_s < 5
    assert outcome.total("sent") == outcome.total("delivered") > 50
    assert outcome.counters["goodbyes"] == 21


def test_a_broker_that_lets_nobody_in_gets_nothing() -> None:
    class Closed:
        guards_topics = False

        def connect(self, request: ConnectRequest) -> Verdict:
            return Refuse()

        def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
            return True

        def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
            return True

    with ThreadedBroker(access=Closed()) as broker:
        one, _ = begin(f"duration_s = 1\n{FLEET}", broker.port)
        with pytest.raises(NotReady, match="Not authorized"):
            one.run()


def test_refusals_of_a_broker_break_limits() -> None:
    class Quiet:
        guards_topics = True

        def connect(self, request: ConnectRequest) -> Verdict:
            return Allow(request.username)

        def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
            return not topic.endswith("/telemetry")

        def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
            return True

    with ThreadedBroker(access=Quiet()) as broker:
        result = run(f"duration_s = 1\n{FLEET}qos = 1", broker.port)
    assert result.broken == {"refused_max"}, result.explain()
    assert "Not authorized" in result.outcome.examples["refused"][0]


def test_a_small_receive_maximum_only_slows() -> None:
    with ThreadedBroker(receive_maximum=1) as broker:
        result = run(f"duration_s = 1\n{FLEET}qos = 2", broker.port)
    assert result.verdict.passed, result.explain()


def test_simulated_time_runs_at_its_speed(port: int) -> None:
    text = FLEET.replace("interval_s = 0.1", "interval_s = 60")
    result = run(f"duration_s = 1\nspeed = 600\n{text}qos = 1", port)
    assert result.verdict.passed, result.explain()
    telemetry = next(one for one in result.outcome.tallies if one.kind == "telemetry")
    assert 150 <= telemetry.sent <= 220


def test_what_waits_for_the_receive_maximum_is_late_from_when_it_was_due() -> None:
    with Running(receive_maximum=1) as broker:
        result = run(
            f"duration_s = 1\n{FLEET}qos = 1\n[observers]\nreceive_maximum = 1", broker.port
        )
    sent, due = result.outcome.latency(), result.outcome.latency_from_due()
    assert sent.count == due.count > 100 and due.total_us > sent.total_us
    acked, acked_due = result.outcome.ack_latency(), result.outcome.ack_latency_from_due()
    assert acked.count == acked_due.count and acked_due.total_us > acked.total_us
