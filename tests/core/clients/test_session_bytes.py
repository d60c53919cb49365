"""What sessions keep of names and wills is bounded, and little of it always finds room."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Connack, Connect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.codec.reasons import QUOTA_EXCEEDED
from mqtt_broker.core import dispatch
from mqtt_broker.core.interfaces.access import PENDING, Allow, ConnectRequest, OpenAccess, Verdict
from sessions.session import state_bytes
from tests.core.peers import Peer, World, connect, disconnect, publish, subscribe
from tests.core.stored import StoredWorld

# A will is at most 65,535 bytes of topic and as many of payload: the rest are properties.
PAIRS = [("", "")] * 2_000 + [("k" * 1_000, "v" * 1_000)] * 150
LARGE = Will(
    "w",
    bytes(60_000),
    properties=Properties({prop.WILL_DELAY_INTERVAL: 1_000, prop.USER_PROPERTY: PAIRS}),
)


def come(world: World, client_id: str, **fields: object) -> Peer:
    peer = world.peer()
    peer.send(connect(client_id, **fields))  # type: ignore[arg-type]
    return peer


def reason(peer: Peer) -> int:
    answer = peer.received[0]
    assert isinstance(answer, Connack)
    return answer.reason


def kept(world: World) -> int:
    return world.broker.sessions.state.bytes


@pytest.mark.parametrize("is_stored", [False, True])
def test_wills_of_many_clients_hold_to_the_limit(is_stored: bool) -> None:
    """2,000 of 470 KB were three gigabytes."""
    limit = 20 << 20
    world = StoredWorld(sessions_bytes_max=limit) if is_stored else World(sessions_bytes_max=limit)
    data = [connect(f"c{number}", will=LARGE, expiry=1_000) for number in range(60)]
    gc.collect()
    tracemalloc.start()
    for packet in data:
        peer = world.peer()
        peer.send(packet)
        if isinstance(world, StoredWorld):
            world.commit()
            world.fold()
        if reason(peer) == 0:
            peer.drop()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = kept(world)
    assert limit // 2 < counted <= limit
    if dispatch.__file__.endswith(".py") and not is_stored:
        assert size < counted * 1.3 + (4 << 20)
    refused = world.broker.counters.refused["connect/sessions_bytes"]
    assert refused == 60 - len(world.broker.sessions)
    small = come(world, "small", will=Will("w", b"gone"), expiry=1_000)
    assert reason(small) == 0, "there is room for little"


def test_a_refusal_says_so() -> None:
    world = World(sessions_bytes_max=2_000_000)
    assert reason(come(world, "c", will=LARGE)) == QUOTA_EXCEEDED
    old = world.peer(V311)
    old.send(connect("d" * 60_000, V311, will=Will("w" * 60_000, bytes(60_000))))
    assert reason(old) == 3 and old.is_closed  # server unavailable, the nearest there is
    assert not len(world.broker.sessions) and kept(world) == 0


def test_what_is_kept_is_what_is_counted_until_it_is_gone() -> None:
    world = World()
    will = Will("w", bytes(10_000), section=b"\x00")
    one = come(world, "one", will=will, expiry=1_000)
    assert kept(world) == state_bytes("one", None, will) > 10_000
    again = come(world, "one", expiry=1_000, clean=False)
    assert one.is_closed and kept(world) == state_bytes("one", None, None)
    third = come(world, "one", will=will, expiry=1_000, clean=False)
    third.send(disconnect(reason=0))
    assert kept(world) == state_bytes("one", None, None), "the will went with DISCONNECT"
    fourth = come(world, "one", will=will, expiry=1_000, clean=False)
    fourth.drop()  # and it is sent
    assert kept(world) == state_bytes("one", None, None)
    world.wait(1_001)
    assert kept(world) == 0 and again.is_closed


def test_a_client_that_comes_back_with_no_more_than_before_is_let_in() -> None:
    """Though all that there may be is taken."""
    world = World(sessions_bytes_max=1_000_000)
    will = Will("w", bytes(30_000), properties=Properties({prop.WILL_DELAY_INTERVAL: 1_000}))
    one = come(world, "one", will=will, expiry=10_000)
    world.broker.sessions.state.count(1_000_000)
    one.drop()
    assert reason(come(world, "one", will=will, expiry=10_000, clean=False)) == 0
    assert reason(come(world, "one", will=will, expiry=10_000)) == 0
    assert reason(come(world, "two", will=will, expiry=10_000)) == QUOTA_EXCEEDED


def test_state_of_before_that_is_above_the_limit_still_opens() -> None:
    world = StoredWorld()
    will = Will("w", bytes(60_000), properties=Properties({prop.WILL_DELAY_INTERVAL: 1_000}))
    for number in range(10):
        peer = come(world, f"c{number}", will=will, expiry=10_000)
        world.commit()
        peer.drop()
    world.fold()
    before = kept(world)
    world.settings = type(world.settings)(sys_interval_s=0, sessions_bytes_max=100_000)
    world.restart()
    assert kept(world) == before > 600_000 and len(world.broker.sessions) == 10
    peer = come(world, "c3", will=will, expiry=10_000, clean=False)
    world.commit()
    assert reason(peer) == 0
    assert reason(come(world, "new", expiry=10_000)) == QUOTA_EXCEEDED


class Undecided(OpenAccess):
    def connect(self, request: ConnectRequest) -> Verdict:
        return PENDING


def test_a_connect_that_waits_for_its_verdict_counts() -> None:
    """Half a megabyte each, for as long as hashing takes."""
    world = World(access=Undecided(), connecting_bytes_max=4_000_000)
    found = [come(world, f"c{number}", will=LARGE) for number in range(20)]
    waiting = [peer for peer in found if not peer.is_closed]
    assert 5 <= len(waiting) <= 11
    limits = world.broker.state.preconnect_limits
    assert limits.bytes <= 4_000_000
    small = come(world, "small")
    assert not small.is_closed
    for peer in (*waiting, small):
        world.broker.resume(peer.connection, Allow(), world.now)
        world.settle()
    assert [reason(peer) for peer in (*waiting, small)] == [0] * (len(waiting) + 1)
    assert limits.bytes == 0


def test_a_client_that_may_authenticate_again_keeps_no_more_than_that_takes() -> None:
    class Open(OpenAccess):
        def connect(self, request: ConnectRequest) -> Verdict:
            return Allow()

    world = World(access=Open())
    peer = world.peer()
    found = Properties({prop.AUTHENTICATION_METHOD: "m", prop.USER_PROPERTY: [("a", "b")] * 1_000})
    packet = Connect(V5, "c", True, 0, found, LARGE, "name", bytes(60_000))
    peer.send(encode_from_client(V5, packet))
    assert reason(peer) == 0
    again = peer.connection.reauthenticates_with
    assert again is not None and again.size < 2_000
    assert again.properties == {prop.AUTHENTICATION_METHOD: "m"}


def test_a_store_that_takes_nothing_lets_clients_wait_and_not_pile_up() -> None:
    world = StoredWorld(journal_bytes_max=1 << 20, connecting_bytes_max=64 << 20)
    found = [come(world, f"c{number}", will=LARGE, expiry=1_000) for number in range(12)]
    assert [len(peer.received) for peer in found] == [1] * 6 + [0] * 6
    assert all(peer.is_paused for peer in found[6:])
    simple = come(world, "simple")
    assert reason(simple) == 0, "nothing of it is stored"
    for _ in range(5):
        world.commit()
    assert [reason(peer) for peer in found] == [0] * 12
    assert not any(peer.is_paused for peer in found)


def test_who_subscribes_without_end_is_held_like_who_publishes() -> None:
    world = StoredWorld(journal_bytes_max=1 << 16)
    peer = come(world, "c", expiry=1_000)
    world.commit()
    for number in range(200):
        peer.send(subscribe(V5, f"{number}/" + "t" * 1_000))
        if peer.is_paused:
            break
    assert 50 < number < 80
    peer.take()
    world.commit()
    assert not peer.is_paused
    peer.send(publish("a", b"x", qos=1, packet_id=1))
