"""The retained messages of all numbers: reading on, reading all again, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from mqtt_broker.cluster.retained_follower import OPEN_S, Follower
from mqtt_broker.cluster.retained_rows import OwnRows, RetainedLimits, RetainedMessage
from mqtt_broker.cluster.statements import Row, Rows, SelectNewer

LIMITS = RetainedLimits(group_rows=2, read_rows=4)


class Memory:
    def __init__(self) -> None:
        self.messages: dict[str, bytes] = {}

    def put(self, message: RetainedMessage) -> None:
        self.messages[message.topic] = message.blob

    def remove(self, topic: str) -> None:
        self.messages.pop(topic, None)

    def topics(self) -> Iterable[str]:
        return list(self.messages)


class Asked:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.begun: list[dict[str, bytes]] = []
        self.later: list[list[str]] = []

    def begin(self, without: set[str]) -> None:
        found = self.memory.messages.items()
        self.begun.append({topic: blob for topic, blob in found if topic not in without})

    def go_on(self, messages: list[RetainedMessage]) -> None:
        self.later.append([one.topic for one in messages])


def row(topic: str, number: int, group: int, blob: bytes = b"x") -> Row:
    return {"topic": topic, "number": number, "group": group, "blob": blob, "expires_at": 0}


def node(number: int, group: int, turn: int = 1, epoch: str = "e") -> Row:
    return {"number": number, "epoch": epoch, "turn": turn, "group": group, "folded": 0}


class Reader:
    """A follower of number 1 that is answered by hand."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.own = OwnRows(LIMITS)
        self.follower = Follower(1, self.memory, self.own, LIMITS)
        self.now = 0.0

    def read(
        self,
        nodes: Rows,
        rows: Rows,
        *,
        swept: int = 0,
        again: Rows | None = None,
        group: int | None = None,
        has_all: bool = True,
    ) -> dict[int, int]:
        """Read once, apply what was read, and return up to where all was known before."""
        newer = self.follower.reads([], group)[2]
        assert isinstance(newer, SelectNewer)
        sweeps: Rows = [{"number": 2, "group": swept}] if swept else []
        found = [nodes, sweeps, rows, sweeps, rows if again is None else again]
        self.follower.on_rows(found, {}, self.now, has_all=has_all)
        cut = self.follower.take()
        if cut is not None:
            self.follower.apply(cut)
        return newer.than

    def load(self) -> Reader:
        self.read([node(1, 3), node(2, 5)], [])
        self.read([node(1, 3), node(2, 5)], [row("a", 2, 4), row("b", 2, 5)])
        assert self.state == (True, False)
        return self

    @property
    def state(self) -> tuple[bool, bool]:
        """Whether it has loaded all, and whether there is more to read."""
        return self.follower.is_loaded, self.follower.is_behind


def test_it_loads_and_then_follows() -> None:
    reader = Reader()
    assert reader.read([node(1, 3), node(2, 5)], []) == {} and reader.follower.is_behind
    rows = [row("a", 1, 2), row("b", 2, 5)]
    assert reader.read([node(1, 3), node(2, 5)], rows) == {1: -1, 2: -1}
    assert reader.memory.messages == {"a": b"x", "b": b"x"}
    rows = [row("a", 2, 6, b"y"), row("b", 2, 7, b"")]
    assert reader.read([node(1, 3), node(2, 7), node(3, 1)], rows) == {1: 3, 2: 5}
    assert reader.memory.messages == {"a": b"y"} and reader.follower.is_behind
    assert reader.read([node(1, 3), node(2, 7), node(3, 1)], []) == {1: 3, 2: 7, 3: -1}
    assert reader.follower.numbers == [2, 3]


def test_a_page_ends_with_a_group() -> None:
    reader = Reader()
    nodes = [node(1, 0), node(2, 9)]
    reader.read(nodes, [])
    reader.read(nodes, [row("a", 2, 1), row("b", 2, 2), row("c", 2, 3), row("d", 2, 3)])
    assert sorted(reader.memory.messages) == ["a", "b"] and reader.follower.is_behind
    rows = [row("c", 2, 3), row("d", 2, 3), row("e", 2, 3)]
    assert reader.read(nodes, rows) == {1: -1, 2: 2}
    assert sorted(reader.memory.messages) == list("abcde") and reader.follower.is_loaded


def test_what_this_host_has_written_is_not_read_back() -> None:
    reader = Reader().load()
    assert reader.read([node(1, 4), node(2, 5)], [], group=4) == {1: 4, 2: 5}
    reader.follower.on_committed(4, [RetainedMessage("a", b"own"), RetainedMessage("b", b"")])
    assert reader.memory.messages == {"a": b"x", "b": b"x"}, "not before the next cut"
    assert reader.read([node(1, 4), node(2, 6)], [row("b", 2, 6, b"z")]) == {1: 4, 2: 5}
    assert reader.memory.messages == {"a": b"own", "b": b"z"}
    assert reader.own.tombstones == 0, "it is another number's row now"


def test_who_has_missed_rows_that_were_deleted_reads_all() -> None:
    reader = Reader().load()
    reader.read([node(1, 3), node(2, 7)], [], swept=5)
    assert reader.state == (True, False), "it has read these"
    reader.read([node(1, 3), node(2, 9)], [], swept=8)
    assert reader.state == (False, True)
    assert reader.read([node(1, 3), node(2, 9)], [], swept=8) == {}
    assert reader.memory.messages == {"a": b"x", "b": b"x"}
    reader.read([node(1, 3), node(2, 9)], [row("b", 2, 5)], swept=8)
    assert reader.memory.messages == {"b": b"x"} and reader.follower.is_loaded


def test_what_this_host_has_written_may_be_gone_before_it_reads_all() -> None:
    reader = Reader().load()
    reader.follower.on_committed(4, [RetainedMessage("a", b"own"), RetainedMessage("c", b"own")])
    nodes = [node(1, 4), node(2, 9)]
    reader.read(nodes, [], swept=7)  # number 2 has removed "a", and deleted its tombstone
    reader.read(nodes, [row("b", 2, 5), row("c", 1, 4, b"own")], swept=7)
    assert reader.state == (True, False)
    assert reader.memory.messages == {"b": b"x", "c": b"own"}


def test_a_request_begins_with_the_next_read_and_stays_open() -> None:
    reader = Reader().load()
    early, late = Asked(reader.memory), Asked(reader.memory)
    reader.follower.want(early)
    reader.follower.reads([], None)
    reader.follower.want(late)  # what is on its way does not count for it
    found: list[Rows] = [[node(1, 3), node(2, 5, turn=7)], [], [], [], []]
    reader.follower.on_rows(found, {}, 0.0, has_all=True)
    cut = reader.follower.take()
    assert cut is not None
    reader.follower.apply(cut)
    assert (len(early.begun), len(late.begun)) == (1, 0) and reader.follower.is_wanted
    reader.read([node(1, 3, turn=2), node(2, 6, turn=8)], [row("c", 2, 6)])
    assert late.begun == [{"a": b"x", "b": b"x", "c": b"x"}]
    reader.read([node(1, 3, turn=3), node(2, 7, turn=9)], [row("d", 2, 7)])
    assert early.later == [["c"], ["d"]] and late.later == [["d"]]
    reader.read([node(1, 3, turn=4), node(2, 8, turn=9)], [row("e", 2, 8)])
    assert len(early.later) == 2, "every host has had another transaction"
    assert late.later == [["d"], ["e"]], "2 has had none since this request had begun"
    reader.now = OPEN_S
    reader.read([node(1, 3, turn=4), node(2, 8, turn=9)], [])
    reader.read([node(1, 3, turn=4), node(2, 8, turn=9)], [])
    assert len(late.later) == 3


def test_numbers_without_a_host_are_not_waited_for() -> None:
    reader = Reader().load()
    asked = Asked(reader.memory)
    reader.follower.want(asked)
    for turn in range(1, 5):
        reader.read([node(1, 3, turn=turn), node(2, 5, epoch="")], [])
    assert (len(asked.begun), len(asked.later)) == (1, 2)


def test_a_topic_that_is_changing_is_left_to_the_next_cut() -> None:
    reader = Reader().load()
    asked = Asked(reader.memory)
    reader.follower.want(asked)
    nodes = [node(1, 3), node(2, 6)]
    reader.read(nodes, [row("a", 2, 6, b"6")], again=[row("a", 2, 7, b"7"), row("c", 2, 7)])
    assert asked.begun == [{"b": b"x"}]
    reader.read([node(1, 3), node(2, 7)], [row("a", 2, 7, b"7"), row("c", 2, 7)])
    assert asked.later == [["a", "c"]] and reader.memory.messages["a"] == b"7"


def test_nobody_is_served_when_more_may_have_changed_than_was_read_again() -> None:
    reader = Reader().load()
    asked = Asked(reader.memory)
    reader.follower.want(asked)
    nodes = [node(1, 3), node(2, 6)]
    again = [row(topic, 1, 4) for topic in ("c", "d", "e", "f")]
    reader.read(nodes, [row("a", 2, 6)], again=again)
    assert asked.begun == [] and reader.follower.is_wanted
    reader.read(nodes, [row("a", 2, 7, b"new")])
    assert asked.begun == [{"a": b"new", "b": b"x"}]


def test_nobody_is_served_while_messages_wait_that_are_older() -> None:
    reader = Reader().load()
    opened, asked = Asked(reader.memory), Asked(reader.memory)
    reader.follower.want(opened)
    reader.read([node(1, 3), node(2, 5)], [])
    reader.follower.want(asked)
    reader.read([node(1, 3), node(2, 6)], [row("c", 2, 6), row("d", 2, 6)], has_all=False)
    assert not asked.begun and not opened.later
    reader.follower.on_committed(4, [RetainedMessage("d", b"own")])
    reader.read([node(1, 4), node(2, 6)], [])
    assert opened.later == [["c"]], "the own message has come live"
    assert asked.begun == [{"a": b"x", "b": b"x", "c": b"x", "d": b"own"}]
