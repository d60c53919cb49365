"""Deferred reads: clients that only acknowledge are read many at a time, and never too late.

Real clients on the broker's own loop, which is looked at from outside: whatever asks the loop
would wake it. `test_poller` turns the poller by hand.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Publish, Will
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.interfaces.link import ONLY_ACKS
from mqtt_broker.server.net import poller as turns_module
from mqtt_broker.server.net.poller import LAG_S, UNREAD_MAX
from tests.core.peers import connect, disconnect, publish, subscribe
from tests.server.running import PATIENCE_S, Raw, Running

PING = b"\xc0\x00"
PONG = b"\xd0\x00"


def until(condition: Callable[[], bool]) -> None:
    """Look from outside, without waking the loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.0005)


def deliveries(raw: Raw, version: int = V5) -> Iterator[Publish]:
    decoder = Decoder(from_server=True, version=version)
    while True:
        for packet in decoder.feed(raw.packet()):
            assert isinstance(packet, Publish), packet
            yield packet


def acknowledge(raw: Raw, packet: Publish) -> None:
    for packet_id in packet.packet_ids():
        raw.send(b"\x40\x02" + packet_id.to_bytes(2, "big"))


class Scene:
    """A publisher and a subscriber `s` whose socket has become deferred."""

    def __init__(self, broker: Running, stack: contextlib.ExitStack, raw: bytes = b"") -> None:
        self.broker = broker
        self.publisher = stack.enter_context(broker.client("p"))
        self.raw = stack.enter_context(broker.raw())
        self.raw.send(raw or connect("s"))
        assert self.raw.packet()[3] == 0
        self.raw.send(subscribe(V5, "a", qos=1))
        assert self.raw.packet()[0] == 0x90
        self.incoming = deliveries(self.raw)
        self.make_deferred()

    def make_deferred(self) -> None:
        """It acknowledges alone until the broker counts on that."""
        for number in range(ONLY_ACKS):
            assert not self.is_deferred
            self.publish(b"%d" % number)
            self.receive(b"%d" % number)
            until(lambda: not self.under_way)
        until(lambda: self.is_deferred)

    @property
    def connection(self) -> Connection:
        return self.broker.server.broker.connections["s"]

    @property
    def is_deferred(self) -> bool:
        return len(self.broker.server.net.poller.deferred) == 1

    @property
    def under_way(self) -> int:
        return len(self.connection.session.outbound.window)

    def publish(self, *payloads: bytes) -> None:
        """At QoS 0 from the publisher's side there is no answer, so nothing else happens."""
        self.publisher.send(
            *(publish("a", one, qos=1, packet_id=n) for n, one in enumerate(payloads, 1))
        )
        for _ in payloads:
            assert self.publisher.packet()[0] == 0x40

    def receive(self, payload: bytes) -> None:
        packet = next(self.incoming)
        assert b"".join(packet.payloads()) == payload
        acknowledge(self.raw, packet)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as one:
        yield one


def test_acknowledgements_are_read_though_nothing_else_happens(
    stack: contextlib.ExitStack,
) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    for number in range(50):
        scene.publish(b"%d" % number)
        scene.receive(b"%d" % number)
        until(lambda: not scene.under_way)
    assert scene.is_deferred


def test_an_acknowledgement_that_comes_late_is_read_as_well(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.publish(b"x")
    packet = next(scene.incoming)
    time.sleep(20 * LAG_S)  # the loop waits without a limit again
    acknowledge(scene.raw, packet)
    until(lambda: not scene.under_way)


def test_qos_2_of_a_deferred_subscriber_completes(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.raw.send(subscribe(V5, "b", qos=2))
    assert scene.raw.packet()[0] == 0x90
    for number in range(1, 20):
        scene.publisher.send(publish("b", b"x", qos=2, packet_id=number))
        assert scene.publisher.packet()[0] == 0x50
        packet_id = next(scene.incoming).packet_ids()[0].to_bytes(2, "big")
        scene.raw.send(b"\x50\x02" + packet_id)
        assert scene.raw.packet()[:4] == b"\x62\x02" + packet_id
        scene.raw.send(b"\x70\x02" + packet_id)
        until(lambda: not scene.under_way)


@pytest.mark.parametrize("receive_maximum", [1, 2, 10])
def test_a_queue_drains(stack: contextlib.ExitStack, receive_maximum: int) -> None:
    """Each acknowledgement lets the next message go: none may wait for the lag, or for ever."""
    broker = stack.enter_context(Running())
    scene = Scene(broker, stack, connect("s", receive_maximum=receive_maximum))
    payloads = [b"%d" % number for number in range(200)]
    scene.publish(*payloads)
    assert scene.connection.session.outbound.has_waiting
    for payload in payloads:
        scene.receive(payload)
    until(lambda: not scene.under_way and not scene.connection.session.outbound.has_waiting)


def test_a_queue_drains_without_the_lag(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LAG_S", 10 * PATIENCE_S)  # the socket waits no longer
    scene = Scene(stack.enter_context(Running()), stack, connect("s", receive_maximum=1))
    payloads = [b"%d" % number for number in range(50)]
    scene.publish(*payloads)
    for payload in payloads:
        scene.receive(payload)


def test_a_deferred_subscriber_that_begins_to_publish(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.publish(b"x")
    scene.receive(b"x")
    scene.raw.send(publish("up", b"y", qos=1, packet_id=7))
    assert scene.raw.packet()[:4].hex() == "40030007"
    until(lambda: not scene.is_deferred)
    scene.publish(b"z")
    scene.receive(b"z")
    until(lambda: not scene.under_way)
    assert not scene.is_deferred  # who has published once is read at once


def test_a_ping_of_a_deferred_subscriber_is_answered(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.raw.send(PING)
    assert scene.raw.packet() == PONG
    scene.publish(b"x")
    packet = next(scene.incoming)
    scene.raw.send(PING)  # while the broker expects an acknowledgement
    assert scene.raw.packet() == PONG
    acknowledge(scene.raw, packet)
    until(lambda: not scene.under_way)


def test_a_deferred_subscriber_that_subscribes_to_more(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.raw.send(subscribe(V5, "b", qos=0))
    assert scene.raw.packet()[0] == 0x90
    scene.publisher.send(publish("b", b"0"))
    assert b"".join(next(scene.incoming).payloads()) == b"0"


def test_who_asks_for_something_is_read_at_once_for_a_while(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.raw.send(PING)
    assert scene.raw.packet() == PONG
    until(lambda: not scene.is_deferred)
    scene.make_deferred()


def test_a_small_window_is_never_found_full(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages come one at a time: each is sent before the next makes the window look full."""
    monkeypatch.setattr(turns_module, "LAG_S", 60.0)
    scene = Scene(stack.enter_context(Running()), stack, connect("s", receive_maximum=2))
    for number in range(20):
        scene.publish(b"%d" % number)
        scene.receive(b"%d" % number)
    until(lambda: not scene.under_way)


def test_so_many_are_left_unread_and_not_more(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LAG_S", 60.0)
    scene = Scene(stack.enter_context(Running()), stack)
    most = 0
    for number in range(5 * UNREAD_MAX):
        scene.publish(b"%d" % number)
        scene.receive(b"%d" % number)
        most = max(most, scene.under_way)
    assert 1 < most <= UNREAD_MAX + 2


@pytest.mark.parametrize("owes", [False, True], ids=["idle", "with a message under way"])
@pytest.mark.parametrize("how", ["disconnects", "closes", "resets"])
def test_a_deferred_subscriber_goes(stack: contextlib.ExitStack, how: str, owes: bool) -> None:
    broker = stack.enter_context(Running())
    watcher = stack.enter_context(broker.client("watcher"))
    watcher.send(subscribe(V5, "gone"))
    assert watcher.packet()[0] == 0x90
    scene = Scene(broker, stack, connect("s", will=Will("gone", b"bye", 0, False)))
    if owes:
        scene.publish(b"x")
        next(scene.incoming)
    if how == "disconnects":
        scene.raw.send(disconnect(reason=4))
    elif how == "closes":
        scene.raw.sock.close()
    else:
        scene.raw.reset()
    assert watcher.packet().endswith(b"bye")
    until(lambda: not scene.is_deferred or how == "disconnects")
    scene.raw.sock.close()
    until(lambda: not scene.is_deferred)
    assert "s" not in broker.server.broker.connections


def test_a_deferred_subscriber_is_kicked_out(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    broker = scene.broker
    broker.ask(lambda: broker.server.broker.kick("s", broker.server.now()))
    assert scene.raw.rest().hex() == "e00198"
    scene.raw.sock.close()
    until(lambda: not scene.is_deferred)


def test_a_deferred_subscriber_is_taken_over(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    second = stack.enter_context(scene.broker.client("s", V311))
    assert scene.raw.rest().hex() == "e0018e"
    scene.raw.sock.close()
    until(lambda: not scene.is_deferred)
    second.send(PING)
    assert second.packet() == PONG


def test_a_mistake_of_a_deferred_subscriber_is_answered(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.raw.send(b"\x36\x05\x00\x01a\x00\x01\x00", bytes(100_000))
    assert scene.raw.rest().hex() == "e00181"


def test_the_broker_stops_while_it_expects(stack: contextlib.ExitStack) -> None:
    scene = Scene(stack.enter_context(Running()), stack)
    scene.publish(b"x")
    next(scene.incoming)
    scene.broker.stop_soon()
    assert scene.raw.rest().hex() == "e0018b"
    assert scene.publisher.rest().hex() == "e0018b"
    scene.raw.sock.close()
    scene.publisher.sock.close()
    scene.broker.stop()


def slow_scene(stack: contextlib.ExitStack) -> Scene:
    """A deferred subscriber that does not read, until the broker does not read from it either."""
    broker = stack.enter_context(Running(outbox_bytes_max=100_000))
    slow = stack.enter_context(broker.raw(receive_buffer=4096))
    scene = Scene.__new__(Scene)
    scene.broker, scene.raw = broker, slow
    scene.publisher = stack.enter_context(broker.client("p"))
    slow.send(connect("s"), subscribe(V5, "a", qos=1))
    assert slow.packet()[0] == 0x20
    assert slow.packet()[0] == 0x90
    scene.incoming = deliveries(slow)
    scene.make_deferred()
    return scene


def test_paused_while_deferred_and_read_again(stack: contextlib.ExitStack) -> None:
    scene = slow_scene(stack)
    count = 0
    while not scene.connection.session.outbound.has_waiting:  # QoS 1 waits when the reader is slow
        scene.publish(bytes(50_000))
        count += 1
        assert count < 1000
    for _ in range(count):
        scene.receive(bytes(50_000))
    until(lambda: not scene.under_way)
    scene.publish(b"last")
    scene.receive(b"last")
    until(lambda: not scene.under_way)
    assert scene.is_deferred


@pytest.mark.parametrize("how", ["is kicked", "resets"])
def test_the_end_while_paused_and_deferred(stack: contextlib.ExitStack, how: str) -> None:
    scene = slow_scene(stack)
    broker = scene.broker
    count = 0
    while not scene.connection.session.outbound.has_waiting:
        scene.publish(bytes(50_000))
        count += 1
        assert count < 1000
    if how == "resets":
        scene.raw.reset()
    else:
        broker.ask(lambda: broker.server.broker.kick("s", broker.server.now()))
        with contextlib.suppress(OSError):
            assert scene.raw.rest().endswith(b"\xe0\x01\x98")
        scene.raw.sock.close()
    until(lambda: not scene.is_deferred)
    until(lambda: "s" not in broker.server.broker.connections)
    scene.publisher.send(PING)
    assert scene.publisher.packet() == PONG


def test_a_hundred_deferred_subscribers_and_one_burst(stack: contextlib.ExitStack) -> None:
    broker = stack.enter_context(Running())
    publisher = stack.enter_context(broker.client("p"))
    raws = [stack.enter_context(broker.client(f"s{number}")) for number in range(100)]
    for raw in raws:
        raw.send(subscribe(V5, "a", qos=1))
        assert raw.packet()[0] == 0x90
    streams = [deliveries(raw) for raw in raws]
    sessions = [c.session for c in broker.server.broker.connections.values()]
    for _ in range(ONLY_ACKS + 10):
        publisher.send(publish("a", b"x", qos=1))
        assert publisher.packet()[0] == 0x40
        for raw, incoming in zip(raws, streams, strict=True):
            acknowledge(raw, next(incoming))
        until(lambda: not any(len(session.outbound.window) for session in sessions))
    assert len(broker.server.net.poller.deferred) == 100
