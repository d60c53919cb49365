"""A node hosts its own number, takes those of others that lapse, and leaves in order."""

from __future__ import annotations

import random

import pytest

from mqtt_broker.cluster.link import DatabaseLink
from mqtt_broker.cluster.membership import LAPSE_S
from mqtt_broker.cluster.node import READ_S, Node
from mqtt_broker.cluster.node_row import FREE, NodeRow, new_row
from mqtt_broker.cluster.statements import (
    Aborted,
    EndBackends,
    Insert,
    Put,
    Refused,
    Row,
    Select,
    Statement,
    Update,
)
from mqtt_broker.cluster.tables import NODES, WANTS
from tests.cluster.connections import FakeConnection, FakeDatabase
from tests.cluster.contents import FakeContent


class Place:
    """Node 1, what is around it, and the rows that it finds."""

    def __init__(self) -> None:
        self.database = FakeDatabase()
        self.contents: dict[int, FakeContent] = {}
        self.taken: list[NodeRow] = []
        self.seen: dict[int, str] = {}
        self.rows: list[Row] = []
        self.wants: list[Row] = []
        self.now = 10.0
        self._epochs = 0
        self.node = Node(1, self, random.Random(1))

    # The surroundings.

    def connect(self, label: str, link: DatabaseLink) -> FakeConnection:
        return self.database.connect(label, link)

    def new_epoch(self) -> str:
        self._epochs += 1
        return f"mine{self._epochs}"

    def new_content(self, number: int, epoch: str) -> FakeContent:
        self.contents[number] = FakeContent()
        return self.contents[number]

    def on_rows(self, rows: list[NodeRow]) -> None:
        self.seen = {row.number: row.epoch for row in rows}

    def on_taken(self, seen: NodeRow) -> None:
        self.taken.append(seen)

    # What a test does.

    @property
    def watch(self) -> FakeConnection:
        return next(one for one in self.database.connections if one.label.startswith("watch"))

    @property
    def asked(self) -> list[Statement]:
        """What the watch has sent last."""
        return self.watch.batches[-1]

    def open(self) -> None:
        """Connect the watch, which reads at once."""
        self.node.tick(self.now)
        self.watch.link.on_open(self.now)

    def answer(self) -> None:
        """Answer the watch with the rows that there are."""
        self.watch.answer(self.rows, self.wants, now=self.now)

    def read(self, seconds: float = READ_S) -> None:
        """Let the node read the rows after a while."""
        self.now += seconds
        self.rows = [
            {**row, "turn": row["turn"] + 1} if row["number"] == 1 else row for row in self.rows
        ]
        self.node.tick(self.now)
        assert isinstance(self.asked[0], Select), self.asked
        self.answer()

    def hosts(self, number: int, epoch: str) -> FakeConnection:
        """Connect the host of a number, and let it load; its row is there then."""
        self.node.tick(self.now)
        host = self.database.last
        assert host.label == epoch
        host.link.on_open(self.now)
        row = {**new_row(number, epoch), "group": 3, "folded": 3}
        host.answer([], [row], now=self.now)
        host.answer([{**row, "turn": 1}], now=self.now)
        host.answer(now=self.now)
        self.rows = [one for one in self.rows if one["number"] != number]
        self.rows.append({**row, "turn": 1})
        return host

    def other(self, epoch: str) -> None:
        """Let number 2 be hosted under an epoch, with something in its journal."""
        self.rows = [row for row in self.rows if row["number"] != 2]
        self.rows.append({**new_row(2, epoch), "group": 3})

    def home(self) -> FakeConnection:
        """Let the node host its own number."""
        self.open()
        self.answer()
        self.watch.answer(now=self.now)
        return self.hosts(1, "mine2")

    def until_sent(self, host: FakeConnection) -> Statement:
        """Wake the node until a host sends something; return its first statement."""
        count = len(host.batches)
        for _ in range(20):
            if len(host.batches) > count:
                break
            self.now = self.node.wakes_at
            self.node.tick(self.now)
        assert len(host.batches) > count
        return host.batches[-1][0]

    def until_lapsed(self) -> None:
        self.read()
        waited_s = 0.0
        while waited_s < LAPSE_S:
            self.read()
            waited_s += READ_S


@pytest.fixture
def place() -> Place:
    return Place()


def test_it_creates_its_own_number_and_hosts_it(place: Place) -> None:
    place.open()
    place.answer()
    created = place.asked[0]
    assert isinstance(created, Insert) and created.row == new_row(1, "mine2")
    assert not place.node.hosts and place.seen == {}
    place.watch.answer(now=place.now)
    place.hosts(1, "mine2")
    assert place.contents[1].is_loaded and place.node.hosts[1].hosting.epoch == "mine2"


def test_it_takes_a_number_that_has_lapsed(place: Place) -> None:
    place.home()
    place.other("theirs")
    place.until_lapsed()
    (_, update, _, _) = place.asked
    assert isinstance(update, Update) and update.where["epoch"] == "theirs"
    assert not place.taken and 2 not in place.node.hosts
    place.watch.answer(now=place.now)
    assert [one.epoch for one in place.taken] == ["theirs"]
    assert place.node.hosts[2].hosting.epoch == update.change["epoch"]


def test_it_ends_the_connections_that_hold_the_row_of_a_lapsed_number(place: Place) -> None:
    place.home()
    place.other("theirs")
    place.until_lapsed()
    place.watch.link.on_answer(Aborted("lock timeout"), place.now)
    (ends, _) = place.asked
    assert isinstance(ends, EndBackends) and ends.label == "theirs"
    place.watch.answer(now=place.now)
    place.read()
    assert isinstance(place.asked[1], Update)  # again


def test_it_reads_anew_after_a_refusal(place: Place) -> None:
    place.home()
    place.other("theirs")
    place.until_lapsed()
    place.watch.link.on_answer(Refused("it has come back"), place.now)
    assert 2 not in place.node.hosts
    place.other("again")
    place.read()
    assert isinstance(place.asked[0], Select) and not place.taken


def test_it_waits_for_its_own_number_until_it_is_handed_over(place: Place) -> None:
    place.rows = [{**new_row(1, "theirs"), "group": 3}]
    place.open()
    place.answer()
    (put, _) = place.asked
    assert isinstance(put, Put) and (put.table, put.row["epoch"]) == (WANTS, "mine2")
    place.watch.answer(now=place.now)
    assert not place.node.hosts
    place.rows[0]["epoch"] = "mine2"
    place.read()
    assert list(place.node.hosts) == [1]


def test_it_hands_a_number_over_to_its_own_process(place: Place) -> None:
    place.home()
    place.other(FREE)
    place.read()
    place.watch.answer(now=place.now)
    host = place.hosts(2, place.node.hosts[2].hosting.epoch)
    place.wants = [{"number": 2, "epoch": "theirs"}]
    place.read()
    own = place.until_sent(host)
    assert isinstance(own, Update) and own.change["epoch"] == "theirs"
    host.answer(now=place.now)
    assert list(place.node.hosts) == [1] and place.contents[2].is_stopped and host.is_closed


def test_it_is_fenced_and_takes_its_number_again(place: Place) -> None:
    host = place.home()
    place.contents[1].blobs.append(b"one")
    place.node.hosts[1].wake(place.now)
    place.until_sent(host)
    host.link.on_answer(Refused("another epoch"), place.now)
    assert not place.node.hosts and place.contents[1].is_stopped
    place.read()  # a fail-over has lost the other epoch
    assert isinstance(place.asked[1], Update) and place.asked[1].where["epoch"] == "mine2"


def test_it_frees_its_numbers_before_it_ends(place: Place) -> None:
    host = place.home()
    place.node.leave(place.now)
    assert not place.node.is_over
    own = place.until_sent(host)
    assert isinstance(own, Update) and own.change["epoch"] == FREE
    host.answer(now=place.now)
    assert place.node.is_over


def test_what_it_has_just_taken_is_freed_too(place: Place) -> None:
    place.home()
    place.other(FREE)
    place.read()
    place.node.leave(place.now)
    place.watch.answer(now=place.now)
    assert 2 in place.node.hosts and not place.node.is_over
    host = place.hosts(2, place.node.hosts[2].hosting.epoch)
    (own, _) = host.batches[-1]
    assert isinstance(own, Update) and own.change["epoch"] == FREE


def test_it_decides_nothing_by_rows_that_come_when_it_leaves(place: Place) -> None:
    place.home()
    place.now += READ_S
    place.node.tick(place.now)
    place.other(FREE)
    place.node.leave(place.now)
    place.answer()
    assert isinstance(place.asked[0], Select) and place.asked[0].table == NODES


def test_it_stops_at_once(place: Place) -> None:
    host = place.home()
    place.node.close()
    assert host.is_closed and place.watch.is_closed and place.contents[1].is_stopped
