"""The size of a message is what it takes: properties are not kept decoded, layouts are bounded."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.properties import Properties, encode_properties
from mqtt_broker.core import dispatch
from sessions.messages.message import DeliveryOptions, Envelope
from tests.core.peers import World, publish

MANY = {prop.USER_PROPERTY: [(f"k{number}", f"v{number}") for number in range(300)]}
CASES: dict[str, tuple[str, int, dict[int, Any]]] = {
    "a small one": ("t", 1, {}),
    "a payload": ("t", 5_000, {}),
    "a long topic": ("t" * 3_000, 1, {}),
    "a topic of wide characters": ("\U0001f40c" + "t" * 3_000, 1, {}),
    "many user properties": ("t", 1, MANY),
    "an expiry": ("t", 1, {prop.MESSAGE_EXPIRY_INTERVAL: 1_000}),
    "a long correlation": ("t", 1, {prop.CORRELATION_DATA: bytes(5_000)}),
}
COUNT = 100


@pytest.mark.skipif(not dispatch.__file__.endswith(".py"), reason="compiled objects are not traced")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_online", [False, True])
def test_what_is_counted_is_what_is_kept(name: str, is_online: bool) -> None:
    topic, size, properties = CASES[name]
    world = World()
    reader = world.client("s", clean=False, expiry=1_000, receive_maximum=65_535)
    reader.subscribe("#", qos=1)
    reader.connection.outbox.write = lambda data: 0
    if not is_online:
        reader.drop()
    publisher = world.client("p")

    def send(first: int) -> None:
        for number in range(first, first + COUNT):
            payload = b"%0*d" % (size, number)
            data = publish(topic, payload, qos=1, packet_id=number, properties=properties)
            publisher.send(data)
            publisher.received.clear()

    send(1)  # tables and caches
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    send(1 + COUNT)
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    outbound = reader.connection.session.outbound
    if outbound.queue is None:
        message = next(iter(outbound.window.unacked.values()))[0]
    else:
        message = outbound.queue.head[0][0]
    counted = message.envelope.size * COUNT
    assert kept <= counted * 1.2, (kept / COUNT, counted / COUNT)
    assert kept >= counted * 0.35, (kept / COUNT, counted / COUNT)


@pytest.mark.parametrize(("size", "count"), [(10, 32), (60_000, 1)])
def test_layouts_of_a_large_message_are_few(size: int, count: int) -> None:
    """Each identifier and second makes another; those of a small one stay for many."""
    properties = Properties({prop.CORRELATION_DATA: bytes(size)})
    section = encode_properties(properties)
    envelope = Envelope("t", 1, False, properties, section, 1, "c", 0.0)
    for identifier in range(1, 100):
        envelope.layout(True, DeliveryOptions(1, subscription_ids=(identifier,)), 1.0)
    layouts = envelope.layouts
    assert layouts is not None and 0 < len(layouts) <= count


def test_properties_are_sent_as_they_came_long_after_they_were_forgotten() -> None:
    world = World()
    reader = world.client("s", clean=False, expiry=1_000)
    reader.subscribe("t", qos=1)
    reader.drop()
    pairs = [("b", "2"), ("a", "1"), ("b", "2")]
    found = {
        prop.USER_PROPERTY: pairs,
        prop.MESSAGE_EXPIRY_INTERVAL: 60,
        prop.CONTENT_TYPE: "text",
        prop.TOPIC_ALIAS: 3,
    }
    world.client("p").send(publish("t", b"x", qos=1, properties=found))
    world.wait(10)
    reader = world.client("s", clean=False, expiry=1_000)
    (message,) = reader.publishes()
    assert message.properties == {
        prop.USER_PROPERTY: pairs,
        prop.MESSAGE_EXPIRY_INTERVAL: 50,
        prop.CONTENT_TYPE: "text",
    }
    reader.send(encode_ack(PUBACK, 1))
