"""Outboxes: what is put into one is written once a turn, in one piece, and counted."""

from __future__ import annotations

import pytest

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.topics.aliases import OutboundAliases
from sessions.messages.counters import Counters
from sessions.messages.outbox import CLEAN, CONGESTED, DIRTY, NO_CONNECTION, Outbox, Outboxes


class Link:
    """A connection and its link: keeps what is written, and as much as `keeps` waits there."""

    def __init__(self, outboxes: Outboxes, version: int = V5, packet_bytes_max: int = 0) -> None:
        self.written: list[bytes] = []
        self.waiting: list[tuple[int, float]] = []
        self.errors: list[str] = []
        self.keeps = 0
        self.error: Exception | None = None
        self.box = Outbox(
            version, self, self.write, outboxes.dirty, packet_bytes_max=packet_bytes_max
        )
        self._outboxes = outboxes

    def write(self, data: bytes) -> int:
        if self.error is not None:
            raise self.error
        self.written.append(data)
        return self.keeps

    def on_written(self, waiting_bytes: int, now: float) -> None:
        self.waiting.append((waiting_bytes, now))
        self._outboxes.count_waiting(self.box, waiting_bytes)

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        self.errors.append(f"{error} at {now}")


@pytest.fixture
def counters() -> Counters:
    return Counters(0.0)


@pytest.fixture
def outboxes(counters: Counters) -> Outboxes:
    return Outboxes(counters, 0.0)


def test_a_turn_writes_each_outbox_once(outboxes: Outboxes, counters: Counters) -> None:
    one, two, idle = Link(outboxes), Link(outboxes), Link(outboxes)
    one.box.put(b"ab")
    two.box.put(b"x")
    one.box.put(b"cd")
    one.box.pieces.append(b"e")  # as fan-out does
    one.box.mark()
    assert outboxes.dirty == [one.box, two.box] and not one.written
    assert outboxes.turn_bytes == 0
    outboxes.turn_bytes = 6
    outboxes.flush(7.0)
    assert (one.written, two.written, idle.written) == ([b"abcde"], [b"x"], [])
    assert counters.bytes_sent == 6
    assert (outboxes.flushed_at, outboxes.turn_bytes, outboxes.dirty) == (7.0, 0, [])
    assert one.box.state == CLEAN and one.box.pieces == []
    assert one.waiting == [], "nothing waits, so its owner need not know"
    one.box.put(b"f")
    outboxes.flush(8.0)
    assert one.written == [b"abcde", b"f"]


def test_what_was_written_early_is_not_written_again(outboxes: Outboxes) -> None:
    link = Link(outboxes)
    link.box.put(b"a")
    outboxes.write(link.box, 1.0)
    outboxes.flush(2.0)
    assert link.written == [b"a"]
    link.box.put(b"b")
    outboxes.flush(3.0)
    assert link.written == [b"a", b"b"]


def test_what_an_outbox_gets_while_others_are_written_goes_in_the_same_turn(
    outboxes: Outboxes,
) -> None:
    one, two = Link(outboxes), Link(outboxes)

    def write(data: bytes) -> int:
        two.box.put(b"from one")
        return 0

    one.box.write_through(write)
    one.box.put(b"a")
    outboxes.flush(1.0)
    assert two.written == [b"from one"] and not one.written and not outboxes.dirty


def test_the_owner_hears_what_waits_until_nothing_does(outboxes: Outboxes) -> None:
    one, two = Link(outboxes), Link(outboxes)
    for link, keeps in ((one, 5), (two, 9)):
        link.keeps = keeps
        link.box.put(b"abc")
    outboxes.flush(1.0)
    assert outboxes.waiting_bytes == 14
    one.keeps = 0
    one.box.put(b"d")
    outboxes.flush(2.0)
    assert one.waiting == [(5, 1.0), (0, 2.0)]
    assert outboxes.waiting_bytes == 9
    assert (one.box.waiting_bytes, two.box.waiting_bytes) == (0, 9)


def test_an_error_of_one_link_leaves_the_others_alone(outboxes: Outboxes) -> None:
    one, two = Link(outboxes), Link(outboxes)
    one.error = OSError("broken")
    one.box.put(b"a")
    two.box.put(b"b")
    outboxes.flush(4.0)
    assert one.errors == ["broken at 4.0"] and two.written == [b"b"]


def test_congestion_is_apart_from_what_is_to_be_written(outboxes: Outboxes) -> None:
    box = Link(outboxes).box
    box.congest()
    box.put(b"a")
    assert box.state == CONGESTED | DIRTY and outboxes.dirty == [box]
    outboxes.flush(1.0)
    assert box.state == CONGESTED
    box.put(b"b")
    box.decongest()
    assert box.state == DIRTY


def test_only_outboxes_without_aliases_and_size_limit_take_shared_bytes(
    outboxes: Outboxes,
) -> None:
    assert Link(outboxes).box.plain and Link(outboxes, V311).box.plain
    assert Link(outboxes).box.v5 and not Link(outboxes, V311).box.v5
    limited = Link(outboxes, packet_bytes_max=10).box
    assert not limited.plain
    assert limited.fits(10) and not limited.fits(11)  # [MQTT-3.1.2-24]
    assert Link(outboxes).box.fits(1 << 28)
    link = Link(outboxes)
    assert not Outbox(V5, link, link.write, [], aliases=OutboundAliases(5)).plain


def test_a_client_without_a_connection_cannot_be_written_to(counters: Counters) -> None:
    assert NO_CONNECTION.state not in (CLEAN, DIRTY)
    with pytest.raises(AssertionError, match="without a connection"):
        NO_CONNECTION.write(b"a")
