"""A host runs the transactions that its number wants, one after the other, until it is fenced."""

from __future__ import annotations

import random

import pytest

from mqtt_broker.cluster.host import LINGER_S, Host
from mqtt_broker.cluster.hosting import BEAT_S
from mqtt_broker.cluster.node_row import FREE, new_row
from mqtt_broker.cluster.statements import ConnectionLost, EndBackends, Insert, Refused, Update
from tests.cluster.connections import FakeDatabase
from tests.cluster.contents import FakeContent


class Hosted:
    """A host of number 7, and what became of it."""

    def __init__(self) -> None:
        self.database = FakeDatabase()
        self.content = FakeContent()
        self.over: list[Host] = []
        self.host = Host(
            7, "e1", self.content, self.database.connect, self.over.append, random.Random(1)
        )

    def load(self, now: float = 0.0) -> None:
        """Connect, confirm and load."""
        self.host.tick(now)
        self.database.last.link.on_open(now)
        self.confirm(now)
        self.database.last.answer(now=now)
        assert self.content.is_loaded

    def confirm(self, now: float, turn: int = 0) -> None:
        row = {**new_row(7, "e1"), "turn": turn}
        assert isinstance(self.database.last.batches[-1][0], EndBackends)
        self.database.last.answer([], [row], now=now)
        self.database.last.answer([{**row, "turn": turn + 1}], now=now)

    @property
    def sent(self) -> int:
        return sum(len(one.batches) for one in self.database.connections)


@pytest.fixture
def hosted() -> Hosted:
    return Hosted()


def test_it_confirms_and_loads_as_soon_as_it_is_connected(hosted: Hosted) -> None:
    hosted.load()
    assert hosted.database.last.label == "e1"
    assert hosted.host.link.is_idle


def test_it_writes_a_moment_after_it_is_woken(hosted: Hosted) -> None:
    hosted.load(1.0)
    sent = hosted.sent
    hosted.content.blobs.append(b"one")
    hosted.host.wake(1.0)
    assert hosted.host.wakes_at == 1.0 + LINGER_S
    hosted.host.tick(1.0)
    assert hosted.sent == sent
    hosted.host.tick(1.0 + LINGER_S)
    assert isinstance(hosted.database.last.batches[-1][1], Insert)
    hosted.content.blobs.append(b"two")
    hosted.database.last.answer(now=1.1)
    assert hosted.content.committed == [1]
    assert hosted.sent == sent + 2  # the next without a wait


def test_it_looks_again_after_a_while_and_beats(hosted: Hosted) -> None:
    hosted.load(0.0)
    now, sent = 0.0, hosted.sent
    while now < BEAT_S:
        assert hosted.sent == sent
        now = hosted.host.wakes_at
        hosted.host.tick(now)
    assert hosted.sent == sent + 1 and now == BEAT_S
    assert isinstance(hosted.database.last.batches[-1][0], Update)


def test_it_confirms_again_after_an_unknown_outcome(hosted: Hosted) -> None:
    hosted.load()
    hosted.content.blobs.append(b"one")
    hosted.host.tick(0.3)
    hosted.database.last.link.on_lost("cut", 0.3)
    assert hosted.content.committed == [] and not hosted.over
    now = hosted.host.wakes_at
    hosted.host.tick(now)
    assert len(hosted.database.connections) == 2
    hosted.database.last.link.on_open(now)
    hosted.confirm(now, turn=1)
    assert isinstance(hosted.database.last.batches[-1][1], Insert)  # the same group again


def test_it_is_over_when_it_is_refused(hosted: Hosted) -> None:
    hosted.load()
    hosted.content.blobs.append(b"one")
    hosted.host.tick(0.3)
    hosted.host.link.on_answer(Refused("another epoch"), 0.3)
    assert hosted.over == [hosted.host]
    hosted.host.close()
    assert hosted.content.is_stopped and hosted.database.last.is_closed


def test_it_hands_over_when_nothing_is_left_to_write(hosted: Hosted) -> None:
    hosted.load()
    hosted.host.hand_over(FREE, 0.1)
    hosted.host.tick(0.1 + LINGER_S)
    (own, _) = hosted.database.last.batches[-1]
    assert isinstance(own, Update) and own.change["epoch"] == FREE
    hosted.database.last.answer(now=0.2)
    assert hosted.over == [hosted.host]


def test_a_failure_that_is_known_is_tried_again(hosted: Hosted) -> None:
    hosted.load()
    hosted.content.blobs.append(b"one")
    hosted.host.tick(0.3)
    hosted.host.link.on_answer(ConnectionLost(is_unknown=False), 0.3)
    assert not hosted.over and hosted.host.hosting.is_sure
