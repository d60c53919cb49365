"""Those who hold most, for longest, are closed, and only as many as it takes."""

from __future__ import annotations

from mqtt_broker.core.limits.incomplete_packets import SMALL_BYTES, IncompletePackets


class Sender:
    def __init__(self) -> None:
        self.why = ""
        self.is_paused = False

    def give_up_packet(self, why: str, now: float) -> None:
        self.why = why


def closed(*senders: Sender) -> list[int]:
    return [number for number, sender in enumerate(senders, 1) if sender.why]


def test_bytes_times_seconds_say_who_is_closed() -> None:
    packets = IncompletePackets(100_000)
    one, two, three, four = (Sender() for _ in range(4))
    assert packets.count(one, 10_000, 1.0) and packets.count(two, 40_000, 10.0)
    assert packets.count(three, 45_000, 19.0) and packets.bytes == 95_000
    assert packets.count(four, 20_000, 20.0)
    assert closed(one, two, three, four) == [2] and packets.bytes == 75_000
    assert two.why == "40000 bytes of a packet that is not complete, of 115000 of all clients"
    assert not packets.count(four, SMALL_BYTES, 21.0)
    packets.forget(one)
    packets.forget(one)
    assert packets.bytes == 45_000


def test_whoever_completes_a_packet_begins_anew() -> None:
    packets = IncompletePackets(100_000)
    busy, idle, last = (Sender() for _ in range(3))
    packets.count(busy, 40_000, 1.0)
    packets.count(idle, 40_000, 50.0)
    packets.count(busy, 40_000, 60.0, is_new=True)
    packets.count(last, 40_000, 61.0)
    assert closed(busy, idle, last) == [2] and packets.bytes == 80_000


def test_who_is_not_read_from_is_closed_only_if_nobody_else_is_left() -> None:
    packets = IncompletePackets(100_000)
    held, other, last = (Sender() for _ in range(3))
    packets.count(held, 50_000, 1.0)
    held.is_paused = True
    packets.count(other, 40_000, 50.0)
    packets.count(last, 30_000, 51.0)
    assert closed(held, other, last) == [2]
    last.is_paused = True
    assert packets.count(other, 30_000, 60.0, is_new=True) is False
    assert packets.bytes == 80_000, "the one that came, for the others are held"
    packets.count(last, 60_000, 61.0)
    assert closed(held) == [1]


def test_one_that_is_alone_too_large_is_closed_itself() -> None:
    packets = IncompletePackets(100_000)
    sender = Sender()
    assert not packets.count(sender, 100_001, 1.0)
    assert sender.why and packets.bytes == 0
