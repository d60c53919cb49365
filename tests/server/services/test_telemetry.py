"""Traces of messages: spans, their parents, and the context that subscribers get."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.server.config.config import load_values
from mqtt_broker.server.config.tables import ConfigError
from tests.core.peers import V311, World, publish
from tests.core.stored import StoredWorld

sdk = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"


class Traced:
    """A world whose messages are traced into memory."""

    def __init__(self, world: World, sample: float = 0.0) -> None:
        from mqtt_broker.server.services.telemetry import Telemetry

        self.exporter = memory.InMemorySpanExporter()
        self.telemetry = Telemetry("", sample, sdk.SimpleSpanProcessor(self.exporter))
        self.world = world
        world.broker.runtime.message_tracer = self.telemetry

    def spans(self) -> dict[str, object]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def message(traceparent: str = PARENT, **more: object) -> bytes:
    pairs = [("one", "1"), ("traceparent", traceparent)] if traceparent else [("one", "1")]
    return publish("a/b", b"x" * 20, properties={prop.USER_PROPERTY: pairs}, **more)  # type: ignore[arg-type]


def test_the_delivery_is_a_child_of_the_publish() -> None:
    traced = Traced(World())
    subscriber = traced.world.client("s")
    subscriber.subscribe("a/+", qos=1)
    traced.world.client("p").send(message(qos=1))
    spans = {span.name: span for span in traced.exporter.get_finished_spans()}
    assert set(spans) == {"publish a/b", "deliver"}
    top, deliver = spans["publish a/b"], spans["deliver"]
    assert format(top.context.trace_id, "032x") == PARENT[3:35]
    assert format(top.parent.span_id, "016x") == PARENT[36:52]
    assert deliver.parent.span_id == top.context.span_id
    assert deliver.attributes["messaging.client.id"] == "s"
    [packet] = subscriber.publishes()
    pairs = dict(packet.properties[prop.USER_PROPERTY])  # type: ignore[arg-type]
    assert pairs["one"] == "1"
    assert pairs["traceparent"] == f"{PARENT[:35]}-{top.context.span_id:016x}-01"
    assert packet.payloads() == [b"x" * 20]


def test_what_is_stored_has_a_span_until_it_is_on_disk() -> None:
    world = StoredWorld()
    traced = Traced(world)
    absent = world.client("s", clean=False, expiry=100)
    absent.subscribe("a/b", qos=1)
    absent.drop()
    world.pack()
    world.store.commit()
    world.client("p").send(message(qos=1))
    names = [span.name for span in traced.exporter.get_finished_spans()]
    assert sorted(names) == ["deliver", "publish a/b"]
    world.pack()
    world.store.commit()
    spans = {span.name: span for span in traced.exporter.get_finished_spans()}
    assert spans["store"].parent.span_id == spans["publish a/b"].context.span_id
    assert spans["deliver"].attributes["mqtt.delivery"] == "queued"


@pytest.mark.parametrize(
    ("traceparent", "sample", "count"),
    [
        (PARENT, 0.0, 1),
        (UNSAMPLED, 0.0, 0),
        (UNSAMPLED, 1.0, 1),
        ("", 0.0, 0),
        ("", 1.0, 1),
        ("nonsense", 0.0, 0),
        ("00-" + "0" * 32 + "-" + "0" * 16 + "-01", 1.0, 1),
        ("x" * 60_000, 1.0, 1),
    ],
)
def test_what_is_sampled(traceparent: str, sample: float, count: int) -> None:
    traced = Traced(World(), sample)
    subscriber = traced.world.client("s")
    subscriber.subscribe("#")
    traced.world.client("p").send(message(traceparent))
    assert len(subscriber.publishes()) == 1
    names = [span.name for span in traced.exporter.get_finished_spans()]
    assert names.count("publish a/b") == count


def test_a_run_of_messages_and_3_1_1_arrive_whole() -> None:
    traced = Traced(World(), 1.0)
    subscriber = traced.world.client("s")
    subscriber.subscribe("#", qos=2)
    publisher = traced.world.client("p")
    publisher.send(*[message(qos=1, packet_id=1 + n) for n in range(5)])
    publisher.send(publish("a/b", b"y", qos=2, packet_id=9))
    traced.world.client("old", V311).send(publish("a/b", b"z", version=V311))
    assert subscriber.payloads() == [b"x" * 20] * 5 + [b"y", b"z"]


def test_a_topic_alias_is_resolved() -> None:
    traced = Traced(World(), 1.0)
    subscriber = traced.world.client("s")
    subscriber.subscribe("#")
    publisher = traced.world.client("p")
    publisher.send(publish("a/b", b"1", properties={prop.TOPIC_ALIAS: 3}))
    publisher.send(publish("", b"2", properties={prop.TOPIC_ALIAS: 3}))
    assert [(p.topic, p.payloads()) for p in subscriber.publishes()] == [
        ("a/b", [b"1"]),
        ("a/b", [b"2"]),
    ]
    names = [span.name for span in traced.exporter.get_finished_spans()]
    assert names.count("publish a/b") == 2


def test_off_means_nothing_is_imported() -> None:
    code = (
        "import sys; import mqtt_broker.server.server, mqtt_broker.core.inbound.publish; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match="otel_sample is 0 to 1"):
        load_values({"otel_sample": 2.0})
    assert load_values({"otel_sample": 0.5}).otel_sample == 0.5
