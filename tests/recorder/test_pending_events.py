"""Events on their way to the disk."""

from __future__ import annotations

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.pending_events import EVENTS_MAX, PendingEvents


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
    for number in range(EVENTS_MAX + 3):
        events.add("c", kinds.CONNECTED, 0, "", "", number, 1)
    assert len(events) == EVENTS_MAX
    assert events.take_lost() == (3, EVENTS_MAX)
    assert events.take_lost()[0] == 0
