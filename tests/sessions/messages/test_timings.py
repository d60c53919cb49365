"""Histograms: each value in its bucket, turns by what they did, waits by their own time."""

from __future__ import annotations

from mqtt_broker.core.limits.settings import Settings, memory_limit_bytes
from sessions.messages.counters import Counters
from sessions.messages.timings import TIME_BUCKETS, Histogram, Timings, bit_length
from tests.core.peers import World, publish
from tests.core.stored import StoredWorld


def test_bit_length_is_that_of_integers() -> None:
    for value in (0, 1, 2, 255, 4_095, 4_096, 1 << 24, (1 << 24) - 1, 1 << 28, 1 << 70):
        assert bit_length(value) == value.bit_length()


def test_a_value_is_below_the_bound_of_its_bucket() -> None:
    for value in (0, 1, 2, 3, 4, 1_000, 1 << 20, 1 << 40, -5):
        histogram = Histogram()
        histogram.add(value, 3)
        [bucket] = [n for n, count in enumerate(histogram.counts) if count]
        assert histogram.counts[bucket] == 3
        assert max(value, 0) < 1 << bucket or bucket == TIME_BUCKETS - 1
        assert histogram.total == 3 * max(value, 0)
    histogram = Histogram()
    histogram.add_seconds(0.001)
    assert histogram.copy() == ([0] * 10 + [1] + [0] * 15, 1_000)


def test_a_turn_counts_what_it_did_at_once() -> None:
    counters = Counters(0.0)
    timings = Timings()
    timings.on_turn(0.5, 0)  # nothing is known of its work
    timings.count_with(counters)
    counters.packets_sent[4] += 10
    counters.packets_sent[3] += 5
    timings.hold(4)
    timings.on_late(2.0)
    timings.on_turn(0.001, 1)
    assert sum(timings.acknowledge.counts) == 6
    assert sum(timings.deliver.counts) == 6 and timings.deliver.total == 2_000_000 + 5 * 1_000
    timings.on_acknowledged(0.25, 4)
    timings.on_turn(0.001, 1)
    assert sum(timings.acknowledge.counts) == 10
    assert sum(timings.turn.counts) == 3


def test_a_broker_times_its_messages() -> None:
    world = World()
    world.client("s").subscribe("a", qos=1)
    world.client("p").send(publish("a", b"x" * 100, qos=1) * 3)
    world.broker.on_turn(0.002)
    timings = world.broker.state.timings
    assert sum(timings.acknowledge.counts) == sum(timings.deliver.counts) == 3
    assert sum(timings.packet_sizes) == 3 and timings.packet_sizes[7] == 3  # 65 to 128 bytes


def test_what_waits_for_the_store_counts_its_wait() -> None:
    world = StoredWorld()
    subscriber = world.client("s", clean=False, expiry=100)
    subscriber.subscribe("a", qos=1)
    subscriber.drop()
    world.pack()
    world.store.commit()
    publisher = world.client("p")
    publisher.send(publish("a", b"x", qos=1))
    timings = world.broker.state.timings
    assert timings.held == 1 and not sum(timings.acknowledge.counts)
    world.wait(2)
    world.pack()
    world.store.commit()
    assert (sum(timings.acknowledge.counts), timings.acknowledge.total) == (1, 2_000_000)
    world.wait(5)
    world.client("s", clean=False, expiry=100)
    assert timings.late == 1 and timings.deliver.total == 7_000_000


def test_the_limits_of_memory_add_up() -> None:
    small = memory_limit_bytes(Settings(retained_bytes_max=0))
    assert memory_limit_bytes(Settings(retained_bytes_max=1 << 20)) == small + (1 << 20)
