"""From other brokers into a log: nothing acknowledged is missing, whatever is killed."""

from __future__ import annotations

import argparse
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.client.blocking import Address, Client
from mqtt_broker.client.protocol import Connected, Event, Message, RequestAcknowledged
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Connect, SubscriptionRequest
from mqtt_broker.codec.properties import Properties
from mqtt_broker.server.config.endpoints import WebSocketRules
from mqtt_broker.testing import ThreadedBroker
from spark_ingest.bridge.bridge import BridgeError, add_bridge_arguments, device_rule, run_bridge
from tests.server.running import Running
from tests.server.transports import Files, endpoint
from tests.spark_ingest.bridges import (
    MOSQUITTO,
    Bridge,
    Publisher,
    logged,
    mosquitto,
    until,
)

FILTER = ("--filter", "fleet/+/telemetry")


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadedBroker(receive_maximum=1000) as broker:
        yield broker.port


@pytest.fixture(params=["ours", "mosquitto"])
def any_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == "ours":
        with ThreadedBroker(receive_maximum=1000) as broker:
            yield broker.port
    elif MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    else:
        with mosquitto(tmp_path) as port:
            yield port


def has_more(log: Path, before: int) -> bool:
    return len(logged(log)) > before


def test_what_was_acknowledged_is_there_after_kills(any_port: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    broker = f"mqtt://127.0.0.1:{any_port}"
    with Bridge(log, broker, *FILTER, "--partitions", "3") as bridge:
        bridge.connected()
    publisher = Publisher(any_port)
    try:
        for _ in range(3):
            with Bridge(log, broker, *FILTER) as bridge:
                bridge.connected()
                before = len(logged(log))
                publisher.send(1_500)
                until(partial(has_more, log, before), "something is logged")
            publisher.send(300)  # while nobody is there
        wanted = publisher.settle()
    finally:
        publisher.close()
    with Bridge(log, broker, *FILTER) as bridge:
        bridge.connected()
        until(
            lambda: {int(record.payload) for record in logged(log)} >= wanted, "all is in the log"
        )
        assert bridge.end(signal.SIGTERM) == 0
    found = Counter(int(record.payload) for record in logged(log))
    assert set(found) == wanted
    # Again is what was under way when the bridge was killed: a window each time, at most.
    assert sum(found.values()) - len(found) <= 4 * 2_000


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_broker_that_exceeds_receive_maximum(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as port:
        properties = Properties({prop.SESSION_EXPIRY_INTERVAL: 1_000, prop.RECEIVE_MAXIMUM: 200})
        connect = Connect(V5, "b", clean_start=False, keep_alive=60, properties=properties)
        client = Client(Address("127.0.0.1", port), connect)
        events: list[Event] = []

        def has(kind: type[Event], count: int) -> bool:
            events.extend(client.step(0.1)[0])
            return sum(isinstance(event, kind) for event in events) >= count

        until(lambda: has(Connected, 1), "the client is connected")
        client.protocol.subscribe([SubscriptionRequest("fleet/#", 1)])
        until(lambda: has(RequestAcknowledged, 1), "it is subscribed")
        publisher = Publisher(port)
        publisher.send(1_000)
        publisher.settle()
        until(lambda: has(Message, 200), "it has what it may have")
        client.protocol.disconnect(0x04)  # what it did not acknowledge is sent again
        client.flush()
        client.close()
        log = tmp_path / "log"
        options = ("--client-id", "b", "--inflight", "200")
        with Bridge(log, f"mqtt://127.0.0.1:{port}", "--filter", "fleet/#", *options) as bridge:
            bridge.connected()
            until(lambda: len(logged(log)) == 1_000, "all is in the log")
            assert bridge.end(signal.SIGTERM) == 0
        publisher.close()


def test_a_message_keeps_what_it_says(port: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Bridge(log, f"mqtt://127.0.0.1:{port}", "--filter", "#", "--device", "level:2",
                "--event-time", "property:at") as bridge:  # fmt: skip
        bridge.connected()
        publisher = Publisher(port)
        more = Properties(
            {
                prop.CONTENT_TYPE: "application/json",
                prop.CORRELATION_DATA: b"\0\1",
                prop.USER_PROPERTY: [("at", "2026-11-18T12:00:00Z"), ("a", "b")],
                prop.MESSAGE_EXPIRY_INTERVAL: 60,
            }
        )
        publisher.publish("fleet/d7/x", b"one", 1, properties=more)
        publisher.publish("short", b"", 0, retain=True)
        publisher.publish("fleet/d7/x", b"two", 2)
        until(lambda: len(logged(log)) == 3, "all is in the log")
        publisher.close()
        assert bridge.end(signal.SIGINT) == 0
    one, two, short = sorted(
        logged(log), key=lambda record: (record.topic == "short", record.offset)
    )
    assert (one.topic, one.client_id, one.payload, one.qos) == ("fleet/d7/x", "d7", b"one", 1)
    found = one.properties()
    assert found.text(prop.CONTENT_TYPE) == "application/json"
    assert found.binary(prop.CORRELATION_DATA) == b"\0\1"
    assert found.user == [("at", "2026-11-18T12:00:00Z"), ("a", "b")]
    assert prop.MESSAGE_EXPIRY_INTERVAL not in found
    assert one.event_us == 1_795_003_200_000_000
    assert abs(one.received_us - time.time_ns() // 1_000) < 3_600_000_000
    assert (short.client_id, short.payload, short.qos, short.retain) == ("short", b"", 0, True)
    assert two.section == b""


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_every_transport(tmp_path: Path, scheme: str) -> None:
    files = Files(tmp_path)
    listener = endpoint(
        tls=files.rules() if scheme in ("mqtts", "wss") else None,
        websocket=WebSocketRules() if scheme in ("ws", "wss") else None,
    )
    log = tmp_path / "log"
    with Running(endpoint(), listener) as broker:
        plain, other = (one.port for one in broker.bound)
        trust = ("--cafile", files.ca) if scheme in ("mqtts", "wss") else ()
        with Bridge(log, f"{scheme}://127.0.0.1:{other}", *FILTER, *trust) as bridge:
            bridge.connected()
            publisher = Publisher(plain)
            publisher.send(10)
            until(lambda: len(logged(log)) == 10, "all is in the log")
            publisher.close()
            assert bridge.end(signal.SIGTERM) == 0


def test_it_comes_back_when_the_broker_does(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = ThreadedBroker().start()
    try:
        bridge = Bridge(log, f"mqtt://127.0.0.1:{first.port}", *FILTER)
        with bridge:
            bridge.connected()
            first.stop()
            until(lambda: bridge.has_said("again in"), "it tries again")
            with ThreadedBroker(port=first.port) as second:
                until(
                    lambda: sum("connected to" in line for line in bridge.lines) == 2,
                    "it is connected again",
                )
                assert bridge.has_said("has no session")
                publisher = Publisher(second.port)
                publisher.send(10)
                until(lambda: len(logged(log)) == 10, "all is in the log")
                publisher.close()
                assert bridge.end(signal.SIGTERM) == 0
    finally:
        first.stop()


def test_two_with_one_session_do_not_fight(port: int, tmp_path: Path) -> None:
    broker = f"mqtt://127.0.0.1:{port}"
    with Bridge(tmp_path / "one", broker, *FILTER) as one:
        one.connected()
        with Bridge(tmp_path / "two", broker, *FILTER) as two:
            two.connected()
            assert one.process.wait(30) == 1
            until(lambda: one.has_said("another client has taken over"), "it says why")
            assert two.end(signal.SIGTERM) == 0


def test_one_log_has_one_writer(port: int, tmp_path: Path) -> None:
    broker = f"mqtt://127.0.0.1:{port}"
    with Bridge(tmp_path, broker, *FILTER) as one:
        one.connected()
        with Bridge(tmp_path, broker, *FILTER, "--client-id", "other") as two:
            assert two.process.wait(30) == 1
            until(lambda: two.has_said("another process writes here"), "it says why")


def command(*argv: str, log: Path) -> tuple[int, list[str]]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_bridge_arguments(parser)
    lines: list[str] = []
    args = parser.parse_args(
        ["--broker", "mqtt://127.0.0.1:1", "--filter", "#", "--stream", "t", "--log", str(log),
         *argv]
    )  # fmt: skip
    return run_bridge(args, lines.append), lines


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--broker", "http://x"], "--broker: 'http://x' is not a broker URL"),
        (
            ["--broker", "mqtt://x:99999"],
            "is not a broker URL: the port is not a number",
        ),
        (["--broker", "mqtt://"], "is not a broker URL: the host is missing"),
        (["--filter", "a/#/b"], "--filter: 'a/#/b': # must be the last level"),
        (["--device", "level:0"], "--device: 'level:0' is not topic"),
        (["--partitions", "0"], "--partitions: '0' is not a whole number from 1 to 256"),
        (["--inflight", "many"], "--inflight: 'many' is not a whole number"),
        (["--retain", "long"], "retain: 'long' is not a duration"),
        (["--stream", "../x"], "name: '../x' is invalid: expected up to 100"),
        (["--schema", "/nowhere.json"], "--schema: /nowhere.json: No such file"),
        (["--cafile", "/nowhere.pem"], "--cafile: needs a broker at mqtts://"),
        (["--broker", "mqtts://x", "--cafile", "/nowhere"], "--cafile: there is no file /nowhere"),
        (["--broker", "mqtt://:secret@x"], "--username: it is missing, and there is a password"),
        (["--password-file", "/nowhere"], "--password-file: /nowhere: No such file"),
        (["--event-time", "somewhere"], "event_time: 'somewhere' is invalid"),
        (["--partition-by", "no_module.f"], "partition function: no_module.f: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(
    argv: list[str], said: str, tmp_path: Path
) -> None:
    code, lines = command(*argv, log=tmp_path / "log")
    assert code == 2
    assert len(lines) == 1
    assert said in lines[0]
    assert "secret" not in lines[0]
    assert not (tmp_path / "log").exists()


def test_partitions_of_a_stream_stay(port: int, tmp_path: Path) -> None:
    with Bridge(tmp_path, f"mqtt://127.0.0.1:{port}", *FILTER, "--partitions", "2") as bridge:
        bridge.connected()
        assert bridge.end(signal.SIGTERM) == 0
    code, lines = command("--stream", "telemetry", "--partitions", "3", log=tmp_path)
    assert (code, lines) == (
        2,
        ["fleetmq spark bridge: --partitions: stream 'telemetry' has 2, which cannot change"],
    )


@given(st.text(max_size=20), st.text(max_size=5))
def test_every_message_is_about_somebody(topic: str, value: str) -> None:
    assert device_rule("topic")(topic, []) == topic
    assert device_rule("level:1")(topic, []) == topic.split("/")[0]
    assert device_rule("level:9")("a/b", []) == "a/b"
    assert device_rule("property:id")(topic, [("x", "y"), ("id", value)]) == value
    assert device_rule("property:id")(topic, []) == topic
    with pytest.raises(BridgeError):
        device_rule("level:x")
