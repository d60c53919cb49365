"""Routes against brute force: each session once, with what its subscriptions come to together."""

from __future__ import annotations

import random
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.core.routing.routes import Route, Routes, Target
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.topics.names import matches
from mqtt_broker.topics.shared import RoundRobin
from sessions.messages.backlog import Backlog
from sessions.messages.work import MATCHED, ROUTE, Work
from sessions.session import Session, Subscription
from tests.core.peers import World
from tests.property_examples import examples

CHECK = examples(150)
FILTERS: Final = ["a", "a/b", "a/+", "a/#", "+", "+/b", "#", "b"]
TOPICS: Final = ["a", "a/b", "a/c", "b", "c/b"]
VERSIONS: Final = {"v3": V311, "v5": V5, "other": V5}
WANTED: Final[st.SearchStrategy[dict[str, object]]] = st.builds(
    dict,
    client=st.sampled_from(sorted(VERSIONS)),
    filter=st.sampled_from(FILTERS),
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    identifier=st.sampled_from([0, 0, 7, 9]),
)


def sessions() -> dict[str, Session]:
    world = World()
    return {
        name: world.client(name, version).connection.session for name, version in VERSIONS.items()
    }


def find(routes: Routes, topic: str) -> Route:
    return routes.find(topic, 0, 0, None, None)


def group(name: str, text: str) -> SharedGroup:
    return SharedGroup(name, text, RoundRobin(random.Random(1)), Backlog(), None)


def check_target(target: Target, wanted: list[Subscription]) -> None:
    qos = max(one.qos for one in wanted)
    identifiers = sorted(one.identifier for one in wanted if one.identifier)
    as_published = any(one.retain_as_published for one in wanted)
    for message_qos in range(3):
        live, retained = target.live[message_qos], target.retained[message_qos]
        assert live.qos == retained.qos == min(qos, message_qos)
        assert (live.retain, retained.retain) == (False, as_published)
        assert sorted(live.subscription_ids) == sorted(retained.subscription_ids) == identifiers
    others = [one for one in wanted if not one.no_local]
    assert target.has_own is (len(others) < len(wanted))
    if target.has_own and others:
        assert target.own is not None
        check_target(target.own, others)
    else:
        assert target.own is None
    assert target.plain is not (target.has_own or bool(identifiers))


@CHECK
@given(st.lists(WANTED, max_size=8), st.data())
def test_a_route_is_what_the_subscriptions_say(
    asked: list[dict[str, object]], data: st.DataObject
) -> None:
    clients = sessions()
    routes = Routes(Work())
    there: dict[tuple[str, str], Subscription] = {}
    for one in asked:
        fields = {key: value for key, value in one.items() if key != "client"}
        name = str(one["client"])
        subscription = Subscription(clients[name], **fields)  # type: ignore[arg-type]
        key = (name, subscription.filter)
        assert routes.add(subscription) is (key not in there)
        there[key] = subscription
    for key in data.draw(st.lists(st.sampled_from(sorted(there)), unique=True)) if there else []:
        routes.remove(there.pop(key))
    assert routes.count == len(there)
    for topic in TOPICS:
        wanted: dict[str, list[Subscription]] = {}
        for (name, text), subscription in there.items():
            if matches(text, topic):
                wanted.setdefault(name, []).append(subscription)
        route = find(routes, topic)
        found = {target.outbound.client_id: target for target in route.targets}
        assert len(found) == len(route.targets)
        assert found.keys() == wanted.keys()
        assert route.is_matched is bool(wanted)
        for name, target in found.items():
            check_target(target, wanted[name])
        plain = {name for name, target in found.items() if target.plain}
        assert {one.client_id for one in route.plain_v3} == plain & {"v3"}
        assert {one.client_id for one in route.plain_v5} == plain - {"v3"}
        assert {one.outbound.client_id for one in route.rest} == found.keys() - plain


@CHECK
@given(st.sampled_from(FILTERS), st.booleans())
def test_a_route_is_kept_until_a_subscription_that_it_has_changes(
    text: str, is_group: bool
) -> None:
    clients = sessions()
    routes = Routes(Work())
    for topic in TOPICS:
        find(routes, topic)
    assert sorted(routes.cache.results) == sorted(TOPICS)
    if is_group:
        routes.add_group(text, "g", group("g", text))
    else:
        routes.add(Subscription(clients["v5"], text, 0))
    kept = set(routes.cache.results)
    assert not [topic for topic in kept if matches(text, topic)]
    if "+" not in text and "#" not in text:
        assert kept == set(TOPICS) - {text}


def test_groups_are_found_and_forgotten() -> None:
    routes = Routes(Work())
    one, two = group("one", "a/+"), group("two", "a/#")
    routes.add_group("a/+", "one", one)
    routes.add_group("a/#", "two", two)
    routes.count_shared(3)
    assert routes.count == 3 and routes.bytes > 0
    route = find(routes, "a/b")
    assert route.is_matched and not route.targets
    assert sorted(found.name for found in route.groups) == ["one", "two"]
    routes.remove_group("a/+", "one")
    assert find(routes, "a/b").groups == [two]
    routes.remove_group("a/#", "two")
    routes.remove_group("a/#", "two")  # it is gone already
    assert not find(routes, "a/b").is_matched
    assert routes.bytes == 0


def test_a_long_topic_is_not_kept() -> None:
    routes = Routes(Work())
    find(routes, "x" * 512)
    find(routes, "y" * 513)
    assert list(routes.cache.results) == ["x" * 512]


def test_what_a_route_says_beside_its_targets() -> None:
    route = Routes(Work()).find("a", 0x87, 2, None, None)
    assert (route.refusal, route.durability, route.writer, route.check) == (0x87, 2, None, None)


def test_a_lookup_costs_what_it_visits_and_finds() -> None:
    work = Work()
    routes = Routes(work)
    clients = sessions()
    for text in ("a", "+", "#"):
        routes.add(Subscription(clients["v5"], text, 0))
    find(routes, "a")
    assert work.spent == ROUTE + routes.trie.steps + routes.groups.steps + 3 * MATCHED


def test_routes_share_the_target_of_an_only_subscription() -> None:
    """A receiver of a million topics is in memory once, until another filter matches as well."""
    clients = sessions()
    routes = Routes(Work())
    routes.add(Subscription(clients["v5"], "+", 0))
    [one], [two] = find(routes, "a").targets, find(routes, "b").targets
    assert one is two
    routes.add(Subscription(clients["v5"], "a", 1))
    [both], [alone] = find(routes, "a").targets, find(routes, "b").targets
    assert both is not one and both.live[2].qos == 1 and alone is one
