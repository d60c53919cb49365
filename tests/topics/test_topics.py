"""Trie, match cache, retained tree and shared strategies against the slow and obvious."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqtt_broker.topics.aliases import InboundAliases, OutboundAliases
from mqtt_broker.topics.cache import MatchCache
from mqtt_broker.topics.names import (
    filter_problem,
    is_wildcard,
    level_count,
    literal_prefix,
    matches,
    name_problem,
    split_share,
)
from mqtt_broker.topics.retained import RetainedTree
from mqtt_broker.topics.shared import STRATEGIES
from mqtt_broker.topics.trie import Trie
from tests.property_examples import examples

CHECK = examples(150)
# Few levels of few names: what collides is what is interesting. "" is a level, too.
LEVELS = ["", "a", "b", "$x"]
topic_names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map("/".join).filter(bool)
topic_filters = (
    st.tuples(
        st.lists(st.sampled_from([*LEVELS, "+", "+"]), max_size=4), st.sampled_from([[], ["#"]])
    )
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)

SPECIFIED = [  # the examples of section 4.7
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("#", "sport/tennis", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("#", "$SYS/monitor/Clients", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/monitor/Clients", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("ACCOUNTS", "Accounts", False),
    ("/finance", "finance", False),
]


@pytest.mark.parametrize(("text", "topic", "want"), SPECIFIED)
def test_the_examples_of_the_specification(text: str, topic: str, want: bool) -> None:
    assert matches(text, topic) is want
    trie: Trie[str, str] = Trie()
    trie.put(text, "key", text)
    assert bool(trie.match(topic)) is want
    tree: RetainedTree[str] = RetainedTree()
    tree.put(topic, topic)
    assert bool(tree.match(text)) is want


@pytest.mark.parametrize(
    "text", ["#", "+", "/", "//", "+/#", "a/+/b", "/+", "a/#", "$SYS/#", "/#", "+/+/+"]
)
def test_good_filters(text: str) -> None:
    assert filter_problem(text) is None


@pytest.mark.parametrize(
    "text", ["", "a#", "#/a", "a/#/b", "a+", "+a", "a/+b/c", "##", "++", "a/b#"]
)
def test_bad_filters(text: str) -> None:
    assert filter_problem(text)


@pytest.mark.parametrize("text", ["", "a/+", "#", "a\0", "\ud800", "a" * 65_536])
def test_bad_names(text: str) -> None:
    assert name_problem(text)


def test_good_names() -> None:
    assert name_problem("/") is None
    assert name_problem("a" * 65_535) is None


@CHECK
@given(topic_filters)
def test_names_agree_with_themselves(text: str) -> None:
    assert filter_problem(text) is None
    assert level_count(text) == len(text.split("/"))
    assert is_wildcard(text) == any(level in ("+", "#") for level in text.split("/"))
    prefix = literal_prefix(text)
    if not is_wildcard(text):
        assert prefix == text
    else:
        assert text.startswith(prefix)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a", None),
        ("$shared/g/a", None),
        ("$share", ("", "")),
        ("$share/", ("", "")),
        ("$share/g", ("g", "")),
        ("$share/g/", ("g", "")),
        ("$share//a", ("", "a")),
        ("$share/g/a/#", ("g", "a/#")),
        ("$share/g//", ("g", "/")),
    ],
)
def test_share_names(text: str, want: tuple[str, str] | None) -> None:
    assert split_share(text) == want


class TrieMachine(RuleBasedStateMachine):
    """Puts and removes in any order; the cache beside it has to forget in time."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: Trie[int, tuple[str, int]] = Trie()
        self.cache: MatchCache[Counter[tuple[str, int]]] = MatchCache(topics_max=20)
        self.model: dict[tuple[str, int], tuple[str, int]] = {}
        self.serial = 0

    @rule(text=topic_filters, key=st.integers(0, 2))
    def put(self, text: str, key: int) -> None:
        self.serial += 1
        value = (text, self.serial)
        self.cache.drop(text)
        assert self.trie.put(text, key, value) == ((text, key) not in self.model)
        self.model[text, key] = value

    @rule(text=topic_filters, key=st.integers(0, 2))
    def remove(self, text: str, key: int) -> None:
        self.cache.drop(text)
        assert self.trie.remove(text, key) == self.model.pop((text, key), None)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            text, key = data.draw(st.sampled_from(sorted(self.model)))
            self.remove(text, key)

    @rule(topic=topic_names)
    def match(self, topic: str) -> None:
        want = Counter(v for (text, _), v in self.model.items() if matches(text, topic))
        assert Counter(self.trie.match(topic)) == want
        known = self.cache.results.get(topic)
        if known is None:
            self.cache.put(topic, want)
        else:
            assert known == want, "the cache did not forget"

    @invariant()
    def counts(self) -> None:
        assert self.trie.count == len(self.model)
        assert len(self.cache.results) <= 20
        indexed = Counter(t for topics in self.cache.by_head.values() for t in topics)
        assert indexed == Counter(self.cache.results.keys())

    def teardown(self) -> None:
        for text, key in list(self.model):
            self.remove(text, key)
        assert not self.trie.exact, "empty places stay behind"
        assert self.trie.root.is_empty(), "empty branches stay behind"


class Compared(str):
    """A topic that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return str(self) == other


def test_the_cache_forgets_a_topic_without_a_look_at_those_beside_it() -> None:
    cache: MatchCache[int] = MatchCache()
    topics = [Compared(f"a/b/{n}") for n in range(3_000)]
    for topic in topics:
        cache.put(topic, 1)
    Compared.comparisons = 0
    for topic in reversed(topics):
        cache.drop(topic)
    assert not cache.results and not cache.by_head
    assert Compared.comparisons < 10 * len(topics)


class RetainedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree: RetainedTree[int] = RetainedTree()
        self.model: dict[str, int] = {}
        self.serial = 0

    @rule(topic=topic_names)
    def put(self, topic: str) -> None:
        self.serial += 1
        assert self.tree.put(topic, self.serial) == self.model.get(topic)
        self.model[topic] = self.serial

    @rule(topic=topic_names)
    def remove(self, topic: str) -> None:
        assert self.tree.remove(topic) == self.model.pop(topic, None)

    @rule(text=topic_filters)
    def match(self, text: str) -> None:
        want = sorted(value for topic, value in self.model.items() if matches(text, topic))
        assert sorted(self.tree.match(text)) == want

    @invariant()
    def agrees(self) -> None:
        assert len(self.tree) == len(self.model)
        assert dict.fromkeys(self.tree.values()) == dict.fromkeys(self.model.values())
        for topic, value in self.model.items():
            assert self.tree.get(topic) == value

    def teardown(self) -> None:
        for topic in list(self.model):
            self.tree.remove(topic)
        assert not self.tree.root.children, "empty branches stay behind"


TestTrieMachine = TrieMachine.TestCase
TestTrieMachine.settings = CHECK
TestRetainedMachine = RetainedMachine.TestCase
TestRetainedMachine.settings = CHECK


def test_ten_thousand_levels_are_no_recursion() -> None:
    deep = "/".join(["a"] * 10_000)
    trie: Trie[int, int] = Trie()
    trie.put(deep + "/#", 1, 1)
    assert trie.match(deep) == [1]
    assert trie.remove(deep + "/#", 1) == 1
    tree: RetainedTree[int] = RetainedTree()
    tree.put(deep, 1)
    assert tree.match("+/" * 9_999 + "+") == [1]
    assert tree.remove(deep) == 1


class Member:
    def __init__(self, client_id: str, load: int) -> None:
        self.client_id = client_id
        self.load = load


@pytest.mark.parametrize("name", STRATEGIES)
@CHECK
@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_a_strategy_chooses_one_that_is_there(name: str, counts: list[int], seed: int) -> None:
    strategy = STRATEGIES[name](random.Random(seed))
    for place, count in enumerate(counts):
        members = [Member(f"m{n}", (n * 7 + place) % 5) for n in range(count)]
        chosen = strategy.choose(members, f"topic {place}", "publisher")
        assert 0 <= chosen < count
        if name == "least_inflight":
            assert members[chosen].load == min(member.load for member in members)


def test_round_robin_is_fair() -> None:
    strategy = STRATEGIES["round_robin"](random.Random(1))
    members = [Member(f"m{n}", 0) for n in range(3)]
    assert [strategy.choose(members, "t", "p") for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_sticky_and_hash_keep_their_choice() -> None:
    members = [Member(f"m{n}", 0) for n in range(5)]
    for name in ("sticky", "hash_client"):
        strategy = STRATEGIES[name](random.Random(1))
        assert len({strategy.choose(members, f"t{n}", "p") for n in range(20)}) == 1
    by_topic = STRATEGIES["hash_topic"](random.Random(1))
    assert len({by_topic.choose(members, "t", f"p{n}") for n in range(20)}) == 1
    assert len({by_topic.choose(members, f"t{n}", "p") for n in range(50)}) == 5


def test_sticky_moves_only_when_it_must() -> None:
    strategy = STRATEGIES["sticky"](random.Random(1))
    members = [Member(f"m{n}", 0) for n in range(5)]
    first = members[strategy.choose(members, "t", "p")]
    others = [member for member in members if member is not first]
    second = others[strategy.choose(others, "t", "p")]
    assert members[strategy.choose(members, "t", "p")] is second


def test_aliases() -> None:
    inbound = InboundAliases(2)
    inbound.put(1, "a")
    inbound.put(1, "b")
    assert inbound.get(1) == "b" and inbound.get(2) is None
    outbound = OutboundAliases(1)
    assert outbound.get("a") == (1, False)
    outbound.learn("a", 1)
    assert outbound.get("a") == (1, True)
    assert outbound.get("b") == (0, False)
