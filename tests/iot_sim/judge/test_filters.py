"""The filters of the judge, which shares no code with the broker: matching, overlap, cover."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from iot_sim.judge.filters import FilterSet, covers, disjoint, matches, overlap
from mqtt_broker.topics import names

LEVELS = st.sampled_from(["a", "b", "+", "$a"])
TOPICS = [
    "/".join(levels)
    for count in (1, 2, 3)
    for levels in itertools.product(("a", "b", "c", "$a"), repeat=count)
]


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS, max_size=3))
    return "/".join([*levels, "#"] if not levels or draw(st.booleans()) else levels)


@given(filters())
def test_the_matcher_of_the_verdict_agrees_with_the_brokers(text: str) -> None:
    for topic in TOPICS:
        assert matches(text, topic) is names.matches(text, topic)


def test_a_wildcard_in_front_matches_no_topic_of_the_broker() -> None:
    assert not overlap("#", "$SYS/#") and not covers("+/x", "$SYS/x")
    assert disjoint(["#", "$SYS/#"]) == ["#", "$SYS/#"]
    assert not FilterSet(["#"]).matches("$SYS/x")
    assert FilterSet(["/#"]).matches("/x")


@given(filters(), filters())
def test_overlap_and_cover_are_what_topics_say(one: str, other: str) -> None:
    ours = {topic for topic in TOPICS if matches(one, topic)}
    theirs = {topic for topic in TOPICS if matches(other, topic)}
    if ours & theirs:
        assert overlap(one, other)
    if overlap(one, other) and "#" not in one + other:
        assert ours & theirs
    if covers(one, other):
        assert theirs <= ours


@given(st.lists(filters(), max_size=6))
def test_disjoint_filters_match_all_and_none_twice(texts: list[str]) -> None:
    found = disjoint(texts)
    for topic in TOPICS:
        matching = [text for text in found if matches(text, topic)]
        assert len(matching) <= 1
        assert bool(matching) or not any(matches(text, topic) for text in texts)


@given(st.lists(filters(), max_size=6))
def test_a_set_of_filters_matches_as_each_of_them(texts: list[str]) -> None:
    found = FilterSet(texts)
    for topic in TOPICS:
        assert found.matches(topic) is any(matches(text, topic) for text in texts)
