"""A client as it is now."""

from __future__ import annotations

from mqtt_broker.recorder.client_view import ClientView


def test_messages_of_one_millisecond_are_counted_together() -> None:
    view = ClientView("c")
    view.add_in_flight("t", 5)
    view.add_in_flight("t", 5)
    view.add_waiting("t", 6)
    assert view.in_flight == {("t", 5): 2}
    assert view.waiting == {("t", 6): 1}
