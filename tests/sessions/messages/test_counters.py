"""Refusals are counted by moment and reason, and shown by names that metrics can have."""

from __future__ import annotations

from sessions.messages.counters import Counters


def test_refusals_are_shown_by_names_without_spaces_and_capitals() -> None:
    counters = Counters(5.0)
    counters.refuse("connect", "Server busy")
    counters.refuse("connect", "Server busy", 2)
    counters.refuse("publish", "Server busy")
    counters.refuse("disconnect", "Keep-Alive timeout")
    assert counters.refusals() == {
        "connect/server_busy": 3,
        "publish/server_busy": 1,
        "disconnect/keep_alive_timeout": 1,
    }


def test_reasons_that_have_one_name_are_added_up() -> None:
    counters = Counters(5.0)
    counters.refuse("connection", "bad header", 2)
    counters.refuse("connection", "Bad-Header", 3)
    assert counters.refusals() == {"connection/bad_header": 5}


def test_packets_are_counted_by_type_and_direction() -> None:
    counters = Counters(5.0)
    counters.packets_received[15] += 1  # AUTH has the largest type
    assert sum(counters.packets_received) == 1 and sum(counters.packets_sent) == 0
    assert counters.started_at == 5.0
