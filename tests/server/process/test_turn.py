"""The end of a turn: the clock, timers that are set again, and steps that fail."""

from __future__ import annotations

import logging
import threading

import pytest

from sessions.messages.work import TIMER, Work
from tests.server.running import PATIENCE_S, Running

COUNT = 5 * Work().turn_units // TIMER  # timers of five turns


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


def test_a_clock_that_is_moved_fires_each_deadline_at_its_time() -> None:
    fired: list[float] = []
    with Running() as broker:
        server = broker.server
        timers = server.broker.timers

        def chain(now: float) -> None:
            fired.append(now)
            if len(fired) < 10:
                timers.at(now + 10.0, chain)

        def move() -> float:
            begin = server.now()
            timers.at(begin + 10.0, chain)
            server.turn.advance(95.0)
            return begin

        begin = broker.ask(move)
        assert [round(at - begin) for at in fired] == [10, 20, 30, 40, 50, 60, 70, 80, 90]
        assert 95.0 <= broker.ask(server.now) - begin < 95.0 + PATIENCE_S
        assert server.turn.ahead_s == pytest.approx(95.0, abs=PATIENCE_S)


def test_a_clock_that_is_moved_far_takes_a_thousand_steps_at_most() -> None:
    fired: list[float] = []
    with Running() as broker:
        server = broker.server

        def again(now: float) -> None:
            fired.append(now)
            server.broker.timers.at(now + 1.0, again)

        def move() -> None:
            server.broker.timers.at(server.now() + 1.0, again)
            server.turn.advance(86_400.0)

        broker.ask(move)
        assert 900 <= len(fired) <= 1_001


def test_a_timer_that_fails_does_not_stop_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    def fail(now: float) -> None:
        raise ValueError("a mistake")

    with Running() as broker:
        server = broker.server

        def move() -> float:
            begin = server.now()
            server.broker.timers.at(begin + 1.0, fail)
            server.turn.advance(10.0)
            return server.now() - begin

        assert broker.ask(move) >= 10.0
    assert "internal error" in caplog.text


def test_more_than_a_turn_can_do_is_done_before_the_clock_goes_on() -> None:
    fired: list[float] = []
    with Running() as broker:
        server = broker.server

        def move() -> int:
            begin = server.now()
            for _ in range(COUNT):
                server.broker.timers.at(begin + 1.0, fired.append)
            server.turn.advance(1.0)
            return len(fired)

        assert broker.ask(move) == COUNT
