"""A client that sent more than its share of a turn: order, its end, and who comes after it."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec.encode import PINGREQ_BYTES
from mqtt_broker.codec.packets import Connack, Disconnect, Pingresp, Publish, Will
from mqtt_broker.core import dispatch
from sessions.messages.work import Work
from tests.core.peers import V5, V311, Peer, World, connect, disconnect, publish, subscribe

TINY = 1  # unit: each packet ends the share


class Slow(World):
    """A turn is served only when a test says so, and each packet takes one."""

    def __init__(self, **settings: Any) -> None:
        self.is_sleeping = False
        super().__init__(work=Work(TINY, TINY), **settings)

    def settle(self) -> None:
        if not self.is_sleeping:
            super().settle()

    def sleep(self) -> None:
        self.is_sleeping = True

    def turn(self) -> None:
        self.broker.work(self.now)
        self.write()

    def write(self) -> None:
        """Write everything, whatever a turn would."""
        self.broker.flush(self.now)
        while self.broker.outboxes.has_left:
            self.broker.flush(self.now)

    def wake(self) -> None:
        self.is_sleeping = False
        self.settle()


def flood(peer: Peer, *packets: bytes) -> None:
    """Bring the packets in one read."""
    dispatch.receive(peer.connection, b"".join(packets), peer.world.now)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def scene(**settings: Any) -> tuple[Slow, Peer, Peer]:
    world = Slow(**settings)
    subscriber = world.client("s")
    subscriber.subscribe("#", qos=2)
    publisher = world.client("p", will=Will("w", b"will"))
    world.sleep()
    return world, subscriber, publisher


def sent(count: int, qos: int = 0) -> list[bytes]:
    """Messages that are no run: their lengths differ."""
    return [
        publish("t", payload + b"." * (n % 2), qos=qos, packet_id=1 + n)
        for n, payload in enumerate(numbers(count))
    ]


def got(subscriber: Peer) -> list[bytes]:
    return [payload.rstrip(b".") for payload in subscriber.payloads()]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_held_is_acted_upon_in_its_order(qos: int) -> None:
    world, subscriber, publisher = scene()
    flood(publisher, *sent(9, qos))
    assert world.broker.has_work
    assert [publisher.is_paused, publisher.connection.is_held] == [True, True]
    world.write()
    assert got(subscriber) == [b"0"]
    world.turn()
    assert got(subscriber) == [b"1"]
    world.wake()
    assert got(subscriber) == numbers(9)[2:]
    assert [publisher.is_paused, publisher.connection.is_held] == [False, False]
    assert sum(len(ack.packet_ids) for ack in publisher.take()) == (9 if qos else 0)


def test_others_are_served_meanwhile() -> None:
    world, subscriber, publisher = scene()
    world.is_sleeping = False
    other = world.client("o")
    world.sleep()
    flood(publisher, *sent(9))
    for _ in range(3):
        other.take()
        flood(other, PINGREQ_BYTES)
        world.turn()
        assert isinstance(other.take()[-1], Pingresp)
    assert len(got(subscriber)) == 4
    assert publisher.connection.is_held


def test_what_comes_while_it_is_held_waits_behind() -> None:
    world, subscriber, publisher = scene()
    data = b"".join(sent(8))
    half = len(data) // 2 + 3  # in the middle of a packet
    flood(publisher, data[:half])
    flood(publisher, data[half : half + 1])
    flood(publisher, data[half + 1 :])
    world.wake()
    assert got(subscriber) == numbers(8)


def test_a_connection_that_is_lost_ends_behind_what_it_sent() -> None:
    world, subscriber, publisher = scene()
    flood(publisher, *sent(5))
    publisher.drop()
    assert "p" in world.broker.connections
    world.wake()
    assert got(subscriber) == [*numbers(5), b"will"]
    assert "p" not in world.broker.connections
    assert not world.broker.has_work


def test_disconnect_is_acted_upon_in_its_turn() -> None:
    world, subscriber, publisher = scene()
    flood(publisher, *sent(5), disconnect())
    publisher.drop()
    world.wake()
    assert got(subscriber) == numbers(5)  # and no will


def test_a_violation_comes_in_its_turn() -> None:
    world, subscriber, publisher = scene()
    flood(publisher, *sent(5), b"\x00\x00")
    world.wake()
    assert got(subscriber) == [*numbers(5), b"will"]
    assert isinstance(publisher.take()[-1], Disconnect) and publisher.is_closed


def test_an_end_from_our_side_drops_what_waits() -> None:
    world, subscriber, publisher = scene()
    flood(publisher, *sent(5))
    world.broker.kick("p", world.now)
    world.wake()
    assert got(subscriber) == [b"0", b"will"]
    assert not world.broker.has_work


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_new_connection_waits_for_what_the_earlier_one_sent(clean: bool, is_lost: bool) -> None:
    world, subscriber, publisher = scene()
    flood(publisher, *sent(5))
    if is_lost:
        publisher.drop()
    successor = world.peer()
    flood(successor, connect("p", clean=clean), publish("t", b"after"))
    assert not successor.take()
    world.turn()
    world.wake()
    assert got(subscriber) == [*numbers(5), b"will", b"after"]
    assert [type(packet) for packet in successor.take()] == [Connack]
    assert publisher.is_closed and not world.broker.clients.arriving


def test_of_those_that_wait_the_last_one_comes_in() -> None:
    world, _, publisher = scene()
    flood(publisher, *sent(5))
    first, second = world.peer(), world.peer()
    flood(first, connect("p"))
    flood(second, connect("p"))
    world.wake()
    assert first.is_closed and not first.take()
    assert isinstance(second.take()[0], Connack)
    assert world.broker.connections["p"] is second.connection


def test_one_that_waits_and_goes_leaves_nothing() -> None:
    world, _, publisher = scene()
    flood(publisher, *sent(5))
    successor = world.peer()
    flood(successor, connect("p"))
    successor.drop()
    world.wake()
    assert not world.broker.clients.arriving and not publisher.is_closed


def test_the_packets_behind_a_connect_are_held_too() -> None:
    world, subscriber, _ = scene()
    newcomer = world.peer()
    flood(newcomer, connect("n"), *sent(700), disconnect())
    world.wake()
    assert got(subscriber) == numbers(700)
    assert newcomer.is_closed


def test_its_keep_alive_does_not_run_out_while_it_is_not_read() -> None:
    world, _, publisher = scene()
    world.is_sleeping = False
    timed = world.client("k", V311, keep_alive=10)
    world.sleep()
    flood(timed, *[publish("t", b"x" * n, version=V311) for n in range(5)])
    world.now += 100
    world.broker.tick(world.now)
    world.wake()
    assert [timed.is_closed, publisher.is_closed] == [False, False]


def test_more_than_the_decoder_hands_out_at_once() -> None:
    world, _, publisher = scene()
    flood(publisher, PINGREQ_BYTES * 3_000, publish("t", b"end"))
    world.wake()
    received = publisher.take()
    assert sum(isinstance(packet, Pingresp) for packet in received) == 3_000


def test_a_subscription_behind_deferred_messages() -> None:
    world, _, publisher = scene()
    flood(publisher, *sent(3), subscribe(V5, "t"), *sent(2))
    world.wake()
    found = [packet for packet in publisher.take() if isinstance(packet, Publish)]
    assert [payload for packet in found for payload in packet.payloads()] == [b"0", b"1."]


def test_a_publisher_waits_while_much_is_not_written() -> None:
    """Nobody else does, and it is said who waits."""
    lines: list[str] = []
    world = Slow(log=lines.append)
    for number in range(3):
        world.client(f"s{number}").subscribe("t")
    publisher, other = world.client("p"), world.client("o")
    world.sleep()
    for _ in range(7):  # a turn writes one outbox
        flood(publisher, publish("t", bytes(1_000_000)))
        world.broker.flush(world.now)
    assert (publisher.is_paused, world.broker.backpressure.held()["output"]) == (True, 1)
    assert any("p (" in line and "not written" in line for line in lines), lines
    flood(other, PINGREQ_BYTES)
    assert isinstance(other.take()[-1], Pingresp) and not other.is_paused
    world.wake()
    assert (publisher.is_paused, world.broker.backpressure.held()["output"]) == (False, 0)


def test_it_is_said_who_is_held_for_long() -> None:
    lines: list[str] = []
    world = Slow(log=lines.append)
    publisher = world.client("p")
    world.sleep()
    flood(publisher, *sent(9))
    for _ in range(4):
        world.turn()
        world.now += 0.5
    found = [line for line in lines if "worked on" in line]
    assert len(found) == 1 and found[0].startswith("p ("), lines
