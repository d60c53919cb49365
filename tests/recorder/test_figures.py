"""The recorder's answers as plain data."""

from __future__ import annotations

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.figures import event_figures, fact_figures, reason_of, slow_figures
from mqtt_broker.recorder.search import Fact
from mqtt_broker.recorder.slow_acks import SlowAck


def test_a_drop_has_its_publisher_and_reason() -> None:
    fact = Fact(
        kinds.DROPPED, kinds.DROP_CODES["expired"], 5_000, 5_500,
        client="c", topic="t", other="p", count=3, first_ms=1_000, last_ms=2_000,
    )  # fmt: skip
    found = fact_figures(fact)
    assert (found.reason, found.publisher, found.received_at) == ("expired", "p", 1.0)
    assert (found.at, found.until, found.count) == (5.0, 5.5, 3)


def test_an_event_of_the_disk() -> None:
    found = event_figures(("c", kinds.DISCONNECTED, 141, "192.0.2.1", "Keep Alive", 5_000, 1))
    assert (found.kind, found.address, found.reason) == ("disconnected", "192.0.2.1", "Keep Alive")
    assert (found.reason_code, found.topic) == (141, "")
    assert event_figures(("c", 99, 0, "", "", 0, 1)).kind == "unknown"


def test_reasons_in_words() -> None:
    assert reason_of(kinds.QUEUED, kinds.AWAY, "") == "away"
    assert reason_of(kinds.DROPPED, 250, "") == ""
    assert reason_of(kinds.SESSION_ENDED, kinds.EXPIRED, "") == "expired"


def test_slow_subscribers() -> None:
    entry = SlowAck("c", "t")
    entry.note(2.0, 10.0)
    entry.note(4.0, 11.0)
    found = slow_figures(entry)
    assert (found.slowest_s, found.average_s, found.count, found.last_at) == (4.0, 3.0, 2, 11.0)
