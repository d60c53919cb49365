"""Traces of messages: spans, their parents, and the context that subscribers get."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, V5
from mqtt_broker.codec.encode import encode_ack
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
        self.attach()

    def attach(self) -> None:
        """Trace the messages of the world's broker, which may be a new one."""
        self.world.broker.runtime.message_tracer = self.telemetry
        self.world.broker.backlog.tracer = self.telemetry

    def take(self) -> list[Any]:
        """Return what has ended since the last time."""
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def deliveries(self) -> list[tuple[str, str, int, int]]:
        """Return (client, how, QoS, messages) of what was delivered since the last time."""
        return [
            (
                span.attributes["messaging.client.id"],
                span.attributes["mqtt.delivery"],
                span.attributes["mqtt.qos"],
                span.attributes["messaging.batch.message_count"],
            )
            for span in self.take()
            if span.name == "deliver"
        ]


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
    assert names == ["publish a/b"]
    world.pack()
    world.store.commit()
    spans = {span.name: span for span in traced.exporter.get_finished_spans()}
    assert spans["store"].parent.span_id == spans["publish a/b"].context.span_id


def test_what_waits_for_a_session_has_its_span_when_it_leaves_also_after_a_restart() -> None:
    world = StoredWorld()
    traced = Traced(world)
    absent = world.client("s", clean=False, expiry=100)
    absent.subscribe("a/b", qos=1)
    absent.drop()
    world.client("p").send(message(qos=1))
    world.pack()
    world.store.commit()
    [top] = [span for span in traced.take() if span.name == "publish a/b"]
    world.restart()
    traced.attach()
    world.now += 7
    back = world.client("s", clean=False, expiry=100)
    world.page()
    assert len(back.publishes()) == 1
    [deliver] = traced.take()
    assert deliver.name == "deliver"
    assert deliver.context.trace_id == top.context.trace_id
    assert deliver.parent.span_id == top.context.span_id
    assert deliver.attributes["mqtt.delivery"] == "waited"
    assert deliver.end_time - deliver.start_time >= 7e9
    back.drop()
    world.client("s", clean=False, expiry=100)
    world.commit()
    [again] = traced.take()
    assert again.attributes["mqtt.delivery"] == "repeated"
    assert again.start_time == again.end_time


def test_a_receive_maximum_makes_messages_wait() -> None:
    traced = Traced(World())
    subscriber = traced.world.client("s", receive_maximum=2)
    subscriber.subscribe("#", qos=1)
    traced.world.client("p").send(*[message(qos=1, packet_id=1 + n) for n in range(3)])
    assert traced.deliveries() == [("s", "sent", 1, 2)]
    traced.world.now += 1
    subscriber.send(encode_ack(PUBACK, 1))
    assert traced.deliveries() == [("s", "waited", 1, 1)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_receiver_of_each_kind_has_one_span(qos: int) -> None:
    traced = Traced(World())
    world = traced.world
    for name, version in (("old", V311), ("new", V5)):
        world.client(name, version).subscribe("a/+", qos=qos)
    world.client("ids").subscribe("a/b", qos=qos, identifier=7)
    aliases = world.client("aliases", alias_maximum=3)
    aliases.subscribe("a/b", qos=qos)
    world.client("member").subscribe("$share/g/a/#", qos=qos)
    world.client("p").send(message(qos=qos))
    names = ["aliases", "ids", "member", "new", "old"]
    assert sorted(traced.deliveries()) == [(name, "sent", qos, 1) for name in names]


def test_a_shared_message_is_traced_to_each_member_that_gets_it() -> None:
    traced = Traced(World())
    one, other = (traced.world.client(name) for name in ("one", "other"))
    one.subscribe("$share/g/a/b", qos=1)
    traced.world.client("p").send(message(qos=1))
    [publish_, deliver] = sorted(traced.take(), key=lambda span: str(span.name), reverse=True)
    assert deliver.attributes["mqtt.shared_subscription"] == "$share/g/a/b"
    other.subscribe("$share/g/a/b", qos=1)
    traced.world.now += 3
    one.drop()  # without an acknowledgement
    [moved] = traced.take()
    assert moved.parent.span_id == deliver.parent.span_id == publish_.context.span_id
    assert moved.attributes["messaging.client.id"] == "other"
    assert moved.attributes["mqtt.delivery"] == "waited"


def test_a_message_that_is_dropped_says_why() -> None:
    traced = Traced(World(queue_messages_max=1))
    absent = traced.world.client("s", clean=False, expiry=100)
    absent.subscribe("a/b", qos=1)
    absent.drop()
    publisher = traced.world.client("p")
    publisher.send(message(qos=1, packet_id=1), message(qos=1, packet_id=2))
    [drop] = [span for span in traced.take() if span.name == "drop"]
    assert drop.attributes["error.type"] == "queue_full"
    assert drop.status.status_code.name == "ERROR"


def test_a_refused_message_has_no_delivery() -> None:
    traced = Traced(World(maximum_qos=2, retained_messages_max=1))
    world = traced.world
    world.client("s").subscribe("#")
    publisher = world.client("p")
    publisher.send(publish("other", b"x", retain=True))
    publisher.send(message(qos=1, retain=True))
    assert [span.name for span in traced.take()] == ["publish a/b"]


def test_a_retained_message_is_not_under_way_all_the_time() -> None:
    traced = Traced(World())
    traced.world.client("p").send(message(retain=True))
    traced.world.now += 86_400
    traced.take()
    traced.world.client("late").subscribe("a/b")
    [deliver] = traced.take()
    assert deliver.start_time == deliver.end_time


def test_only_so_many_spans_a_second_begin(caplog: pytest.LogCaptureFixture) -> None:
    from mqtt_broker.server.services.telemetry import SPANS_PER_S

    traced = Traced(World())
    for name in ("a", "b", "c"):
        traced.world.client(name).subscribe("#")
    publisher = traced.world.client("p")
    for n in range(SPANS_PER_S):
        publisher.send(message(packet_id=1 + n))
    assert len(traced.take()) == SPANS_PER_S
    [line] = caplog.messages
    assert line == "traces: more than 1000 spans a second; 1 left out so far"
    traced.world.now += 1
    publisher.send(message())
    assert len(traced.take()) == 4


class Stubborn:
    """Does with spans what it is told."""

    def __init__(self) -> None:
        self.outcome: Any = sdk.SpanExportResult.SUCCESS

    def export(self, spans: object) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is not sdk.SpanExportResult.SUCCESS:
            logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("no")
        return self.outcome

    def shutdown(self) -> None:
        """Nothing to end."""


def test_a_collector_that_takes_nothing_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    from mqtt_broker.server.services.telemetry import Collector

    exporter = Stubborn()
    collector = Collector(exporter, "http://c:4318")
    outcomes = [sdk.SpanExportResult.FAILURE, OSError("gone"), sdk.SpanExportResult.SUCCESS]
    for outcome in (*outcomes, *outcomes[1:]):
        exporter.outcome = outcome
        collector.export([])
        collector.export([])
    lost = "traces: http://c:4318 takes no spans, they are dropped until it does: "
    found = "traces: http://c:4318 takes spans again"
    assert caplog.messages == [lost + "no", found, lost + "gone", found]


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


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://a", "http://", "http://a b"])
def test_the_endpoint_is_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="otel_endpoint is a URL such as"):
        load_values({"otel_endpoint": url})


def test_a_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match="otel_sample is 0 to 1"):
        load_values({"otel_sample": 2.0})
    assert load_values({"otel_sample": 0.5}).otel_sample == 0.5
