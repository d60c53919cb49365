"""Alerts that come back to a broker, and a broker that is away for a moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from mqtt_broker.client.blocking import Address, Client, Deadline
from mqtt_broker.client.protocol import Connected, Message
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Connect, SubscriptionRequest
from mqtt_broker.core.interfaces.access import OpenAccess
from mqtt_broker.testing import Broker, ThreadedBroker
from spark_ingest.contract.job import Output
from spark_ingest.contract.sink import SinkError
from spark_ingest.sinks import mqtt
from spark_ingest.sinks.mqtt import MqttSink, parse

PATIENCE_S = 120.0
ALERTS = Output("alerts", ("device", "kind"))


class Alerts:
    """A batch, as far as this sink looks at it."""

    job = "anomalies"
    outputs = (ALERTS,)

    def __init__(self, *rows: tuple[str, str, float]) -> None:
        names = ("device", "kind", "value")
        self.tables = {"alerts": pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))}


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


def listen(broker: ThreadedBroker, count: int, text: str = "alerts/#") -> list[Message]:
    """The messages that a new subscriber gets first."""
    found: list[Message] = []
    deadline = Deadline(PATIENCE_S)
    address = Address(broker.host, broker.port)
    with Client(address, Connect(V5, "", keep_alive=60)) as client:
        while len(found) < count:
            deadline.check()
            for event in client.step(deadline.left_s)[0]:
                if isinstance(event, Connected):
                    client.protocol.subscribe([SubscriptionRequest(text, 1)])
                elif isinstance(event, Message):
                    client.protocol.acknowledge(event)
                    found.append(event)
    return found


class _Guarded(OpenAccess):
    """Refuses `alerts/secret`, and `dead/secret`."""

    guards_topics = True

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return not topic.endswith("/secret")


def test_a_message_that_is_refused_is_a_dead_letter() -> None:
    with ThreadedBroker(access=_Guarded()) as broker:
        sink = MqttSink(parse(f"{broker.url}?dead_letters=alerts/dead"))
        batch: Any = Alerts(("d1", "jump", 1.5), ("secret", "jump", 2.5))
        batch.dead_letters = 0
        sink.write(batch)
        assert batch.dead_letters == 1
        [message] = listen(broker, 1)
        assert message.topic == "alerts/d1"
        sink.close()
        sink = MqttSink(parse(f"{broker.url}?dead_letters=dead/secret"))
        with pytest.raises(SinkError, match=r"dead letter to 'dead/secret' .*Not authorized"):
            sink.write(batch)
        sink.close()


def test_a_refused_connection_fails_the_batch_at_once() -> None:
    with (
        ThreadedBroker(connections_max=1) as broker,
        Client(Address(broker.host, broker.port), Connect(V5, "only")) as client,
    ):
        while not client.protocol.connected:
            client.step()
        sink = MqttSink(parse(f"{broker.url}?timeout=1h"))
        with pytest.raises(SinkError, match=r"mqtt sink: 127.*refused the connection: .*0x"):
            sink.write(Alerts(("d1", "jump", 1.5)))  # type: ignore[arg-type]
        sink.close()


def test_the_connection_is_kept_between_batches(
    broker: ThreadedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "KEEP_ALIVE_S", 1)
    sink = MqttSink(parse(broker.url))
    batch: Any = Alerts(("d1", "jump", 1.5))
    sink.write(batch)
    client = sink.client
    assert client is not None
    before = client.protocol.next_tick
    assert before is not None
    deadline = Deadline(PATIENCE_S)
    while client.protocol.next_tick == before:
        deadline.check()
        time.sleep(0.01)
    sink.write(batch)
    assert sink.client is client
    sink.close()


def test_alerts_are_retained_expire_and_have_an_id(broker: ThreadedBroker) -> None:
    sink = MqttSink(parse(f"{broker.url}?expiry=1h"))
    batch: Any = Alerts(("d1", "jump", 1.5), ("d2", "silent", 0.0))
    sink.write(batch)
    first = listen(broker, 2)
    sink.write(batch)  # after a crash
    again = listen(broker, 2)
    sink.close()
    for messages in (first, again):
        assert sorted((one.topic, one.payload) for one in messages) == [
            ("alerts/d1", b'{"device":"d1","kind":"jump","value":1.5}'),
            ("alerts/d2", b'{"device":"d2","kind":"silent","value":0.0}'),
        ]
        for one in messages:
            assert one.retain and one.qos == 1
            assert 3_590 <= one.properties.number(prop.MESSAGE_EXPIRY_INTERVAL) <= 3_600

    def ids(messages: list[Message]) -> list[Any]:
        return sorted(one.properties.user for one in messages)

    assert ids(first) == ids(again) and len(ids(first)) == 2


def test_a_batch_waits_for_a_broker_that_is_away(broker: ThreadedBroker) -> None:
    port = broker.port
    sink = MqttSink(parse(f"mqtt://127.0.0.1:{port}?timeout=20s"))
    batch: Any = Alerts(("d1", "jump", 1.5))
    sink.write(batch)
    broker.stop()
    writing = threading.Thread(target=sink.write, args=(Alerts(("d3", "jump", 2.0)),))
    writing.start()

    async def serve() -> None:
        async with Broker(port=port):  # the same port, another life
            await asyncio.to_thread(writing.join, PATIENCE_S)

    asyncio.run(serve())
    assert not writing.is_alive()
    sink.close()


def test_a_broker_that_stays_away_fails_the_batch() -> None:
    sink = MqttSink(parse("mqtt://127.0.0.1:1?timeout=300ms"))
    with pytest.raises(SinkError, match=r"mqtt sink: 127\.0\.0\.1:1: .*refused"):
        sink.write(Alerts(("d1", "jump", 1.5)))  # type: ignore[arg-type]
    sink.close()


def test_a_job_without_alerts_is_told_so(broker: ThreadedBroker) -> None:
    sink = MqttSink(parse(f"{broker.url}?output=windows"))
    with pytest.raises(SinkError, match="anomalies has no output 'windows'"):
        sink.write(Alerts(("d1", "jump", 1.5)))  # type: ignore[arg-type]
