"""Outboxes: what is put into one is written once a turn, in one piece, and counted."""

from __future__ import annotations

import pytest

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.topics.aliases import OutboundAliases
from sessions.messages.counters import Counters
from sessions.messages.outbox import (
    CLEAN,
    CONGESTED,
    DIRTY,
    NO_CONNECTION,
    TURN_BYTES_MAX,
    Outbox,
    Outboxes,
)
from sessions.messages.work import WRITE, Work


class Link:
    """A connection and its link: keeps what is written, and as much as `keeps` waits there."""

    last_read_at = 0.0
    reads_slowly = False

    def __init__(self, outboxes: Outboxes, version: int = V5, packet_bytes_max: int = 0) -> None:
        self.written: list[bytes] = []
        self.waiting: list[tuple[int, float]] = []
        self.errors: list[str] = []
        self.keeps = 0
        self.error: Exception | None = None
        self.box = Outbox(version, self, self.write, outboxes, packet_bytes_max=packet_bytes_max)
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

    def give_up(self, counted_as: str, why: str, now: float) -> None:
        self.errors.append(f"{counted_as} at {now}")


@pytest.fixture
def counters() -> Counters:
    return Counters(0.0)


@pytest.fixture
def outboxes(counters: Counters) -> Outboxes:
    return Outboxes(counters, 0.0, Work())


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
    assert not Outbox(V5, link, link.write, outboxes, aliases=OutboundAliases(5)).plain


def test_a_client_without_a_connection_cannot_be_written_to(counters: Counters) -> None:
    assert NO_CONNECTION.state not in (CLEAN, DIRTY)
    with pytest.raises(AssertionError, match="without a connection"):
        NO_CONNECTION.write(b"a")


# The share of one peer.


class Kernel(Link):
    """A link whose peer reads when it is told to."""

    unread = 0

    def write(self, data: bytes) -> int:
        self.written.append(data)
        self.unread += len(data)
        return self.unread

    def read(self, outboxes: Outboxes, size: int) -> None:
        self.unread -= min(size, self.unread)
        outboxes.count_waiting(self.box, self.unread)
        outboxes.count_waiting(self.box, outboxes.hand_over(self.box))


def limited(share: int, of_all: int) -> Outboxes:
    return Outboxes(Counters(0.0), 0.0, Work(), share_bytes_max=share, waiting_bytes_max=of_all)


def test_a_link_is_handed_the_share_of_its_peer_and_the_rest_is_kept() -> None:
    outboxes = limited(1_000, 1 << 20)
    link = Kernel(outboxes)
    for piece in (b"a" * 700, b"b" * 5_000, b"", b"c" * 10):
        link.box.put(piece)
    outboxes.flush(1.0)
    assert b"".join(link.written) == b"a" * 700 + b"b" * 300
    assert (link.box.link_bytes, link.box.waiting_bytes) == (1_000, 5_710)
    assert outboxes.unread == {link.box: None}
    link.box.put(b"d")
    outboxes.flush(2.0)
    while link.unread:
        assert link.unread <= 1_000
        link.read(outboxes, 333)
    assert b"".join(link.written) == b"a" * 700 + b"b" * 5_000 + b"c" * 10 + b"d"
    assert link.box.kept is None and link.box.waiting_bytes == outboxes.waiting_bytes == 0
    assert outboxes.unread == {} and not len(outboxes.shared)


def test_many_share_what_is_left_and_nobody_gets_nothing() -> None:
    outboxes = limited(1 << 20, 1 << 22)
    links = [Kernel(outboxes) for _ in range(200)]
    for link in links:
        link.box.put(bytes(100) + bytes(1 << 20))
        outboxes.flush(1.0)
        assert link.unread > 0
    handed = [link.unread for link in links]
    assert handed == sorted(handed, reverse=True) and handed[0] == 1 << 20
    assert sum(handed) <= 1 << 22
    while any(link.unread for link in links):
        for link in links:
            link.read(outboxes, 1 << 30)
    assert outboxes.share_bytes == 1 << 20 and outboxes.waiting_bytes == 0


def test_a_piece_that_many_keep_is_counted_once() -> None:
    outboxes = limited(1_000, 1 << 30)
    links = [Kernel(outboxes) for _ in range(50)]
    large, small = bytes(100_000), bytes(2_000)
    for link in links:
        link.box.put(large)
        link.box.put(small)
    outboxes.flush(1.0)
    assert outboxes.waiting_bytes == 50 * 1_000 + 100_000 + 2_000
    assert [link.box.waiting_bytes for link in links] == [102_000] * 50
    for link in links[1:]:
        link.box.forget_kept()
        outboxes.count_waiting(link.box, 0)
    assert outboxes.waiting_bytes == 1_000 + 100_000 + 2_000
    outboxes.hand_over_all(links[0].box)
    assert b"".join(links[0].written) == large + small
    outboxes.count_waiting(links[0].box, 0)
    assert outboxes.waiting_bytes == 0 and not len(outboxes.shared)


def test_many_small_pieces_are_kept_as_few() -> None:
    """Otherwise each look at what is kept would cost as much as there are."""
    outboxes = limited(1_000, 1 << 30)
    link = Kernel(outboxes)
    for number in range(100_000):
        link.box.put(b"%06d" % number)
    outboxes.flush(1.0)
    assert link.box.kept is not None and len(link.box.kept) < 30
    while link.unread:
        link.read(outboxes, 1_000)
    assert b"".join(link.written) == b"".join(b"%06d" % number for number in range(100_000))


def test_an_error_while_a_part_is_written_leaves_the_counts_right() -> None:
    outboxes = limited(1_000, 1 << 30)
    link = Kernel(outboxes)
    calls = 0

    def write(data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError("broken")
        return 0

    link.box.write_through(write)
    link.box.put(bytes(100_000))
    outboxes.flush(1.0)
    assert link.errors == ["broken at 1.0"]
    link.box.forget_kept()
    outboxes.count_waiting(link.box, 0)
    assert outboxes.waiting_bytes == 0 and not len(outboxes.shared)


def is_behind(outboxes: Outboxes) -> tuple[bool, bool, int]:
    return outboxes.has_left, outboxes.is_full, outboxes.turn_bytes


def test_what_is_too_much_for_a_turn_is_written_in_the_next(counters: Counters) -> None:
    outboxes = Outboxes(counters, 0.0, Work(share=WRITE, turn_units=2 * WRITE))
    links = [Link(outboxes) for _ in range(5)]
    for link in links:
        link.box.put(b"a")
    outboxes.turn_bytes = 5
    outboxes.flush(1.0)
    assert [len(link.written) for link in links] == [1, 1, 0, 0, 0]
    assert is_behind(outboxes) == (True, False, 5)
    links[0].box.put(b"b")  # behind those that are left
    links[4].box.put(b"b")
    outboxes.flush(2.0)
    assert [len(link.written) for link in links] == [1, 1, 1, 1, 0]
    outboxes.flush(3.0)
    assert links[0].written == [b"a", b"b"] and links[4].written == [b"ab"]
    assert is_behind(outboxes) == (False, False, 0) and not outboxes.dirty


def test_much_that_is_left_holds_those_who_add_to_it(counters: Counters) -> None:
    outboxes = Outboxes(counters, 0.0, Work(share=WRITE, turn_units=WRITE))
    for link in [Link(outboxes) for _ in range(3)]:
        link.box.put(b"a")
    outboxes.turn_bytes = TURN_BYTES_MAX + 1
    assert is_behind(outboxes)[:2] == (False, False), "the turn may write all of it"
    outboxes.flush(1.0)
    assert is_behind(outboxes)[:2] == (True, True)
    outboxes.flush(2.0)
    outboxes.flush(3.0)
    assert is_behind(outboxes) == (False, False, 0)
