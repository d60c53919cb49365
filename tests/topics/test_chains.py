"""Chains of levels in the two trees: split, joined, never longer than they have to be, counted."""

from __future__ import annotations

import functools
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqtt_broker.topics.chains import fits_chain, join_chain, shared_levels, split_chain
from mqtt_broker.topics.names import matches, text_bytes
from mqtt_broker.topics.retained import RetainedTree
from mqtt_broker.topics.trie import Trie
from tests.property_examples import examples

CHECK = examples(150)

# Long runs of the same levels, which part where a filter says so.
RUNS = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "+", "$x"]), st.integers(1, 4)), min_size=1, max_size=5
).map(lambda runs: [level for level, count in runs for _ in range(count)])
deep_filters = (
    st.tuples(RUNS, st.sampled_from(["", "", "/#"]))
    .map(lambda parts: "/".join(parts[0]) + parts[1])
    .filter(lambda text: text not in ("", "/#"))
)
deep_topics = deep_filters.map(lambda text: text.replace("/#", "").replace("+", "a"))


def nodes_of(root: Any) -> Iterator[tuple[Any, int]]:
    """Every node of a tree with the number of its branches; the root comes first."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        branches = list((node.children or {}).values())
        if getattr(node, "plus", None) is not None:
            branches.append(node.plus)
        yield node, len(branches)
        waiting += branches


def check_shape(root: Any, is_place: Callable[[Any], bool], places: int) -> None:
    """A node below the root is a place or parts branches, so there are fewer than two a place."""
    count = 0
    for node, branches in nodes_of(root):
        count += node is not root
        assert node is root or is_place(node) or branches > 1
        assert node.chain_levels == (node.chain.count("/") + 1 if node.chain else node.chain_levels)
        assert node.chain_levels < 2 or node.chain
        assert node.children is None or node.children
    assert count <= max(0, 2 * places - 1)


class DeepTrieMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trie: Trie[int, tuple[str, int]] = Trie()
        self.model: dict[tuple[str, int], tuple[str, int]] = {}

    @rule(text=deep_filters, key=st.integers(0, 2))
    def put(self, text: str, key: int) -> None:
        value = (text, len(self.model))
        assert self.trie.put(text, key, value) == ((text, key) not in self.model)
        self.model[text, key] = value

    @rule(text=deep_filters, key=st.integers(0, 2))
    def remove(self, text: str, key: int) -> None:
        assert self.trie.remove(text, key) == self.model.pop((text, key), None)

    @rule(data=st.data())
    def put_a_part_of_one(self, data: st.DataObject) -> None:
        if self.model:
            text = data.draw(st.sampled_from(sorted(self.model)))[0].removesuffix("/#")
            count = data.draw(st.integers(1, text.count("/") + 1))
            part = "/".join(text.split("/")[:count])
            if part:
                self.put(part + data.draw(st.sampled_from(["", "/#", "/+"])), 0)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self.remove(*data.draw(st.sampled_from(sorted(self.model))))

    @rule(topic=deep_topics)
    def match(self, topic: str) -> None:
        want = Counter(v for (text, _), v in self.model.items() if matches(text, topic))
        assert Counter(self.trie.match(topic)) == want

    @rule(data=st.data())
    def match_what_fits(self, data: st.DataObject) -> None:
        if self.model:
            text = data.draw(st.sampled_from(sorted(self.model)))[0]
            self.match(text.removesuffix("/#").replace("+", "b") or "a")

    @invariant()
    def agrees(self) -> None:
        places = {text for text, _ in self.model if "+" in text or "#" in text}
        check_shape(self.trie.root, lambda node: node.here or node.below, len(places))
        assert self.trie.count == len(self.model)

    def teardown(self) -> None:
        for text, key in list(self.model):
            self.remove(text, key)
        assert self.trie.root.is_empty() and not self.trie.exact
        assert self.trie.bytes == 0, "what is gone is still counted"


class DeepRetainedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree: RetainedTree[int] = RetainedTree()
        self.model: dict[str, int] = {}
        self.serial = 0

    @rule(topic=deep_topics)
    def put(self, topic: str) -> None:
        self.serial += 1
        assert self.tree.put(topic, self.serial) == self.model.get(topic)
        self.model[topic] = self.serial

    @rule(topic=deep_topics)
    def remove(self, topic: str) -> None:
        assert self.tree.remove(topic) == self.model.pop(topic, None)

    @rule(data=st.data())
    def put_a_part_of_one(self, data: st.DataObject) -> None:
        if self.model:
            levels = data.draw(st.sampled_from(sorted(self.model))).split("/")
            self.put("/".join(levels[: data.draw(st.integers(1, len(levels)))]) or "a")

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self.remove(data.draw(st.sampled_from(sorted(self.model))))

    @rule(text=deep_filters)
    def match(self, text: str) -> None:
        want = sorted(value for topic, value in self.model.items() if matches(text, topic))
        assert sorted(self.tree.match(text)) == want

    @invariant()
    def agrees(self) -> None:
        check_shape(self.tree.root, lambda node: node.topic is not None, len(self.model))
        assert len(self.tree) == len(self.model)

    def teardown(self) -> None:
        for topic in list(self.model):
            self.remove(topic)
        assert self.tree.root.is_empty()
        assert self.tree.bytes == 0, "what is gone is still counted"


TestDeepTrieMachine = DeepTrieMachine.TestCase
TestDeepTrieMachine.settings = CHECK
TestDeepRetainedMachine = DeepRetainedMachine.TestCase
TestDeepRetainedMachine.settings = CHECK


@CHECK
@given(chain=RUNS, data=st.data())
def test_a_chain_is_split_and_joined(chain: list[str], data: st.DataObject) -> None:
    text = "/".join(chain)
    count = data.draw(st.integers(0, len(chain) - 1))
    upper, level, lower = split_chain(text, count)
    assert level == chain[count]
    assert join_chain(upper, count, level, lower, len(chain) - count - 1) == text
    other = data.draw(RUNS)
    shared = 0
    while shared < min(len(chain), len(other)) and chain[shared] == other[shared]:
        shared += 1
    assert shared_levels(text, ["x", *other], 1) == shared
    assert fits_chain(text, [level.replace("+", "z") for level in chain], 0)
    assert fits_chain(text, chain, 0)
    if "$x" in chain:
        assert not fits_chain(text, [level.replace("$x", "z") for level in chain], 0)


def test_a_text_of_one_character_is_there_anyway() -> None:
    assert text_bytes("") == text_bytes("a") == text_bytes("é") == 0
    assert text_bytes("ab") > 40 and text_bytes("a" * 1000) > 1000 and text_bytes("中") > 40


def deep(rng: random.Random, levels: list[str], count: int) -> str:
    return "/".join([rng.choice(levels) for _ in range(count)])


KINDS: Final = (
    "of 201 levels", "of 201 long levels", "of a fleet", "that begin alike", "of 65 KB",
    "of other letters",
)  # fmt: skip


@functools.cache
def filters() -> dict[str, list[str]]:
    """Wildcard filters by what is special about them; with a word for + they are topics."""
    rng = random.Random(1)
    return {
        "of 201 levels": [deep(rng, ["a", "b", "+"], 200) + "/#" for _ in range(1_000)],
        "of 201 long levels": [
            deep(rng, ["building", "storey 12", "+"], 200) + "/#" for _ in range(300)
        ],
        "of a fleet": [f"dev/device-{n}/cmd/+" for n in range(7_000)],
        "that begin alike": ["a/" * (n % 200) + "of a/+/" + "b" * (n // 200) for n in range(2_000)],
        "of 65 KB": ["level" * 13_000 + f"/{n}/+" for n in range(50)],
        "of other letters": [f"\u5de5\u5382/\u697c{n}/+/\u6e29\u5ea6" for n in range(3_000)],
    }


def memory_of(act: Callable[[], object]) -> int:
    """The bytes that stay allocated after an act whose result is kept meanwhile."""
    tracemalloc.start()
    try:
        kept = act()
        size = tracemalloc.get_traced_memory()[0]
        del kept
        return size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_the_trie_knows_what_it_keeps(kind: str) -> None:
    texts = filters()[kind]
    keys = [f"client {n}" for n in range(len(texts))]
    said = []

    def fill() -> object:
        trie: Trie[str, str] = Trie()
        for text, key in zip(texts, keys, strict=True):
            trie.put(text, key, key)
        said.append(trie.bytes)
        return trie

    used = memory_of(fill)
    assert 0.7 * used < said[0] < 1.3 * used
    assert used < sum(text_bytes(text) for text in texts) + 600 * len(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_retained_tree_knows_what_it_keeps(kind: str) -> None:
    texts = [text.replace("+", f"x{n}").replace("#", "y") for n, text in enumerate(filters()[kind])]
    said = []

    def fill() -> object:
        tree: RetainedTree[int] = RetainedTree()
        topics = [text[:1] + text[1:] for text in texts]  # its own copies, as a packet brings them
        for topic in topics:
            tree.put(topic, 1)
        said.append(tree.bytes)
        return tree

    used = memory_of(fill)
    assert 0.7 * used < said[0] < 1.3 * used
    assert used < 2 * sum(text_bytes(text) for text in texts) + 400 * len(texts)
