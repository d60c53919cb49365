"""Timers fire in the order of their deadlines, once, and cancelled ones do not pile up."""

from __future__ import annotations

import math

from mqtt_broker.core.runtime.timers import Timers
from sessions.messages.work import Work


def test_timers_fire_in_the_order_of_their_deadlines_then_of_their_making() -> None:
    timers, fired = Timers(), list[tuple[str, float]]()
    for when, name in ((3.0, "late"), (1.0, "early"), (3.0, "late too"), (9.0, "not yet")):
        timers.at(when, lambda now, name=name: fired.append((name, now)))  # type: ignore[misc]
    timers.run(0.5, Work())
    assert fired == []
    timers.run(3.0, Work())  # a deadline that is reached is due
    assert fired == [("early", 3.0), ("late", 3.0), ("late too", 3.0)]
    timers.run(8.9, Work())
    assert len(fired) == 3 and len(timers) == 1 and timers.next() == 9.0


def test_the_next_deadline_is_that_of_a_timer_that_will_fire() -> None:
    timers = Timers()
    assert timers.next() == math.inf
    later = timers.at(5.0, lambda now: None)
    assert timers.earliest == 5.0
    sooner = timers.at(2.0, lambda now: None)
    timers.at(7.0, lambda now: None)
    assert timers.earliest == 2.0  # known at once, and not moved by a later one
    sooner.cancel()
    assert timers.next() == 5.0 and timers.earliest == 5.0
    later.cancel()
    assert timers.next() == 7.0
    timers.run(7.0, Work())
    assert timers.next() == timers.earliest == math.inf


def test_a_timer_may_set_and_cancel_others_while_it_fires() -> None:
    timers, fired = Timers(), list[str]()

    def first(now: float) -> None:
        fired.append("first")
        timers.at(now, lambda _: fired.append("set while firing"))
        timers.at(now + 1, lambda _: fired.append("too late"))
        second.cancel()

    timers.at(1.0, first)
    second = timers.at(1.0, lambda _: fired.append("second"))
    timers.run(1.0, Work())
    assert fired == ["first", "set while firing"]


def test_a_timer_that_fired_or_was_cancelled_lets_go_of_its_action() -> None:
    timers = Timers()
    fired, cancelled = timers.at(1.0, lambda now: None), timers.at(2.0, lambda now: None)
    cancelled.cancel()
    timers.run(1.0, Work())
    assert fired.action is None and cancelled.action is None
    fired.cancel()  # too late, and harmless
    cancelled.cancel()
    timers.run(2.0, Work())
    assert len(timers) == 0


def test_cancelled_timers_leave_the_heap_before_their_deadline() -> None:
    timers, fired = Timers(), list[float]()
    kept = [timers.at(1e6 + n, fired.append) for n in range(20)]
    for _ in range(1_000):  # as a client that is sent to again and again
        timers.at(1e9, fired.append).cancel()
        assert len(timers) <= 20 + 41, "most of the heap is dead"
    assert timers.next() == kept[0].when
    timers.run(2e9, Work())
    assert len(fired) == 20


def test_few_cancelled_timers_stay_until_their_deadline() -> None:
    """The heap is rebuilt for many: so each is counted once, and no longer than it is there."""
    timers = Timers()
    for timer in [timers.at(1.0, lambda now: None) for _ in range(30)]:
        timer.cancel()
    assert len(timers) == 30
    timers.next()  # takes all of them off the heap
    many = [timers.at(2.0, lambda now: None) for _ in range(50)]
    for timer in many[:20]:
        for _ in range(3):
            timer.cancel()
    assert len(timers) == 50
    for timer in many[20:40]:
        timer.cancel()
    assert len(timers) < 20  # most were dead
    for _ in range(60):
        timers.at(3.0, lambda now: None)
    held = len(timers)
    many[-1].cancel()
    assert len(timers) == held
