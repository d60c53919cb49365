"""Events on their way to the disk."""

from __future__ import annotations

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.pending_events import BYTES_MAX, TEXT_CHARS_MAX, PendingEvents


def test_nothing_is_collected_that_nobody_takes() -> None:
    events = PendingEvents()
    events.add("c", kinds.CONNECTED, 0, "192.0.2.1", "", 5, 1)
    assert events.take() == []
    events.collect()
    events.add("c", kinds.CONNECTED, 0, "192.0.2.1", "", 5, 1)
    assert events.take() == [("c", kinds.CONNECTED, 0, "192.0.2.1", "", 5, 1)]
    assert len(events) == 0


def test_what_does_not_fit_is_counted() -> None:
    events = PendingEvents()
    events.collect()
    for number in range(20_000):
        events.add("c", kinds.CONNECTED, 0, "", "", number, 1)
    kept = len(events)
    assert 10_000 < kept < 20_000
    assert events.take_lost() == (20_000 - kept, kept)
    assert events.take_lost()[0] == 0
    events.take()
    events.add("c", kinds.CONNECTED, 0, "", "", 20_001, 1)
    assert len(events) == 1


def test_long_topics_do_not_make_it_larger() -> None:
    events = PendingEvents()
    events.collect()
    for number in range(20_000):
        events.add("c", kinds.REFUSED, 135, f"{number}/" + "t" * 60_000, "w" * 60_000, number, 1)
    taken = events.take()
    assert all(len(event[3]) == len(event[4]) == TEXT_CHARS_MAX + 3 for event in taken)
    assert sum(len(event[3]) + len(event[4]) for event in taken) < BYTES_MAX
