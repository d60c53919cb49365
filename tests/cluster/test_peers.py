"""Hints: when they are sent, who is heard, and how long a SUBACK waits for those who are."""

from __future__ import annotations

from mqtt_broker.cluster.frames.bodies import Hint, decode
from mqtt_broker.cluster.frames.layout import HINT
from mqtt_broker.cluster.peers import HINT_S, SILENT_S, SUBACK_WAIT_S, Peers


class World:
    """Peers of a number, the hints that they send, and the replies that they give."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []  # to whom, the version of the filters
        self.replies: list[str] = []
        self.is_up = True
        self.peers = Peers(self._send)

    def _send(self, kind: int, to: int, body: bytes) -> bool:
        assert kind == HINT
        if self.is_up:
            self.sent.append((to, decode(kind, memoryview(body)).filters))
        return self.is_up

    def wait(self, version: int, name: str) -> None:
        self.peers.when_known(version, lambda: self.replies.append(name))


def test_a_hint_is_sent_when_a_version_changes_and_every_second() -> None:
    world = World()
    world.peers.tell(2, Hint(1, 1, 0), 10.0)
    world.peers.tell(2, Hint(2, 1, 0, outbox=3), 10.1)
    assert world.sent == [(2, 1)]
    world.peers.tell(2, Hint(2, 2, 0), 10.1)
    world.peers.tell(2, Hint(2, 2, 0, known=1), 10.1)
    world.peers.tell(3, Hint(2, 2, 0, known=1), 10.1)
    assert len(world.sent) == 4
    world.peers.tell(2, Hint(2, 2, 0, known=1), 10.1 + HINT_S)
    assert len(world.sent) == 5


def test_a_hint_that_is_not_sent_is_sent_later() -> None:
    world = World()
    world.is_up = False
    world.peers.tell(2, Hint(1, 1, 0), 10.0)
    world.is_up = True
    world.peers.tell(2, Hint(1, 1, 0), 10.0)
    assert world.sent == [(2, 1)]


def test_a_number_is_heard_for_a_while() -> None:
    peers = World().peers
    assert not peers.is_heard(2, 0.0)
    peers.on_hint(2, "e", Hint(1, 1, 0), 10.0)
    assert peers.is_heard(2, 10.0) and not peers.is_heard(2, 10.0 + SILENT_S)


def test_suback_waits_until_all_who_are_heard_know_the_filter() -> None:
    world = World()
    peers = world.peers
    peers.on_hint(2, "e", Hint(1, 1, 0, known=4), 10.0)
    peers.on_hint(3, "e", Hint(1, 1, 0, known=5), 10.0)
    world.wait(5, "a")
    world.wait(4, "b")
    peers.answer(10.0)
    assert world.replies == ["b"]
    peers.on_hint(2, "e", Hint(1, 1, 0, known=5), 10.1)
    peers.on_hint(2, "e", Hint(1, 1, 0, known=3), 10.1)  # late
    peers.answer(10.1)
    assert world.replies == ["b", "a"]


def test_a_new_host_knows_nothing_yet() -> None:
    world = World()
    world.peers.on_hint(2, "e", Hint(1, 1, 0, known=5), 10.0)
    world.peers.on_hint(2, "f", Hint(1, 1, 0), 10.0)
    world.wait(5, "a")
    world.peers.answer(10.0)
    assert not world.replies


def test_suback_waits_for_nobody_who_is_silent_and_for_others_not_long() -> None:
    world = World()
    world.wait(5, "alone")
    world.peers.answer(10.0)
    assert world.replies == ["alone"]
    world.peers.on_hint(2, "e", Hint(1, 1, 0), 10.0)
    world.wait(5, "a")
    world.peers.answer(10.0)
    world.peers.answer(10.0 + SUBACK_WAIT_S - 0.01)
    assert world.replies == ["alone"]
    world.peers.answer(10.0 + SUBACK_WAIT_S)
    assert world.replies == ["alone", "a"]
