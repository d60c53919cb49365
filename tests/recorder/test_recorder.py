"""What the core records, and how much it takes."""

from __future__ import annotations

import random

import pytest

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.runs import ClientRuns, TopicRuns
from mqtt_broker.recorder.search import Fact, Search


def publications(recorder: Recorder, topic: str) -> list[Fact]:
    recorder.settle()
    search = Search(0)
    for _ in search.publications(recorder.traffic, None, topic):
        pass
    return search.found


def events(recorder: Recorder, client_id: str) -> list[Fact]:
    recorder.settle()
    search = Search(0)
    for _ in search.events(recorder.traffic, client_id):
        pass
    for _ in search.evidence_of(recorder.evidence.rings_of(client_id), client_id):
        pass
    return search.found


def test_equal_publications_within_a_second_are_one_run() -> None:
    recorder, topic, publisher = Recorder(1 << 20, 0.0), TopicRuns("t"), ClientRuns("p")
    for number in range(10):
        recorder.published(topic, publisher, 3, 1, 30, 5.0 + number / 16)
    recorder.published(topic, publisher, 1, 2, 10, 5.7)  # another QoS
    recorder.published(topic, ClientRuns("q"), 1, 2, 10, 5.8)
    found = publications(recorder, "t")
    assert [(f.client, f.count, f.size, f.code, f.at_ms, f.until_ms) for f in found] == [
        ("q", 1, 10, 2, 5_800, 5_800),
        ("p", 1, 10, 2, 5_700, 5_700),
        ("p", 30, 300, 1, 5_000, 5_562),
    ]


def test_acknowledgements_within_a_second_are_one_run() -> None:
    recorder, client = Recorder(1 << 20, 0.0), ClientRuns("c")
    for number in range(5):
        recorder.acknowledged(client, 2, 1.0 + number, 1.5 + number, 10.0 + number / 8)
    found = events(recorder, "c")
    assert [(f.kind, f.count, f.first_ms, f.last_ms, f.until_ms) for f in found] == [
        (kinds.ACKNOWLEDGED, 10, 1_000, 5_500, 10_500)
    ]
    recorder.acknowledged(client, 1, 1.0, 1.0, 10.6)  # received before: another run
    assert len(events(recorder, "c")) == 2


def test_drops_of_one_topic_and_publisher_are_one_run() -> None:
    recorder, client = Recorder(1 << 20, 0.0), ClientRuns("c")
    for number in range(4):
        recorder.dropped(client, "slow_reader", "t", "p", 2, 5.0 + number / 8, 5.0 + number / 8)
    recorder.dropped(client, "expired", "t", "p", 1, 4.0, 5.9)
    found = events(recorder, "c")
    assert [
        (kinds.DROP_REASONS[f.code], f.other, f.count, f.first_ms, f.last_ms) for f in found
    ] == [
        ("expired", "p", 1, 4_000, 4_000),
        ("slow_reader", "p", 8, 5_000, 5_375),
    ]


def test_refusals_of_one_topic_are_one_run() -> None:
    recorder, client = Recorder(1 << 20, 0.0), ClientRuns("c")
    for number in range(4):
        recorder.refused(client, kinds.PUBLISH_REFUSED, "t", 135, "rule 12", 5.0 + number / 8, 2)
    recorder.refused(client, kinds.SUBSCRIBE_REFUSED, "t", 135, "rule 13", 5.9)
    found = events(recorder, "c")
    assert [(f.code, f.count, f.first_ms, f.other, f.until_ms) for f in found] == [
        (135, 1, kinds.SUBSCRIBE_REFUSED, "rule 13", 5_900),
        (135, 8, kinds.PUBLISH_REFUSED, "rule 12", 5_375),
    ]


def test_slow_acknowledgements_are_ranked() -> None:
    recorder, client = Recorder(1 << 20, 0.0), ClientRuns("c")
    assert not recorder.acknowledged(client, 1, 1.0, 1.0, 1.1)
    assert recorder.acknowledged(client, 1, 2.0, 2.0, 9.0)
    recorder.note_slow(client, "t", 7.0, 9.0)
    assert recorder.acknowledged(client, 1, 9.0, 9.0, 9.0)  # counts for the percentiles
    assert [(one.client_id, one.slowest_s) for one in recorder.slow_acks.slowest(5, 9.0)] == [
        ("c", 7.0)
    ]


def test_times_that_a_cell_cannot_hold_are_cut() -> None:
    recorder, client = Recorder(1 << 20, 0.0), ClientRuns("c")
    recorder.acknowledged(client, 1, 0.0, 0.0, 1e9)
    recorder.dropped(client, "expired", "t", "p", 1, 0.0, 1e9)
    recorder.session_ended(client, kinds.EXPIRED, 1 << 40, 1 << 40, 1e9)
    assert len(events(recorder, "c")) == 3
    topic = TopicRuns("t")
    recorder.published(topic, client, 1, 0, 1 << 40, 1e9)
    recorder.published(topic, client, 1, 0, 1 << 40, 1e9)
    assert len(publications(recorder, "t")) == 2


def test_the_clock_may_be_set_back() -> None:
    recorder, client, topic = Recorder(1 << 20, 0.0), ClientRuns("c"), TopicRuns("t")
    for now in (100.0, 50.0, 100.0):
        recorder.published(topic, client, 1, 0, 1, now)
        recorder.queued(client, kinds.AWAY, "t", 1, now, now, is_first=False)
        recorder.dropped(client, "expired", "t", "p", 1, now, now)
    assert sum(fact.count for fact in publications(recorder, "t")) == 3


@pytest.mark.parametrize("size", [100_000, 1 << 20, 8 << 20])
def test_it_takes_no_more_than_it_may(size: int) -> None:
    """With topics and clients of all lengths, of which there is no end."""
    recorder, rng = Recorder(size, 0.0), random.Random(5)
    for number in range(60_000):
        now = number / 100
        client = ClientRuns("c" * rng.randrange(40) + str(rng.randrange(3_000)))
        topic = TopicRuns("t" * rng.randrange(120) + str(rng.randrange(9_000)))
        recorder.published(topic, client, 1, 1, 10, now)
        recorder.queued(client, kinds.AWAY, topic.topic, 1, now, now, is_first=True)
        if number % 3 == 0:
            recorder.dropped(client, "expired", topic.topic, "p", 1, now, now)
        if number % 7 == 0:
            recorder.not_connected(client.client_id, None, 135, "192.0.2.1", "no", now)
    assert size / 3 < recorder.bytes < size * 1.05
    kept = sum(len(segment.cells) for segment in recorder.traffic.segments)
    assert kept < size / 2
