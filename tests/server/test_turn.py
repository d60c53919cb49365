"""The end of a turn: the clock, timers that are set again, and steps that fail."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.server.running import PATIENCE_S, Running


def test_the_clock_keeps_the_moment_of_the_latest_read() -> None:
    with Running() as broker:
        turn = broker.server.turn

        def read() -> tuple[float, float, float]:
            before = turn.now()
            at = turn.clock()
            return before, at, turn.at

        before, at, kept = broker.ask(read)
        assert before <= at == kept <= turn.now()


def test_a_nearer_deadline_sets_the_timer_again() -> None:
    fired = threading.Event()
    with Running() as broker:
        server = broker.server

        def set_timer() -> None:
            server.broker.timers.at(server.now() + 0.01, lambda now: fired.set())
            server.turn.end_now()

        broker.ask(set_timer)
        assert fired.wait(PATIENCE_S)


def test_what_fails_under_guard_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "fleetmq")

    def fail() -> None:
        raise ValueError("a mistake")

    with Running() as broker:
        for _ in range(3):  # the same error again is not logged again
            broker.ask(lambda: broker.server.turn.guard(fail))
        broker.client("c").sock.close()
    assert [record.getMessage() for record in caplog.records] == ["internal error"]
