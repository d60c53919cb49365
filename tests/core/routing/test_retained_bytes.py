"""The bytes that retained messages keep, and the limit of them."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.packets import Ack
from mqtt_broker.codec.topic_names import known_topics
from tests.core.peers import Peer, World, publish
from tests.core.recount import check_bytes
from tests.core.stored import StoredWorld

DEEP = "/".join(["ab"] * 199)
MANY: Final = "with 5,000 empty properties"  # slow under `tracemalloc`
KINDS: dict[str, tuple[int, Callable[[int], str], dict[str, Any]]] = {
    "of a fleet": (150, lambda n: f"dev/device-{n}/state", {}),
    "with a topic of 201 levels": (40, lambda n: f"{n}/{DEEP}/{n}", {}),
    "with a topic of 20 KB": (20, lambda n: "x" * 20_000 + f"/{n}", {}),
    "with a payload of 20 KB": (20, lambda n: f"dev/{n}", {"payload": bytes(20_000)}),
    "with properties": (
        150,
        lambda n: f"dev/device-{n}/state",
        {
            "properties": {
                prop.USER_PROPERTY: [("name", "value")] * 3,
                prop.CONTENT_TYPE: "text/plain",
                prop.MESSAGE_EXPIRY_INTERVAL: 10_000,
            }
        },
    ),
    MANY: (
        10,
        lambda n: f"dev/device-{n}/state",
        {"properties": {prop.USER_PROPERTY: [("", "")] * 5_000}},
    ),
}
CASES: Final = [
    (kind, times, is_read)
    if kind != MANY or (times, is_read) == (1, False)
    else pytest.param(kind, times, is_read, marks=pytest.mark.slow)
    for kind in KINDS
    for times in (1, 2)
    for is_read in (False, True)
]


def packets(kind: str) -> list[bytes]:
    count, topic, fields = KINDS[kind]
    fields = {"payload": bytes(100), **fields}
    return [publish(topic(n), retain=True, **fields) for n in range(count)]


def said(peer: Peer, *sent: bytes) -> list[int]:
    """The reason codes of PUBACKs, in order."""
    codes: list[int] = []
    for packet in sent:
        peer.send(packet)
        found = [p for p in peer.take() if isinstance(p, Ack) and p.packet_type == PUBACK]
        codes += [ack.reason for ack in found]
    return codes


@pytest.mark.parametrize(("kind", "times", "is_read"), CASES)
def test_the_gauge_says_what_is_kept(kind: str, times: int, is_read: bool) -> None:
    """Also of topics that are published again, and of messages that were read."""
    world = World(
        recorder_bytes_max=0,
    )
    publisher, reader = world.client("p"), world.client("r")
    publisher.send(publish("warm/up", b"x", retain=True))
    before = world.broker.retained.bytes
    sent = packets(kind)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(times):
            for packet in sent:
                publisher.send(packet)
            known_topics.clear()
            if is_read:
                for identifier in range(3):
                    world.now += 1
                    reader.subscribe("#", qos=1, identifier=1 + identifier)
                    reader.take()
        world.broker.routes.cache.clear()
        reader.drop()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    found = world.broker.retained.bytes - before
    assert 0.7 * used < found < 1.3 * used
    check_bytes(world.broker)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gauge_after_a_restart(kind: str) -> None:
    world = StoredWorld()
    publisher = world.client("p")
    for packet in packets(kind):
        publisher.send(packet)
    world.fold()
    before = world.broker.retained.bytes
    world.restart()
    assert world.broker.retained.bytes == before
    check_bytes(world.broker)


def test_what_would_exceed_the_limit_is_refused() -> None:
    world = World(recorder_bytes_max=0, retained_bytes_max=50_000)
    publisher = world.client("p")
    codes = said(
        publisher,
        *[publish(f"{n}/{DEEP}", b"x", qos=1, retain=True) for n in range(60)],
    )
    assert world.broker.retained.bytes <= 50_000
    assert 10 < codes.count(0x97) < 50 and codes[0] == 0x10  # nobody subscribes
    assert said(publisher, publish(f"0/{DEEP}", b"y", qos=1, retain=True)) == [0x10]
    assert said(publisher, publish(f"0/{DEEP}", bytes(9_000), qos=1, retain=True)) == [0x97]
    assert said(publisher, publish(f"0/{DEEP}", b"", qos=1, retain=True)) == [0x10]
    assert said(publisher, publish(f"new/{DEEP}", b"y", qos=1, retain=True)) == [0x10]
    check_bytes(world.broker)


def test_more_than_the_limit_from_an_older_broker_is_there_and_may_shrink() -> None:
    world = StoredWorld()
    publisher = world.client("p")
    for n in range(50):
        publisher.send(publish(f"{n}/{DEEP}", bytes(500), retain=True))
    world.fold()
    world.settings = type(world.settings)(sys_interval_s=0, retained_bytes_max=10_000)
    world.restart()
    assert len(world.broker.retained) == 50
    publisher = world.client("p")
    answers = {}
    for payload in (bytes(501), bytes(499), b""):
        publisher.send(publish(f"3/{DEEP}", payload, qos=1, retain=True))
        world.commit()
        answers[len(payload)] = publisher.take()[0].reason
    assert answers == {501: 0x97, 499: 0x10, 0: 0x10}
    check_bytes(world.broker)


def test_publishers_that_come_and_go_are_counted() -> None:
    world = World(recorder_bytes_max=0, retained_bytes_max=100_000)
    for n in range(300):
        client = world.client(f"{n} " + "long name " * 100)
        client.send(publish(f"{n}", b"1", retain=True))
        client.drop()
    assert world.broker.retained.bytes <= 100_000 and len(world.broker.retained) < 100
    check_bytes(world.broker)
    for n in range(300):
        world.client("p").send(publish(f"{n}", retain=True))
    assert world.broker.retained.bytes == 0


def test_random_changes_are_counted() -> None:
    world = World(recorder_bytes_max=0, retained_bytes_max=20_000)
    rng = random.Random(1)
    clients = [world.client(f"client {n}") for n in range(3)]
    for _ in range(1_000):
        topic = "/".join(rng.choice(["a", "bb", "", "工"]) for _ in range(rng.randint(1, 6)))
        payload = bytes(rng.choice([0, 0, 1, 300]))
        rng.choice(clients).send(publish(topic or "a", payload, retain=True))
    check_bytes(world.broker)
