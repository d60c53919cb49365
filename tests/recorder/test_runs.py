"""The open runs that the next equal decision extends."""

from __future__ import annotations

from mqtt_broker.recorder.runs import ClientRuns, Run, TopicFigures, TopicRuns
from mqtt_broker.recorder.segments import NOBODY


def test_a_closed_run_is_not_extended() -> None:
    run = Run()
    run.generation = 7
    run.close()
    assert run.generation == 0


def test_a_client_that_only_connects_has_no_open_runs() -> None:
    assert ClientRuns("c").flow is None


def test_a_topic_of_no_route_has_no_receivers() -> None:
    assert TopicRuns("t").receivers() is NOBODY


def test_a_window_keeps_the_one_before_it() -> None:
    figures = TopicFigures("t", 0)
    figures.messages = 10
    figures.begin_window(5_000)
    figures.messages = 30
    figures.begin_window(10_000)
    assert (figures.previous_ms, figures.previous_messages) == (5_000, 10)
    assert (figures.window_ms, figures.window_messages) == (10_000, 30)
