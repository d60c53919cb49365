"""A client that repeats itself for ever: answered each time, and bounded like other work.

The bounds are `outbox_bytes_max` where the peer does not read, `WAITING_BYTES_MAX` where the
answers wait for the store, and one read of a socket where it reads as fast as it writes.
"""

from __future__ import annotations

import pytest

from mqtt_broker.codec.constants import PUBCOMP, PUBREC
from mqtt_broker.codec.encode import encode_publish
from mqtt_broker.codec.packets import Ack
from mqtt_broker.core.clients.ack_queue import WAITING_BYTES_MAX
from mqtt_broker.core.clients.connection import ACTIVE
from tests.core.peers import V5, V311, Peer, World, publish
from tests.core.stored import StoredWorld

READ_BYTES = 256 << 10  # what the server reads of one socket in a turn
PUBREL = b"\x62\x02\x00\x05"


def repeat(version: int, *, dup: bool, payload: bytes = b"x") -> bytes:
    return encode_publish(version, "t", payload, qos=2, dup=dup, packet_id=5)


def chunk_of(*packets: bytes) -> bytes:
    """One read of nothing but these."""
    return b"".join(packets) * (READ_BYTES // sum(map(len, packets)))


def answers(peer: Peer, packet_type: int = PUBREC) -> int:
    return sum(
        len(packet.packet_ids)
        for packet in peer.take()
        if isinstance(packet, Ack) and packet.packet_type == packet_type
    )


@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_reader_is_answered_each_time_and_nothing_stays(version: int, dup: bool) -> None:
    world = World()
    listener = world.client("s")
    listener.subscribe("t", qos=0)
    one = world.client("p", version)
    one.send(repeat(version, dup=False))
    chunk = chunk_of(repeat(version, dup=dup), repeat(version, dup=dup, payload=b"other"))
    for _ in range(5):
        one.send(chunk)
    assert answers(one) == 1 + 5 * 2 * chunk.count(b"other")
    assert len(one.connection.session.inbound.ids) == 1
    assert one.connection.acks is None and not one.connection.outbox.pieces and not one.is_paused
    one.send(PUBREL)
    assert answers(one, PUBCOMP) == 1
    assert listener.payloads() == [b"x"]


@pytest.mark.parametrize("dup", [False, True])
def test_who_does_not_read_its_answers_is_not_read_from(dup: bool) -> None:
    world = World(outbox_bytes_max=100_000)
    listener, other = world.client("s"), world.client("o")
    listener.subscribe("t", qos=0)
    one = world.client("p")
    one.is_slow = True
    chunk = chunk_of(repeat(V5, dup=dup))
    turns = 0
    while not one.is_paused:
        turns += 1
        one.send(chunk)
        other.send(publish("t", b"%d" % turns))
    assert turns < 5 and len(one.waiting) < 100_000 + len(chunk)
    assert listener.payloads() == [b"x", *(b"%d" % turn for turn in range(1, turns + 1))]
    world.wait(world.broker.settings.stalled_reader_s + 1)
    assert one.is_closed and world.broker.outboxes.waiting_bytes == 0


@pytest.mark.parametrize("kind", ["repeats", "repeats that alternate", "PUBREL"])
def test_answers_that_wait_for_the_store_are_bounded_in_bytes(kind: str) -> None:
    """The store is away: what waits for it is bounded, and leaves in its order when it is back."""
    world = StoredWorld()
    listener, other = world.client("s"), world.client("o")
    listener.subscribe("t", qos=0)
    one = world.client("p", expiry=1000)
    packets = {
        "repeats": [repeat(V5, dup=True)],
        "repeats that alternate": [repeat(V5, dup=True), repeat(V5, dup=True, payload=b"yy")],
        "PUBREL": [PUBREL],
    }[kind]
    one.send(repeat(V5, dup=False))
    chunk, sent = chunk_of(*packets), 0
    while not one.is_paused:
        one.send(chunk)
        sent += 1
        other.send(publish("t", b"%d" % sent))
        assert waiting_bytes(one) <= WAITING_BYTES_MAX + len(chunk)
    assert sent < 100
    assert one.connection.state == ACTIVE and answers(one) == 0
    assert len(listener.payloads()) == sent + 1
    count = sent * len(chunk) // sum(map(len, packets)) * len(packets)
    world.commit()
    world.commit()
    assert (one.is_paused, waiting_bytes(one)) == (False, 0)
    if kind == "PUBREL":
        assert answers(one, PUBCOMP) == count
    else:
        assert answers(one) == 1 + count


def waiting_bytes(peer: Peer) -> int:
    acks = peer.connection.acks
    return 0 if acks is None else acks.waiting_bytes


def test_answers_of_who_has_gone_are_not_kept() -> None:
    """A client that comes again and again while the store is away leaves no answers with it."""
    world = StoredWorld()
    one = world.client("p", clean=False, expiry=1000)
    one.send(repeat(V5, dup=False))
    chunk = chunk_of(repeat(V5, dup=True))
    kept = 0
    for _ in range(20):
        one.send(chunk)
        held = list(one.connection.open_acks().waiting)
        one.drop()
        kept += sum(len(answer.data) for answer in held)
        one = world.client("p", clean=False, expiry=1000)
    assert kept == 0
    world.commit()
    assert answers(one) == 0
