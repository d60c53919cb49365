"""The load generator against our own broker: what it sends arrives, and what fails is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iot_sim.bench import load, run
from iot_sim.bench.counts import Counts, Sample
from iot_sim.bench.plan import CONNECT, PUBLISH, SUBSCRIBE, Plan
from iot_sim.run.processes import Broker, RunError
from mqtt_broker.codec.constants import V5, V31, V311
from mqtt_broker.testing import ThreadedBroker
from tests.iot_sim.web_server import web_server
from tests.server.running import Running
from tests.server.transports import HOST, Files, endpoint


def played(broker: Running, plan: Plan, workers: int = 1) -> tuple[run.Merger, list[Sample]]:
    samples: list[Sample] = []
    return run.run(plan, Broker(HOST, broker.port), workers, samples.append), samples


def publishers(**fields: Any) -> Plan:
    known = {"clients": 3, "connect_rate": 1e6, "topic": "b/%i", "interval_s": 0.001, "messages": 5}
    return Plan(PUBLISH, **{**known, **fields})


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_message_is_sent_and_acknowledged(version: int, qos: int) -> None:
    with Running(endpoint()) as broker:
        whole, samples = played(broker, publishers(version=version, qos=qos))
    assert (whole.total.connected, whole.total.sent, whole.total.errors) == (3, 15, {})
    assert whole.total.acknowledged == whole.total.acknowledgement.count == (15 if qos else 0)
    assert sum(sample.counts.sent for sample in samples) == 15
    assert whole.online_max == 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_count_what_arrives_and_how_long_it_took(qos: int) -> None:
    with Running(endpoint()) as broker:
        target, address = Broker(HOST, broker.port).target(), (2, (HOST, broker.port))
        total = Counts()

        def publish_once(sample: Sample) -> None:
            total.add(sample.counts)
            if sample.second == 0:
                played(broker, publishers(qos=qos))
            if total.received >= 30:
                subscribers.stop()

        plan = Plan(SUBSCRIBE, 2, connect_rate=1e6, topic="b/#", qos=qos)
        subscribers = load.Load(plan, target, address, publish_once)
        subscribers.run()
    assert total.received == total.delivery.count == 30
    assert total.errors == {}


def test_several_processes_share_the_clients() -> None:
    with Running(endpoint()) as broker:
        whole, _ = played(broker, publishers(clients=5, qos=1), workers=2)
    assert (whole.total.connected, whole.total.acknowledged) == (5, 25)


def test_connections_are_only_held() -> None:
    with Running(endpoint()) as broker:
        plan = Plan(CONNECT, 10, connect_rate=1e6, duration_s=0.3)
        whole, _ = played(broker, plan)
    assert (whole.total.connected, whole.total.lost, whole.total.connect.count) == (10, 0, 10)


def test_what_the_broker_refuses_is_counted_by_its_reason() -> None:
    with Running(endpoint()) as broker:
        whole, _ = played(broker, publishers(topic="$SYS/x", qos=1, messages=2))
        assert whole.total.errors == {"not published: Not authorized": 6}
        plan = Plan(SUBSCRIBE, 1, topic="$share//x", duration_s=0.3)
        whole, _ = played(broker, plan)
    assert whole.total.lost == 1
    [what] = whole.total.errors
    assert what.startswith("disconnected by the broker")


def test_a_broker_that_goes_is_counted_and_ends_the_publishers() -> None:
    with Running(endpoint()) as broker:
        target, address = Broker(HOST, broker.port).target(), (2, (HOST, broker.port))
        total = Counts()

        def end_the_broker(sample: Sample) -> None:
            total.add(sample.counts)
            if sample.second == 0:
                broker.stop()

        plan = publishers(messages=1_000_000, interval_s=0.01)
        load.Load(plan, target, address, end_the_broker).run()
    assert (total.connected, total.lost) == (3, 3)


def test_a_port_that_wants_tls_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    with Running(endpoint(tls=Files(tmp_path).rules())) as broker:
        whole, _ = played(broker, publishers())
    text = "connection closed by the broker before CONNACK; perhaps its port wants TLS"
    assert whole.total.errors == {text: 3}


def test_a_process_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WORKER_PROGRAM", "raise SystemExit(3)")
    with Running(endpoint()) as broker, pytest.raises(RunError, match="exit code 3"):
        played(broker, publishers(), workers=2)


def test_a_publisher_that_has_sent_its_messages_waits_for_the_others() -> None:
    with Running(endpoint()) as broker:
        whole, _ = played(broker, publishers(clients=2, connect_rate=4, messages=2))
    assert whole.total.sent == 4


def test_a_publisher_without_end_goes_on_after_a_reconnect() -> None:
    with ThreadedBroker() as broker:
        plan = Plan(PUBLISH, 1, topic="b", interval_s=0.01, reconnects=True)
        seen: list[Counts] = []

        def kick_once(sample: Sample) -> None:
            seen.append(sample.counts)
            if sample.second == 0:
                broker.kick("bench-pub-1")
            again = sum(one.connected for one in seen[:-1]) == 2
            if sample.second > 20 or (again and sample.counts.sent):
                publisher.stop()

        target = Broker(HOST, broker.port).target()
        publisher = load.Load(plan, target, (2, (HOST, broker.port)), kick_once)
        publisher.run()
    assert sum(one.connected for one in seen) == 2
    assert len(seen) < 20


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("action", [CONNECT, PUBLISH, SUBSCRIBE])
def test_it_ends_when_nobody_is_connected_any_more(action: str, workers: int) -> None:
    """Without an end of its own, it would show rows of zeros for ever."""
    plan = Plan(action, 3, connect_rate=1e6, topic="b/1")
    with web_server() as port:
        whole = run.run(plan, Broker(HOST, port), workers, lambda sample: None)
    [(why, count)] = whole.total.errors.items()
    assert why.startswith("this is no MQTT port: it answers in HTTP")
    assert (count, whole.total.connected) == (3, 0)
