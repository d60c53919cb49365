"""A search of the retained tree that goes on in slices, while the tree changes between them."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from mqtt_broker.topics.names import matches
from mqtt_broker.topics.retained import RetainedScan, RetainedTree
from tests.property_examples import examples

CHECK = examples(200)
# Few names and long runs of them: nodes are split and merged all the time.
LEVELS = ["a", "a", "b", "", "$x"]
TOPICS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=7).map("/".join).filter(bool)
FILTERS = (
    st.tuples(
        st.lists(st.sampled_from([*LEVELS, "+", "+"]), max_size=5), st.sampled_from([[], ["#"]])
    )
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)


class Search:
    """A scan, and the topics that have been there since it began."""

    def __init__(self, tree: RetainedTree[tuple[str, int]], text: str, model: dict[str, int]):
        self.text = text
        self.scan = RetainedScan(tree, text)
        self.standing = {topic for topic in model if matches(text, topic)}
        self.found: list[str] = []

    def take(self, steps: int, model: dict[str, int]) -> None:
        before = self.scan.steps
        for topic, serial in self.scan.take(steps):
            assert matches(self.text, topic)
            assert model[topic] == serial, "an older value than the one that stands"
            self.found.append(topic)
        assert self.scan.steps - before <= steps + 7, "a slice takes as long as it likes"
        assert len(self.found) == len(set(self.found)), "found twice"
        if self.scan.is_done:
            assert self.standing <= set(self.found), "not found"


class ScanMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree: RetainedTree[tuple[str, int]] = RetainedTree()
        self.model: dict[str, int] = {}
        self.searches: list[Search] = []
        self.serial = 0

    @rule(topic=TOPICS)
    def put(self, topic: str) -> None:
        self.serial += 1
        self.tree.put(topic, (topic, self.serial))
        self.model[topic] = self.serial

    @rule(topics=st.lists(TOPICS, min_size=3, max_size=12))
    def put_many(self, topics: list[str]) -> None:
        for topic in topics:
            self.put(topic)

    @rule(data=st.data(), back=st.booleans())
    def remove(self, data: st.DataObject, back: bool) -> None:
        if self.model:
            topic = data.draw(st.sampled_from(sorted(self.model)))
            self.tree.remove(topic)
            del self.model[topic]
            for search in self.searches:
                search.standing.discard(topic)
            if back:
                self.put(topic)

    @rule(text=FILTERS)
    def begin(self, text: str) -> None:
        if len(self.searches) < 3:
            self.searches.append(Search(self.tree, text, self.model))

    @rule(steps=st.integers(1, 4))
    def go_on(self, steps: int) -> None:
        for search in self.searches:
            search.take(steps, self.model)
        self.searches = [search for search in self.searches if not search.scan.is_done]

    def teardown(self) -> None:
        while self.searches:
            self.go_on(3)


TestScanMachine = ScanMachine.TestCase
TestScanMachine.settings = CHECK


MANY = [str(number) for number in range(150)]  # so many branches are listed once for all searches
NAMES = [["a", "b"], ["a", "b", "c", ""], ["a", *MANY]]


@pytest.mark.parametrize("names", NAMES, ids=["few", "more", "many"])
def test_many_changes_between_the_slices_of_many_searches(names: list[str]) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        machine = ScanMachine()
        is_wide = len(names) > 100
        deepest = 2 if is_wide else 6
        steps_max = 40 if is_wide else 3
        for name in names[: rng.randrange(100, 150)] if is_wide else ():
            machine.put(name)
        for _ in range(400):
            topic = "/".join(rng.choice(names) for _ in range(rng.randint(1, deepest))) or "a"
            kind = rng.random()
            if kind < 0.45:
                machine.put(topic)
            elif kind < 0.75 and machine.model:
                for gone in rng.sample(sorted(machine.model), min(len(machine.model), deepest)):
                    machine.tree.remove(gone)
                    del machine.model[gone]
                    for search in machine.searches:
                        search.standing.discard(gone)
                    if rng.random() < 0.3:
                        machine.put(gone)
            elif kind < 0.82 and len(machine.searches) < 4:
                text = "/".join(rng.choice([*names, "+"]) for _ in range(rng.randint(0, 4)))
                text = rng.choice(["#", text + "/#", text or "#"]).removeprefix("/") or "+"
                text = rng.choice(["#", "+", "a/+", "+/a"]) if is_wide else text
                machine.searches.append(Search(machine.tree, text, machine.model))
            else:
                for search in machine.searches:
                    search.take(rng.randint(1, steps_max), machine.model)
                machine.searches = [s for s in machine.searches if not s.scan.is_done]
        machine.teardown()


def test_a_topic_without_wildcards_is_one_step() -> None:
    tree: RetainedTree[int] = RetainedTree()
    tree.put("a/b", 1)
    scan = RetainedScan(tree, "a/b")
    assert scan.take(1) == [1] and scan.is_done and scan.steps == 1
    gone = RetainedScan(tree, "a/c")
    assert gone.take(1) == [] and gone.is_done


def test_what_searches_remember_is_bounded_by_the_tree() -> None:
    """However many they are, and however often topics come and go between them."""
    tree: RetainedTree[int] = RetainedTree()
    for n in range(20_000):
        tree.put(f"{n}/a", n)
    for n in range(200):
        tree.put("/".join(["deep"] * (n + 1)), n)
    scans: list[RetainedScan[int]] = []
    for n in range(50):
        scan = RetainedScan(tree, "#")
        scans.append(scan)
        scan.take(2 + 20_000 // 64)
        tree.remove(f"{n}/a")
        tree.put(f"new {n}", n)
    lists = {id(nodes): len(nodes) for scan in scans for nodes in scan.nodes}
    assert sum(lists.values()) < 20_000 + 2 * 50 + 50 * 64
    for n, scan in enumerate(scans):
        found = 0
        while not scan.is_done:
            found += len(scan.take(500))
        assert found >= 20_200 - 50
        assert scan.steps < 2 * (20_000 + 20_000 // 64 + 400), n


def test_a_list_of_what_has_gone_does_not_stay() -> None:
    tree: RetainedTree[int] = RetainedTree()
    for n in range(1_000):
        tree.put(f"{n}", n)
    empty = RetainedScan(tree, "+")
    empty.take(20)
    assert len(empty.nodes[0]) == 1_000
    for n in range(100_000):
        tree.remove(f"{n}")
        tree.put(f"{n + 1_000}", n)
        if n % 100 == 0:
            scan = RetainedScan(tree, "+")
            scan.take(20)
            assert len(scan.nodes[0]) < 1_400
    found = 0
    while not scan.is_done:
        found += len(scan.take(1_000))
    assert found > 900
