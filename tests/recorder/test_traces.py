"""Traces and their lines."""

from __future__ import annotations

from mqtt_broker.recorder.traces import LINES_MAX, Traces


def test_a_trace_ends_by_itself_and_can_still_be_read() -> None:
    trace = Traces().add(5.0, client_id="c", packets_max=2)
    for number in range(5):
        trace.add({"n": number})
    assert trace.is_over
    assert trace.take(10, 6.0) == [{"n": 0}, {"n": 1}]


def test_a_slow_reader_is_told_what_it_lost() -> None:
    trace = Traces().add(5.0, client_id="c", packets_max=1 << 20)
    for number in range(LINES_MAX + 7):
        trace.add({"n": number})
    assert len(trace.take(LINES_MAX - 1, 6.0)) == LINES_MAX - 1
    assert trace.take(5, 6.0) == [{"n": LINES_MAX - 1}, {"at": 6.0, "lost": 7}]
    assert trace.take(5, 6.0) == []


def test_traces_by_what_they_are_of() -> None:
    traces = Traces()
    by_client = traces.add(0.0, client_id="c")
    by_topic = traces.add(0.0, topic="a/+")
    by_address = traces.add(0.0, address="192.0.2.1")
    assert list(traces.of_topic("a/b")) == [by_topic]
    assert list(traces.of_topic("b")) == []
    assert traces.of_client("c", "192.0.2.9") == [by_client]
    assert traces.of_client("d", "192.0.2.1") == [by_address]
    assert traces.wants_topics
    assert traces.remove(by_topic.number)
    assert not traces.remove(by_topic.number)
    assert by_topic.is_over
    assert not traces.wants_topics
