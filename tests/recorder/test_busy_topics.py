"""Counters of the busiest topics."""

from __future__ import annotations

from mqtt_broker.recorder.busy_topics import FIGURES_BYTES, BusyTopics, rate_of


def test_the_busiest_come_first() -> None:
    topics = BusyTopics(1 << 20)
    for name, count in (("slow", 10), ("fast", 100)):
        topics.find(name, 0).messages += count
    assert [one.topic for one in topics.busiest(5, 10_000)] == ["fast", "slow"]
    assert [one.topic for one in topics.busiest(1, 10_000)] == ["fast"]


def test_the_quieter_half_is_forgotten() -> None:
    topics = BusyTopics(10 * FIGURES_BYTES)
    for number in range(10):
        topics.find(f"t{number}", 0).messages += number
    topics.find("new", 1_000)
    assert len(topics) == 6
    assert {one.topic for one in topics.busiest(9, 1_000)} == {"t5", "t6", "t7", "t8", "t9", "new"}


def test_a_rate_is_of_the_last_seconds() -> None:
    topics = BusyTopics(1 << 20)
    figures = topics.find("t", 0)
    figures.messages += 1_000
    assert rate_of(figures, 1_000) == 1_000
    assert rate_of(topics.find("t", 5_000), 6_000) == 1_000 / 6
    figures = topics.find("t", 60_000)
    assert rate_of(figures, 65_000) == 0


def test_it_is_bounded() -> None:
    topics = BusyTopics(100 * FIGURES_BYTES)
    for number in range(10_000):
        topics.find(f"t{number}", number)
    assert len(topics) <= 100
    assert topics.bytes <= 100 * FIGURES_BYTES + 1_000


def test_long_names_count_with_their_bytes() -> None:
    topics = BusyTopics(1 << 20)
    topics.find("short", 0).messages += 5
    for number in range(1_000):
        topics.find(f"{number}/" + "t" * 60_000, number)
    assert len(topics) < 20
    assert topics.find("short", 1_000).messages == 5
