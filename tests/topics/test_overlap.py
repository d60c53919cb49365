"""The most that one Topic Name visits, against the slow and obvious, and the trie itself."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqtt_broker.topics.overlap import FilterOverlap
from mqtt_broker.topics.trie import Trie
from tests.property_examples import examples

CHECK = examples(100)
FILTERS = (
    st.tuples(
        st.lists(st.sampled_from(["a", "b", "", "+", "+"]), max_size=7),
        st.sampled_from([[], [], ["#"]]),
    )
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)
Tree = dict[str, Any]


def most(texts: Counter[str]) -> int:
    """The same with a node a level: one, its filters, what is below + and the most beside it."""
    root: Tree = {}
    for text, count in texts.items():
        node = root
        levels = text.split("/")
        for level in levels[:-1] if levels[-1] == "#" else levels:
            node = node.setdefault(level, {})
        node["#"] = node.get("#", 0) + count
    return _most(root)


def _most(node: Tree) -> int:
    others = [_most(node[level]) for level in node if level not in ("#", "+")]
    plus = _most(node["+"]) if "+" in node else 0
    return 1 + int(node.get("#", 0)) + plus + max(others, default=0)


def nodes(node: Any) -> int:
    return 1 + sum(nodes(branch) for branch in (node.branches or {}).values())


class OverlapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.overlap = FilterOverlap()
        self.texts: Counter[str] = Counter()

    @rule(texts=st.lists(FILTERS, min_size=1, max_size=4))
    def add(self, texts: list[str]) -> None:
        for text in texts:
            self.overlap.add(text)
            self.texts[text] += 1

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.texts:
            text = data.draw(st.sampled_from(sorted(self.texts)))
            self.overlap.remove(text)
            self.texts -= Counter([text])

    @invariant()
    def agrees(self) -> None:
        assert self.overlap.most == most(self.texts)
        assert nodes(self.overlap.root) <= 2 * len(self.texts) + 1

    def teardown(self) -> None:
        for text in self.texts.elements():
            self.overlap.remove(text)
        assert self.overlap.most == 1 and self.overlap.root.is_empty()
        assert self.overlap.bytes == 0 and not self.overlap.root.counts


TestOverlapMachine = OverlapMachine.TestCase
TestOverlapMachine.settings = CHECK


@CHECK
@given(
    texts=st.lists(FILTERS.filter(lambda text: "+" in text or "#" in text), unique=True),
    topic=st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=7),
)
def test_no_name_visits_more(texts: list[str], topic: list[str]) -> None:
    overlap, trie = FilterOverlap(), Trie[str, str]()
    for text in texts:
        overlap.add(text)
        trie.put(text, "client", text)
    found = trie.match("/".join(topic) or "a")
    assert trie.steps + len(found) <= overlap.most


def test_a_consumer_of_many_devices_has_few_levels() -> None:
    overlap = FilterOverlap()
    for n in range(10_000):
        overlap.add(f"dev/{n}/+")
        overlap.add(f"$share/dev/{n}/#")
    assert overlap.most <= 6
    overlap.add("dev/+/+")
    overlap.add("#")
    assert overlap.most <= 12


def test_filters_that_overlap_in_all_ways_are_seen() -> None:
    overlap = FilterOverlap()
    for levels in itertools.product("a+", repeat=10):
        overlap.add("/".join(levels))
    assert overlap.most == 2**11 - 1 + 2**10


@pytest.mark.parametrize("seed", range(3))
def test_branches_that_come_and_go_are_no_work_for_those_beside_them(seed: int) -> None:
    """Each removal looks at as many numbers as there are different ones."""
    rng = random.Random(seed)
    overlap = FilterOverlap()
    texts = [f"dev/{n}/{'x/' * (n % 3)}+" for n in range(3_000)]
    for text in texts:
        overlap.add(text)
    rng.shuffle(texts)
    for text in texts:
        overlap.remove(text)
        devices = overlap.root.branch("dev")
        assert devices is None or len(devices.counts or {}) <= 3
    assert overlap.most == 1
