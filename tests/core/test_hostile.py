"""What a hostile or unlucky client may not achieve: memory without bound, harm to others.

Each test is one attack, in as few packets as it takes.
"""

from __future__ import annotations

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Disconnect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core import dispatch
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Access,
    Allow,
    Challenge,
    ConnectRequest,
    Refuse,
    Verdict,
)
from tests.core.peers import V5, V311, World, connect, disconnect, publish, subscribe
from tests.core.stored import StoredWorld

ACK = b"\x40\x02"


class Guard:
    """Lets everybody in, later if told so, and guards one topic."""

    guards_topics = True

    def __init__(self, *, later: bool = False) -> None:
        self.later = later

    def connect(self, request: ConnectRequest) -> Verdict:
        return PENDING if self.later else Allow(request.username)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return topic != "secret"

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return True


# Memory.


def test_reconnecting_leaves_no_timers_behind() -> None:
    """A device that comes and goes costs one deadline, not one a visit."""
    world = World(connect_timeout_s=1)
    for _ in range(300):
        peer = world.client("d", clean=False, expiry=10_000_000, keep_alive=60_000)
        peer.drop()
        world.wait(2)
    assert world.timers < 50


def test_will_delays_leave_no_timers_behind() -> None:
    world = World(connect_timeout_s=1)
    will = Will("w", b"", properties=Properties({prop.WILL_DELAY_INTERVAL: 9_000_000}))
    for _ in range(300):
        world.client("d", clean=False, expiry=10_000_000, will=will).drop()
        world.wait(2)
    assert world.timers < 50


def test_subscription_identifiers_leave_nothing_at_a_retained_message() -> None:
    world = World()
    world.client("p").send(publish("a", b"x", retain=True))
    one = world.client("s")
    for number in range(1, 1001):
        one.subscribe("a", identifier=number)
    message = world.broker.retained.get("a")
    assert message is not None
    layouts = message.envelope.layouts
    assert layouts is not None and len(layouts) < 100


def test_an_expiring_retained_message_does_not_grow_by_the_second() -> None:
    world = World()
    expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 1_000_000}
    world.client("p").send(publish("a", b"x", retain=True, properties=expiry))
    one = world.client("s")
    for _ in range(500):
        one.subscribe("a")
        world.wait(1)
    message = world.broker.retained.get("a")
    assert message is not None
    layouts = message.envelope.layouts
    assert layouts is not None and len(layouts) < 100


def test_retained_messages_do_not_pile_up_in_one_turn() -> None:
    """A chunk of SUBSCRIBEs brings the retained messages again and again."""
    world = World(outbox_bytes_max=10_000)
    world.client("p").send(publish("a", bytes(5_000), retain=True))
    one = world.client("s")
    one.is_slow = True
    dispatch.receive(one.connection, subscribe(V5, "a") * 500, world.now)
    world.settle()
    assert len(one.waiting) < 100_000


@pytest.mark.parametrize("where", ["queue", "retained"])
def test_properties_count_as_memory(where: str) -> None:
    world = World()
    world.client("s", clean=False, expiry=100).subscribe("a", qos=1)
    world.peers[0].drop()
    found = {prop.USER_PROPERTY: [("k" * 60_000, "v" * 60_000)] * 5}
    packet = publish("a", b"x", qos=1, retain=where == "retained", properties=found)
    world.client("p").send(packet)
    counted = world.broker.backlog.queued_bytes if where == "queue" else world.broker.retained.bytes
    assert counted >= len(packet)


def test_what_waits_for_a_group_is_bounded_in_bytes() -> None:
    world = World(queue_bytes_max=10_000)
    world.client("s", clean=False, expiry=100).subscribe("$share/g/a", qos=1)
    world.peers[0].drop()
    one = world.client("p")
    for _ in range(100):
        one.send(publish("a", bytes(1_000), qos=1))
    assert world.broker.backlog.queued_bytes <= 10_000


def test_what_waits_for_groups_counts_in_the_total() -> None:
    world = World(queue_total_bytes_max=10_000)
    world.client("s", clean=False, expiry=100).subscribe("$share/g/a", "$share/h/a", qos=1)
    world.peers[0].drop()
    one = world.client("p")
    for _ in range(100):
        one.send(publish("a", bytes(1_000), qos=1))
    assert world.broker.backlog.queued_bytes <= 10_000


def test_sessions_are_bounded() -> None:
    world = World(sessions_max=5)
    for number in range(10):
        peer = world.peer()
        peer.send(connect(f"c{number}", clean=False, expiry=1000))
        peer.drop()
    assert len(world.broker.sessions) <= 5


def half_a_connect(size: int) -> bytes:
    whole = connect("x", will=Will("w", bytes(60_000), 0)) + bytes(1_000_000)
    length = size - 4
    head = bytes([0x10, length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
    return head + whole[4 : size // 2]


def test_a_connect_has_a_limit_of_its_own() -> None:
    world = World()
    small, large = world.peer(), world.peer()
    small.send(half_a_connect(524_288))
    large.send(half_a_connect(524_289))
    assert large.is_closed and not small.is_closed
    other = world.peer()
    other.send(b"\x30\x80\x80\x01")  # what is no CONNECT is not waited for
    assert other.is_closed
    found = world.client("d")
    found.send(publish("t", bytes(1_000_000)))  # who is known may send more
    assert not found.is_closed


def test_what_strangers_make_us_keep_is_bounded_together() -> None:
    world = World(connecting_bytes_max=100_000)
    strangers = [world.peer() for _ in range(20)]
    for stranger in strangers:
        stranger.send(half_a_connect(40_000))
    assert [one.is_closed for one in strangers] == [False] * 5 + [True] * 15
    assert world.broker.counters.refusals() == {"connect/connecting_bytes": 15}
    late = world.peer()  # in pieces, and small: it comes in all the same
    data = connect("late")
    late.send(data[:9])
    late.send(data[9:])
    assert not late.is_closed
    strangers[0].drop()
    another = world.peer()
    another.send(half_a_connect(36_000))
    assert not another.is_closed
    world.wait(11)
    assert [another.is_closed, late.is_closed] == [True, False]


def test_what_follows_a_connect_that_waits_is_bounded_together() -> None:
    world = StoredWorld(connecting_bytes_max=1_000_000)
    for number in range(20):
        world.client(f"c{number}", clean=False, expiry=1000)
    world.commit()
    many = subscribe(V5, "a") * 2_000  # a few bytes each, and some are objects in memory
    comers = [world.peer() for _ in range(20)]
    for number, comer in enumerate(comers):
        comer.send(connect(f"c{number}", expiry=1000) + many)
    assert [one.is_closed for one in comers] == [False] * 4 + [True] * 16
    assert world.broker.counters.refusals()["connect/connecting_bytes"] == 16
    small = world.peer()
    small.send(connect("c19", expiry=1000) + subscribe(V5, "a"))
    world.commit()
    world.commit()  # of what they asked for then
    assert [len(comers[0].take()), len(small.take())] == [2_001, 2]
    assert world.broker.state.preconnect_limits.bytes == 0


class Challenger(Guard):
    """Asks every client for one AUTH packet more, and lets none in."""

    def connect(self, request: ConnectRequest) -> Verdict:
        return Challenge(b"?", lambda data: Refuse())


def test_what_comes_instead_of_an_answer_to_a_challenge_is_bounded_together() -> None:
    """A name is not asked for before the challenge, so strangers get as far as that."""
    world = World(access=Challenger(), connecting_bytes_max=1_100_000)
    strangers = [world.peer() for _ in range(10)]
    for number, stranger in enumerate(strangers):
        stranger.send(connect(f"c{number}", method="SCRAM-SHA-256"))
        stranger.send(b"\xf0\x80\x80\x10")  # AUTH of 262,144 bytes
        for _ in range(4):
            stranger.send(bytes(50_000))
    assert [one.is_closed for one in strangers] == [False] * 5 + [True] * 5
    kept = sum(one.connection.decoder.buffered_bytes for one in strangers[:5])
    limits = world.broker.state.preconnect_limits
    assert kept == 5 * 200_004 and kept < limits.bytes < kept + 5 * 1_000, "and their CONNECTs"
    strangers[0].drop()
    assert kept - 200_004 < limits.bytes < kept - 200_004 + 4 * 1_000


def test_an_answer_to_a_challenge_is_no_larger_than_a_connect() -> None:
    world = World(access=Challenger(), connect_bytes_max=1_000)
    stranger = world.peer()
    stranger.send(connect("c", method="SCRAM-SHA-256"))
    stranger.take()
    stranger.send(b"\xf0\xe9\x07" + bytes(10))  # AUTH of 1,004 bytes
    assert stranger.is_closed and world.broker.counters.refusals()["connect/packet_too_large"] == 1


def test_long_topics_do_not_stay_in_the_match_cache() -> None:
    world = World()
    one = world.client("p")
    for number in range(100):
        one.send(publish(f"{number}" + "t" * 60_000))
    assert sum(map(len, world.broker.routes.cache.results)) < 1_000_000


# Harm to others.


def test_a_publisher_that_waits_for_the_store_does_not_die_of_its_keep_alive() -> None:
    """Its PINGREQs wait in the socket that we do not read."""
    world = StoredWorld(journal_bytes_max=1 << 16)
    other = world.client("p", keep_alive=2)
    for number in range(100):
        other.send(publish(f"r/{number}", bytes(1000), retain=True))
    assert other.is_paused
    world.wait(10)
    assert not other.is_closed


def test_a_slow_reader_does_not_die_of_its_keep_alive_while_it_reads() -> None:
    world = World(outbox_bytes_max=2_000, stalled_reader_s=100)
    slow = world.client("s", keep_alive=2)
    slow.subscribe("a")
    slow.is_slow = True
    world.client("p").send(publish("a", bytes(9_000)))
    assert slow.is_paused
    for _ in range(20):
        world.wait(1)
        slow.read(100)
    assert not slow.is_closed


def test_released_publishers_that_read_slowly_stay_paused() -> None:
    world = StoredWorld(outbox_bytes_max=2_000, journal_bytes_max=1 << 16)
    both = world.client("p")
    both.subscribe("a")
    both.is_slow = True
    both.send(publish("a", bytes(5_000)))
    for number in range(100):
        both.send(publish(f"r/{number}", bytes(1000), retain=True))
    assert world.broker.backpressure.held()["store"] == 1
    world.commit()
    assert world.broker.backpressure.held()["store"] == 0
    assert both.is_paused, "it still has 5,000 bytes to read"


# Others' rights.


def test_a_will_does_not_speak_for_the_broker() -> None:
    world = World(sys_interval_s=10)
    one = world.client("s")
    one.subscribe("$SYS/broker/uptime")
    one.take()
    peer = world.peer()
    peer.send(connect("w", will=Will("$SYS/broker/uptime", b"forged", retain=True)))
    peer.drop()
    assert b"forged" not in one.payloads()
    message = world.broker.retained.get("$SYS/broker/uptime")
    assert message is None or message.payload != b"forged"


def test_a_will_asks_the_access_door() -> None:
    guard: Access = Guard()
    world = World(access=guard)
    one = world.client("s")
    one.subscribe("secret")
    peer = world.peer()
    peer.send(connect("w", will=Will("secret", b"forged")))
    peer.drop()
    assert one.payloads() == []


# Our own mistakes.


def test_a_violation_behind_a_late_connect_is_answered() -> None:
    world = World(access=Guard(later=True))
    peer = world.peer()
    peer.send(connect("c"), publish("a", qos=1, packet_id=1), b"\x36\x05\x00\x01a\x00\x01")
    world.broker.resume(peer.connection, Allow(), world.now)
    world.settle()
    last = peer.take()[-1]
    assert isinstance(last, Disconnect) and last.reason == 0x81
    assert peer.is_closed


def test_a_late_answer_to_a_reauthentication_counts() -> None:
    """PENDING is one of the verdicts of `Access.connect`, here as well."""

    class Slow(Guard):
        def connect(self, request: ConnectRequest) -> Verdict:
            return PENDING if request.auth_data == b"again" else Allow()

    world = World(access=Slow())
    peer = world.client("c", method="m")
    peer.send(bytes.fromhex("f0 0e 19 0c 15 0001 6d 16 0005 616761696e"))
    assert not peer.is_closed and not peer.take()
    world.broker.resume(peer.connection, Allow(), world.now)
    world.settle()
    assert [type(packet).__name__ for packet in peer.take()] == ["Auth"]


def test_a_burst_that_is_too_large_does_not_stop_the_queue() -> None:
    """Dropped as too large is as good as acknowledged: what waits behind goes on."""
    world = World()
    one = world.client("s", receive_maximum=1, packet_bytes_max=60)
    one.subscribe("a", qos=1)
    one.take()
    large = b"".join(publish("a", bytes(100), qos=1, packet_id=n) for n in (1, 2, 3))
    other = world.client("p")
    other.send(large)
    other.send(publish("a", b"small", qos=1, packet_id=4))
    assert one.payloads() == [b"small"]


def test_an_alias_does_not_make_a_packet_too_large() -> None:
    """Without the alias it fits."""
    world = World()
    one = world.client("s", packet_bytes_max=30, alias_maximum=5)
    one.subscribe("topic", qos=0)
    one.take()
    packet = publish("topic", bytes(20))
    assert len(packet) == 30
    world.client("p").send(packet)
    assert one.payloads() == [bytes(20)]


def test_one_message_that_can_never_fit_does_not_empty_the_queue() -> None:
    world = World(queue_bytes_max=5_000)
    world.client("s", clean=False, expiry=100).subscribe("a", qos=1)
    world.peers[0].drop()
    other = world.client("p")
    other.send(publish("a", b"first", qos=1, packet_id=1))
    other.send(publish("a", bytes(6_000), qos=1, packet_id=2))
    assert world.client("s", clean=False, expiry=100).payloads() == [b"first"]


def test_qos_0_waits_when_told_to() -> None:
    world = World(queue_qos0=True)
    world.client("s", V311, clean=False).subscribe("a", qos=1)
    world.peers[0].drop()
    world.client("p", V311).send(publish("a", b"x", version=V311))
    back = world.client("s", V311, clean=False)
    assert back.payloads() == [b"x"]


def test_retain_as_published_holds_for_shared_subscriptions() -> None:
    world = World()
    one = world.client("s")
    one.subscribe("$share/g/a", qos=0, retain_as_published=True)
    one.take()
    world.client("p").send(publish("a", b"x", retain=True))
    (packet,) = one.publishes()
    assert packet.retain


def test_a_will_at_qos_0_goes_to_a_member_that_is_there() -> None:
    """The member that just died is not one of them."""
    world = World()
    one = world.client("one")
    one.subscribe("$share/g/w")
    other = world.client("p")
    for _ in range(2):
        dying = world.client("dying", will=Will("w", b"gone"))
        dying.subscribe("$share/g/w")
        other.send(publish("w", b"somebody's"))
        one.take()
        dying.drop()
        assert one.payloads() == [b"gone"]
        other.send(publish("w", b"shift the turn"))


def test_a_name_too_long_for_an_event_topic_harms_nobody() -> None:
    world = World(client_events=True)
    world.client("watch").subscribe("$SYS/broker/clients/+/connected")
    peer = world.peer()
    peer.send(connect("x" * 65_530))
    peer.drop()
    assert len(world.broker.connections) == 1


def test_answers_keep_the_maximum_packet_size() -> None:
    """[MQTT-3.1.2-24] knows no exception for SUBACK."""
    world = World()
    one = world.client("s", packet_bytes_max=50)
    seen = bytearray()
    one.is_slow = True
    one.subscribe(*(f"f/{number}" for number in range(100)))
    seen += one.waiting
    assert len(seen) <= 50


def test_disconnect_may_lengthen_an_expiry_that_the_server_shortened() -> None:
    """Only zero in the CONNECT itself forbids it. [MQTT-3.14.2.2.2]"""
    world = World(session_expiry_s_max=0)
    peer = world.client("c", clean=False, expiry=100)
    peer.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x64")
    assert not any(isinstance(packet, Disconnect) for packet in peer.take())


def test_a_resumed_window_is_repeated_in_linear_time() -> None:
    """65,000 messages under way: taking the first of a list each time would be quadratic."""
    world = World()
    one = world.client("s", clean=False, expiry=100)
    one.subscribe("a", qos=1)
    other = world.client("p")
    for start in range(1, 30_001, 1_000):
        other.send(*(publish("a", b"", qos=1, packet_id=start + n) for n in range(1_000)))
    one.drop()
    back = world.client("s", clean=False, expiry=100)
    assert len(back.payloads()) == 30_000


def test_disconnecting_with_wrong_reason_code_keeps_the_will() -> None:
    world = World()
    one = world.client("s")
    one.subscribe("w")
    one.take()
    world.client("w", will=Will("w", b"gone")).send(disconnect(reason=4))
    assert one.payloads() == [b"gone"]
