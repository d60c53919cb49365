"""Unread bytes are held against those who do not read them, and never against anybody else."""

from __future__ import annotations

import pytest

from mqtt_broker.codec.constants import PUBACK, V5
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Ack, Disconnect, Pingresp, Publish
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from mqtt_broker.core.limits.settings import DEFAULTS
from mqtt_broker.core.runtime.slow_readers import READS_NOTHING, READS_TOO_SLOWLY, UNREAD_BYTES
from tests.core.peers import Peer, World, connect, publish, subscribe

PING = b"\xc0\x00"
LARGE = 1_900_000


class Hog(Peer):
    """A peer whose link takes everything and delivers nothing; what waits there is only counted."""

    is_reading = True
    waiting_bytes = 0

    def write(self, data: bytes) -> int:
        if self.is_reading:
            return super().write(data)
        self.waiting_bytes += len(data)
        return self.waiting_bytes

    def take_in(self, count: int) -> None:
        """Read some bytes, and forget them."""
        self.waiting_bytes -= min(count, self.waiting_bytes)
        self.connection.on_written(self.waiting_bytes, self.world.now)
        self.world.settle()


def hog(world: World, client_id: str, *filters: str, qos: int = 0) -> Hog:
    peer = Hog(world, V5)
    world.peers.append(peer)
    peer.send(connect(client_id), subscribe(V5, *filters, qos=qos))
    peer.take()
    peer.is_reading = False
    return peer


def fill(world: World, hogs: int, size: int = LARGE, times: int = 3) -> list[Hog]:
    """Readers who do not read, each of a topic of its own that somebody publishes to."""
    found = [hog(world, f"hog{number}", f"hog/{number}") for number in range(hogs)]
    publisher = world.client("filler")
    payload = bytes(size)
    for _ in range(times):
        for number in range(hogs):
            publisher.send(publish(f"hog/{number}", payload))
    return found


def unread(world: World) -> int:
    return world.broker.outboxes.waiting_bytes


def closed(peers: list[Hog]) -> int:
    return sum(peer.is_closed for peer in peers)


@pytest.mark.parametrize("hogs", [1, 75, 300])
def test_strangers_are_answered_at_once(hogs: int) -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe("a", qos=1)
    reader.take()
    found = fill(world, hogs)
    assert unread(world) <= DEFAULTS.outbox_total_bytes_max
    assert closed(found) < hogs / 10 or hogs > 128, "there is room for a message of each"
    stranger = world.client("stranger")
    stranger.send(publish("a", b"x", qos=1, packet_id=7), PING)
    ack, pong = stranger.take()
    assert isinstance(ack, Ack) and ack.packet_ids == [7] and isinstance(pong, Pingresp)
    assert reader.payloads() == [b"x"]
    assert not any(peer.is_paused for peer in world.peers if not isinstance(peer, Hog))
    assert world.broker.backpressure.held()["store"] == 0


def test_a_newcomer_has_room_while_many_do_not_read() -> None:
    """Each has its share of what the others leave free: nobody has it all."""
    world = World()
    found = fill(world, 300, 100_000, 50)
    share = world.broker.outboxes.share_bytes
    assert 100_000 < share < DEFAULTS.outbox_bytes_max
    assert all(peer.is_paused for peer in found) and closed(found) == 0
    late = hog(world, "late", "late")
    world.client("p").send(publish("late", bytes(100_000)))
    assert late.waiting_bytes > 100_000 and not late.is_paused
    assert not late.is_closed and closed(found) == 0


def test_a_message_to_many_is_paced_and_nobody_is_closed() -> None:
    """It is in memory once, and each of them is handed what there is room for."""
    world = World()
    readers = [hog(world, f"r{number}", "news", qos=1) for number in range(1_000)]
    world.client("p").send(publish("news", bytes(LARGE), qos=1, packet_id=1))
    assert unread(world) <= DEFAULTS.outbox_total_bytes_max + LARGE
    assert closed(readers) == 0
    for _ in range(10_000):
        if not any(reader.waiting_bytes for reader in readers):
            break
        for reader in readers:
            if reader.waiting_bytes:
                reader.take_in(1 << 20)
    assert closed(readers) == 0 and unread(world) == 0
    sent = world.broker.counters.bytes_sent
    assert sent > 1_000 * LARGE, "every one of them has got all of it"
    assert world.broker.outboxes.unread == {} and not any(r.is_paused for r in readers)


def test_what_comes_in_order_stays_in_order() -> None:
    world = World(outbox_bytes_max=10_000, outbox_total_bytes_max=100_000)
    slow = world.client("s")
    slow.subscribe("a", qos=1)
    slow.take()
    slow.is_slow = True
    publisher = world.client("p")
    sizes = [1, 5_000, 9_000, 3, 4_095, 4_096, 4_097, 0, 12_000, 7]
    for number, size in enumerate(sizes):
        publisher.send(publish("a", bytes([number]) * size, qos=1, packet_id=1 + number))
    got: list[bytes] = []
    for _ in range(1_000):
        slow.read(777)
        for packet in slow.publishes():
            got += packet.payloads()
            slow.send(*[encode_ack(PUBACK, i) for i in packet.packet_ids()])
    assert got == [bytes([number]) * size for number, size in enumerate(sizes)]
    assert unread(world) == 0 and not slow.is_paused and not slow.is_closed


def test_those_who_take_a_little_now_and_then_are_closed_under_pressure() -> None:
    world = World()
    found = fill(world, 75, 1_000_000, 5)
    assert closed(found) == 0
    late = world.client("late")
    for _ in range(60):
        world.wait(5)
        for peer in found:
            if not peer.is_closed:
                peer.take_in(100)
    assert closed(found) >= 30
    assert unread(world) <= DEFAULTS.outbox_total_bytes_max // 2, "until there is no need"
    assert world.broker.counters.refused == {f"disconnect/{READS_TOO_SLOWLY}": closed(found)}
    assert not late.is_closed


def test_without_pressure_a_slow_line_is_slow_and_no_more() -> None:
    world = World()
    found = fill(world, 5)
    for _ in range(100):
        world.wait(5)
        for peer in found:
            peer.take_in(100)
    assert closed(found) == 0


def test_who_reads_at_a_fair_rate_stays_under_pressure() -> None:
    world = World()
    found = fill(world, 80, 1_000_000, 5)
    fair = found[:20]
    publisher = world.client("p")
    for _ in range(60):
        world.wait(10)
        for number, peer in enumerate(fair):
            peer.take_in(500_000)
            publisher.send(publish(f"hog/{number}", bytes(400_000)))
    assert closed(fair) == 0


def test_who_reads_nothing_is_closed_though_below_its_share() -> None:
    """Each below its own limit; all together they leave little to the others."""
    world = World(outbox_bytes_max=2_000, outbox_total_bytes_max=9_000, stalled_reader_s=5)
    found = [hog(world, f"h{number}", "a") for number in range(4)]
    world.client("p").send(publish("a", bytes(1_500)))
    assert not any(peer.is_paused for peer in found)
    world.wait(12)
    assert closed(found) > 0 and unread(world) <= 4_500
    assert world.broker.counters.refused == {f"disconnect/{READS_NOTHING}": closed(found)}


def test_one_that_does_not_read_among_two_thousand() -> None:
    world = World()
    sink: list[int] = []

    def count(data: bytes) -> int:
        sink.append(len(data))
        return 0

    for number in range(1_999):
        peer = world.client(f"r{number}", receive_maximum=10)
        peer.subscribe("news")
        peer.connection.outbox.write = count
    one = hog(world, "one", "news")
    publisher = world.client("p")
    for _ in range(10):
        publisher.send(publish("news", bytes(1_000_000)))
    assert len(sink) == 1_999 * 10
    assert world.broker.backlog.dropped == {"slow_reader": 5}
    assert world.broker.backpressure.held()["unread"] == 1 and one.is_paused
    assert not publisher.is_paused and unread(world) < 6 << 20


def test_readers_recover() -> None:
    world = World(outbox_bytes_max=100_000, outbox_total_bytes_max=1_000_000)
    found = [hog(world, f"h{number}", f"t/{number}", "all") for number in range(20)]
    publisher = world.client("p")
    for _ in range(5):
        for number in range(20):
            publisher.send(publish(f"t/{number}", bytes(40_000)))
    assert all(peer.is_paused for peer in found) and unread(world) <= 1_000_000
    for _ in range(100):
        for peer in found:
            peer.take_in(1 << 20)
    assert unread(world) == 0 and world.broker.outboxes.share_bytes == 100_000
    assert not any(peer.is_paused for peer in found)
    publisher.send(publish("all", b"x"))
    assert all(peer.waiting_bytes for peer in found)
    assert world.broker.backpressure.held()["unread"] == 0


def test_the_largest_are_closed_when_one_turn_brings_too_much() -> None:
    world = World(outbox_bytes_max=100_000, outbox_total_bytes_max=1_000_000)
    small = hog(world, "small", "small")
    large = [hog(world, f"l{number}", f"l/{number}") for number in range(4)]
    publisher = world.client("p")
    publisher.send(
        publish("small", bytes(500)), *[publish(f"l/{n}", bytes(300_000 + n)) for n in range(4)]
    )
    assert [peer.is_closed for peer in (small, *large)] == [False, False, False, True, True]
    assert unread(world) <= 1_000_000
    assert world.broker.counters.refused == {f"disconnect/{UNREAD_BYTES}": 2}
    assert not publisher.is_closed and not publisher.is_paused


def test_a_slow_reader_that_is_closed_is_told_when_it_can_be() -> None:
    world = World(outbox_bytes_max=10_000, outbox_total_bytes_max=20_000, stalled_reader_s=4)
    slow = [world.client(f"s{number}") for number in range(4)]
    for peer in slow:
        peer.subscribe("a")
        peer.take()
        peer.is_slow = True
    world.client("p").send(publish("a", bytes(4_000)))
    for _ in range(12):
        world.wait(1)
        for peer in slow:
            if not peer.is_closed:
                peer.read(10)
    told = [peer for peer in slow if peer.is_closed]
    assert told
    for peer in told:
        peer.received += peer.decoder.feed(bytes(peer.waiting))
        *_, message, last = peer.received
        assert isinstance(message, Publish) and message.size == 4_007
        assert isinstance(last, Disconnect) and last.reason == QUOTA_EXCEEDED


def test_the_log_names_a_slow_reader_once_in_a_while() -> None:
    world = World(outbox_bytes_max=10_000)
    lines: list[str] = []
    world.broker.runtime.notices.log = lines.append
    for number in range(5):
        hog(world, f"h{number}", f"t/{number}")
    publisher = world.client("p")
    for number in range(5):
        publisher.send(publish(f"t/{number}", bytes(20_000)))
    assert lines == ["h0 (192.0.2.1:1): reads slowly, 20010 bytes wait for it"]
    world.wait(11)
    hog(world, "h5", "t/5")
    publisher.send(publish("t/5", bytes(20_000)))
    assert lines[1].endswith("wait for it; 4 more since the last such line")
