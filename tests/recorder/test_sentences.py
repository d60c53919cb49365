"""The answers in words."""

from __future__ import annotations

from mqtt_broker.recorder import kinds, outcomes, sentences
from mqtt_broker.recorder.outcomes import Outcome
from mqtt_broker.recorder.search import Fact

clock = sentences.clock_for(86_400_000 * 3)


def outcome(state: str, count: int = 1) -> Outcome:
    publication = Fact(kinds.PUBLISHED, 1, 86_400_000 * 3, 86_400_000 * 3)
    publication.topic, publication.client, publication.count = "plant/7/cmd", "app-3", count
    found = Outcome(publication)
    found.state, found.filter, found.granted = state, "plant/+/cmd", 1
    return found


def test_times_of_another_day_have_their_date() -> None:
    assert clock(86_400_000 * 3 + 61_000) == "00:01:01"
    assert clock(86_400_000 * 2 + 61_000) == "1970-01-03 00:01:01"


def test_names_stay_on_one_line() -> None:
    assert sentences.quoted("a\nb\x00") == "`a?b?`"
    assert len(sentences.quoted("x" * 1_000)) < 250


def test_every_state_has_its_words() -> None:
    states = [value for name, value in vars(outcomes).items() if name.isupper()]
    told = {sentences.sentence_of(outcome(state), "pump-7", clock) for state in states}
    assert len(told) >= len(states) - 2  # dropped needs to know what was


def test_some_of_a_run() -> None:
    found = outcome(outcomes.IN_FLIGHT, 5)
    found.open_count = 2
    assert sentences.sentence_of(found, "pump-7", clock).endswith("2 of 5 never acknowledged")


def test_drops_are_told_with_their_reason() -> None:
    found = outcome(outcomes.DROPPED)
    found.dropped = dropped = Fact(kinds.DROPPED, kinds.DROP_CODES["queue_full"], 5, 5)
    dropped.other = "app-3"
    assert "(queue full)" in sentences.sentence_of(found, "pump-7", clock)
    found.state = outcomes.PARTLY_DROPPED
    assert "1 messages of this topic from `app-3`" in sentences.sentence_of(found, "p", clock)


def test_connections() -> None:
    fact = Fact(kinds.DISCONNECTED, 0, 86_400_000 * 3, 0)
    fact.client, fact.other = "pump-7", "connection lost"
    said = sentences.connection_sentence(fact, clock)
    assert said == "`pump-7` was disconnected at 00:00:00: connection lost"
    for kind in (kinds.CONNECTED, kinds.NOT_CONNECTED, kinds.SESSION_ENDED):
        fact.kind = kind
        assert "`pump-7`" in sentences.connection_sentence(fact, clock)
