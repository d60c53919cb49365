"""Finding cells."""

from __future__ import annotations

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.runs import ClientRuns, TopicRuns
from mqtt_broker.recorder.search import Search


def recorder_of(topics: int, each: int, size: int = 1 << 20) -> Recorder:
    recorder = Recorder(size, 0.0)
    runs = [TopicRuns(f"t/{number}") for number in range(topics)]
    publisher = ClientRuns("p")
    for turn in range(each):
        for number, topic in enumerate(runs):
            recorder.published(topic, publisher, 1, 1, 10, turn * 2.0 + number / 1024)
    return recorder


def publications(recorder: Recorder, topic: str, since_ms: int = 0, limit: int = 2_000) -> Search:
    search = Search(since_ms, limit)
    for _ in search.publications(recorder.traffic, None, topic):
        pass
    return search


def test_a_topic_is_found_among_others_the_newest_first() -> None:
    search = publications(recorder_of(5, 4), "t/3")
    assert [fact.topic for fact in search.found] == ["t/3"] * 4
    assert [fact.at_ms // 1000 for fact in search.found] == [6, 4, 2, 0]
    assert publications(recorder_of(5, 4), "t/9").found == []


def test_it_looks_no_further_back_than_asked() -> None:
    found = publications(recorder_of(5, 50), "t/3", since_ms=90_000).found
    assert [fact.at_ms // 1000 for fact in found] == [98, 96, 94, 92, 90]


def test_many_topics_are_found_in_one_walk() -> None:
    recorder = recorder_of(50, 4)
    search = Search(0)
    for _ in search.publications(recorder.traffic, lambda name: name.endswith("1"), ""):
        pass
    assert len(search.found) == 4 * 5


def test_what_is_too_much_is_cut_and_told() -> None:
    search = publications(recorder_of(2, 30), "t/0", limit=10)
    assert len(search.found) == 10
    assert search.is_cut


def test_a_segment_that_is_reused_meanwhile_is_left_out() -> None:
    recorder = recorder_of(30, 60, 40_000)
    search = Search(0)
    steps = search.publications(recorder.traffic, lambda name: True, "")
    next(steps)
    more = TopicRuns("more")
    for number in range(5_000):
        recorder.published(more, ClientRuns(f"c{number}"), 1, 0, 1, 1_000.0 + number)
    for _ in steps:
        pass
    assert all(fact.kind == kinds.PUBLISHED for fact in search.found)


def test_names_are_looked_at_a_part_at_a_time() -> None:
    """However many there are: the broker works between two steps."""
    recorder = recorder_of(2_500, 1, 16 << 20)
    looked: list[int] = [0]

    def is_wanted(name: str) -> bool:
        looked[-1] += 1
        return name == "t/2400"

    search = Search(0)
    for _ in search.publications(recorder.traffic, is_wanted, ""):
        looked.append(0)
    assert max(looked) == 1_000 and sum(looked) == 2_500
    assert [fact.topic for fact in search.found] == ["t/2400"]


def test_a_segment_that_is_used_anew_meanwhile_is_left_out() -> None:
    recorder = recorder_of(2_500, 1, 16 << 20)
    search = Search(0)
    steps = search.publications(recorder.traffic, lambda name: True, "")
    next(steps)
    recorder.traffic.current.begin(recorder.traffic.generation + 6, 9_000)
    assert sum(1 for _ in steps) < 10
    assert search.found == []


def test_the_publications_of_one_client() -> None:
    recorder = recorder_of(5, 4)
    for client_id, count in (("p", 20), ("nobody", 0)):
        search = Search(0, until_ms=100_000)
        for _ in search.publications_by(recorder.traffic, client_id):
            pass
        assert len(search.found) == count
    search = Search(0, until_ms=3_000)
    for _ in search.publications_by(recorder.traffic, "p"):
        pass
    assert [fact.at_ms // 1000 for fact in search.found] == [2] * 5 + [0] * 5
