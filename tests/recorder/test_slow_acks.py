"""The ranking of slow subscribers."""

from __future__ import annotations

from mqtt_broker.recorder.figures import slow_figures
from mqtt_broker.recorder.slow_acks import LEAST_S, SlowAck, SlowAcks


def test_the_slowest_come_first() -> None:
    ranked = SlowAcks(1 << 20)
    ranked.note("a", "t", 1.0, 10.0)
    ranked.note("b", "t", 5.0, 10.0)
    ranked.note("a", "t", 3.0, 11.0)
    found = ranked.slowest(10, 12.0)
    assert [(one.client_id, one.slowest_s, one.count) for one in found] == [
        ("b", 5.0, 1),
        ("a", 3.0, 2),
    ]


def test_what_is_long_ago_counts_less() -> None:
    entry = SlowAck("a", "t")
    entry.note(8.0, 0.0)
    assert entry.weight(300.0) == 4.0
    assert entry.weight(-5.0) == 8.0  # the clock was set back


def test_it_is_bounded() -> None:
    ranked = SlowAcks(60_000)
    for number in range(1_000):
        ranked.note(f"c{number}", "t", 1.0 + number, 10.0)
    assert len(ranked.slowest(10_000, 10.0)) <= 100
    assert ranked.slowest(1, 10.0)[0].client_id == "c999"


def test_fast_ones_of_a_ranked_client_count_for_the_percentiles() -> None:
    ranked = SlowAcks(1 << 20)
    assert ranked.note("a", "t", 0.1, 1.0) == LEAST_S  # not ranked
    assert ranked.slowest(10, 1.0) == []
    assert ranked.note("a", "t", 4.0, 1.0) == 0.0
    for _ in range(98):
        assert ranked.note("a", "t", 0.01, 2.0) == 0.0
    assert ranked.note("a", "u", 0.01, 2.0) == 0.0  # of another topic
    (entry,) = ranked.slowest(10, 2.0)
    assert (entry.count, entry.slowest_s, entry.last_at) == (1, 4.0, 1.0)
    assert 0.01 <= entry.times.quantile(0.5) <= 0.0125
    assert entry.times.quantile(1.0) >= 4.0
    figures = slow_figures(entry)
    assert figures.p50_s <= figures.p99_s <= figures.slowest_s


def test_a_client_that_was_forgotten_is_looked_at_no_more() -> None:
    ranked = SlowAcks(1_800)  # two entries
    ranked.note("a", "t", 1.0, 1.0)
    ranked.note("b", "t", 5.0, 1.0)
    ranked.note("c", "t", 9.0, 1.0)
    assert ranked.note("a", "t", 0.1, 1.0) == LEAST_S
    assert ranked.note("b", "t", 0.1, 1.0) == 0.0


def test_long_names_count_with_their_bytes() -> None:
    ranked = SlowAcks(1 << 20)
    ranked.note("slowest", "t", 100.0, 10.0)
    for number in range(1_000):
        ranked.note("c", f"{number}/" + "t" * 60_000, 1.0, 10.0)
    assert len(ranked.slowest(10_000, 10.0)) < 20
    assert ranked.bytes < (1 << 20) + 61_000
    assert ranked.slowest(1, 10.0)[0].client_id == "slowest"
