"""Alerts that come back to a broker, and a broker that is away for a moment."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pyarrow as pa
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from mqtt_broker.testing import Broker, ThreadedBroker
from spark_ingest.contract.job import Output
from spark_ingest.contract.sink import SinkError
from spark_ingest.sinks.mqtt import MqttSink, parse

PATIENCE_S = 20.0
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


def listen(broker: ThreadedBroker, count: int) -> list[Any]:
    """What a new subscriber of `alerts/#` is told first."""
    found: queue.Queue[Any] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_connect = lambda client, *_: client.subscribe("alerts/#", 1)
    client.on_message = lambda client, data, message: found.put(message)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        return [found.get(timeout=PATIENCE_S) for _ in range(count)]
    finally:
        client.disconnect()
        client.loop_stop()


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
            assert 3_590 <= one.properties.MessageExpiryInterval <= 3_600

    def ids(messages: list[Any]) -> list[Any]:
        return sorted(one.properties.UserProperty for one in messages)

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
