"""Topics and names of the clients of a plan."""

from __future__ import annotations

from iot_sim.bench.plan import PUBLISH, Plan


def test_places_in_topics_and_user_names() -> None:
    plan = Plan(PUBLISH, 3, prefix="p", username="u%i", topic="%u/%c/%i/100%")
    assert plan.client_id(7) == "p-pub-7"
    assert plan.user_of(7) == "u7"
    assert plan.topic_of(7) == "u7/p-pub-7/7/100%"


def test_without_a_user_there_is_none() -> None:
    assert Plan(PUBLISH, 1).user_of(1) is None
