"""The ranking of slow subscribers."""

from __future__ import annotations

from mqtt_broker.recorder.slow_acks import SlowAck, SlowAcks


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
