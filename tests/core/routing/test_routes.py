"""What routes keep in memory: 65,536 topics may each have thousands of receivers."""

from __future__ import annotations

import gc
import tracemalloc

from mqtt_broker.core.routing.routes import Route, Routes
from mqtt_broker.topics.cache import MatchCache
from sessions.messages.work import Work
from tests.core.peers import World, publish


def test_a_receiver_of_many_topics_is_in_memory_once() -> None:
    world = World()
    readers = [world.client(f"r{n}") for n in range(200)]
    for number, reader in enumerate(readers):
        reader.subscribe("#", qos=number % 3, identifier=number % 2, no_local=number % 5 == 0)
    find, cache = world.broker.state.router.find, world.broker.routes.cache
    find("warm/up")
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for number in range(1_000):
            find(f"a/{number}")
        used = tracemalloc.get_traced_memory()[0]
        cache.clear()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert used < 200 * 1_000 * 24, "two references in lists, and what the list has to spare"
    assert left < used / 100, "targets are in no cycles"


def test_heavy_routes_push_each_other_out() -> None:
    world = World()
    for number in range(40):
        world.client(f"r{number}").subscribe("many/#", "few/+")
        if number > 2:
            world.peers[-1].subscribe("none")
    routes = world.broker.routes
    cache: MatchCache[Route] = MatchCache(bytes_max=10_000)
    routes.cache = cache
    find = world.broker.state.router.find
    for number in range(10, 40):
        find(f"many/{number}")
        assert cache.bytes <= 10_000
    weight = cache.bytes // len(cache.results)
    assert 40 * 16 < weight < 40 * 30 and len(cache.results) * weight == cache.bytes
    routes.cache.drop("many/39")
    assert cache.bytes == weight * len(cache.results)
    routes.cache.drop("many/#")
    assert cache.bytes == len(cache.results) == 0


def test_routes_of_long_names_and_of_overlapping_filters_hold_to_the_limit() -> None:
    """65,536 names of 512 characters were 300 MB, and targets of their own a gigabyte."""
    world = World()
    for number in range(20):
        reader = world.client(f"r{number}")
        for identifier, text in enumerate(("#", "+/#", "+/+/#"), 1):
            reader.subscribe(text, identifier=identifier)
    routes, find = world.broker.routes, world.broker.state.router.find
    cache: MatchCache[Route] = MatchCache(bytes_max=2 << 20)
    routes.cache = cache
    names = [f"{number}/" + "\U0001f600" * 500 for number in range(300)]
    find("warm/up")
    gc.collect()
    tracemalloc.start()
    try:
        for name in names:
            find(name)
            assert cache.bytes <= 2 << 20
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(cache.results) > 10
    assert used < cache.bytes + 1_500 * len(cache.results)


def test_a_subscription_that_replaces_one_has_a_target_of_its_own() -> None:
    world = World()
    reader, writer = world.client("r"), world.client("w")
    reader.subscribe("a", qos=0)
    writer.send(publish("a", b"1", qos=1))
    reader.subscribe("a", qos=1, identifier=7)
    writer.send(publish("a", b"2", qos=1, packet_id=2))
    reader.subscribe("a", qos=0, no_local=True)
    writer.send(publish("a", b"3", qos=1, packet_id=3))
    reader.send(publish("a", b"4"))
    found = [(p.payloads(), p.qos, p.properties.subscription_ids) for p in reader.publishes()]
    assert found == [([b"1"], 0, []), ([b"2"], 1, [7]), ([b"3"], 0, [])]


def test_routes_of_short_names_without_subscriptions_weigh_nothing() -> None:
    routes = Routes(Work())
    for number in range(100):
        routes.find(f"a/{number}", 0, 0, None, None)
    assert routes.cache.bytes == 0 and len(routes.cache.results) == 100
