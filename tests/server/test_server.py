"""The real server over sockets: what a client sees of it when things go wrong."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import uuid
from pathlib import Path

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Connack
from mqtt_broker.core.runtime.slow_readers import SlowReader, SlowReaders
from mqtt_broker.server import server
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.server import Server
from sessions.messages.outbox import Outbox
from tests.core.peers import connect, publish, subscribe
from tests.server.running import LOOPS, Raw, Running

PING = b"\xc0\x00"
PONG = b"\xd0\x00"
any_loop = pytest.mark.parametrize("loop", LOOPS)

# What is sent after a CONNECT, and the last packet of an MQTT 5 broker.
BAD = {
    "QoS 3": (b"\x36\x05\x00\x01a\x00\x01\x00", "e00181"),
    "a wildcard": (b"\x30\x04\x00\x01#\x00", "e00181"),
    "an empty topic": (b"\x30\x03\x00\x00\x00", "e00181"),
    "an unknown property": (b"\x30\x06\x00\x01a\x02\x7f\x00", "e00181"),
    "packet id 0": (b"\x32\x06\x00\x01a\x00\x00\x00", "e00182"),
    "a server's packet": (b"\x20\x02\x00\x00", "e00182"),
    "a second CONNECT": (connect("again"), "e00182"),
    "an alias too high": (b"\x30\x07\x00\x01a\x03\x23\x00\x63", "e00194"),
    "a packet too large": (b"\x30\xff\xff\xff\x7f", "e00195"),
    "a length of five bytes": (b"\x30\x80\x80\x80\x80\x01", ""),
}


@any_loop
@pytest.mark.parametrize("what", BAD)
def test_the_reason_can_be_read_whatever_was_sent_behind(loop: str, what: str) -> None:
    """The rest of what the client sent must not turn our close into a reset."""
    bad, answer = BAD[what]
    with Running(loop=loop) as broker, broker.client("c") as client:
        client.send(bad, bytes(200_000))
        assert client.rest().hex() == answer


def test_what_came_before_the_mistake_counts() -> None:
    with Running() as broker, broker.client("c") as client, broker.client("s") as other:
        other.send(subscribe(V5, "a"))
        assert other.packet()[0] == 0x90
        client.send(publish("a", b"good"), b"\x36\x05\x00\x01a\x00\x01\x00")
        assert other.packet().endswith(b"good")


def test_311_is_closed_without_a_word() -> None:
    with Running() as broker, broker.client("c", V311) as client:
        client.send(b"\x30\x03\x00\x01#")
        assert client.rest() == b""


@any_loop
def test_who_says_nothing_is_closed_in_time(loop: str) -> None:
    with Running(loop=loop, connect_timeout_s=0.05) as broker, broker.raw() as silent:
        silent.send(b"\x10")
        assert silent.rest() == b""
        broker.wait_until(lambda: not broker.server.broker.links)


def test_a_long_length_with_nothing_behind_it_costs_nothing() -> None:
    with Running(packet_bytes_max=268_435_460) as broker, broker.client("c") as client:
        client.send(PING, b"\x30\xfa\xff\xbf\x7f\x00\x01a", bytes(1000))
        assert client.packet() == PONG
        link = next(iter(broker.server.broker.links))
        broker.wait_until(lambda: link.decoder.buffered_bytes == 1008)


@any_loop
def test_a_slow_reader_harms_nobody(loop: str) -> None:
    """QoS 0 to it is dropped and counted, others get everything, memory stays bounded."""
    limit = 100_000
    with (
        Running(loop=loop, outbox_bytes_max=limit, stalled_reader_s=60) as broker,
        broker.client("slow", receive_buffer=4096) as slow,
        broker.client("good") as good,
        broker.client("p") as publisher,
    ):
        for one in (slow, good):
            one.send(subscribe(V5, "a"))
            assert one.packet()[0] == 0x90
        core = broker.server.broker
        packet = publish("a", bytes(50_000))
        count = 0
        while not broker.ask(lambda: core.backlog.dropped.get("slow_reader", 0)):
            publisher.send(packet)
            assert len(good.packet()) == len(packet)
            count += 1
            assert count < 1000
        for _ in range(50):
            publisher.send(packet)
            assert len(good.packet()) == len(packet)
        connection = core.connections["slow"]
        assert broker.ask(lambda: connection.outbox.waiting_bytes) < limit + 2 * len(packet)
        received = 0
        while broker.ask(lambda: connection.outbox.waiting_bytes):
            received += len(slow.packet()) == len(packet)
        slow.send(PING)
        while (answer := slow.packet()) != PONG:
            received += len(answer) == len(packet)
        dropped = core.backlog.dropped["slow_reader"]
        assert received + dropped == count + 50


@any_loop
def test_a_reader_that_stalls_is_closed(loop: str) -> None:
    with (
        Running(loop=loop, outbox_bytes_max=1024, stalled_reader_s=1) as broker,
        broker.client("slow", receive_buffer=4096) as slow,
        broker.client("p") as publisher,
    ):
        slow.send(subscribe(V5, "a"))
        assert slow.packet()[0] == 0x90
        core = broker.server.broker
        publisher.send(publish("a", bytes(1_900_000)) * 10, PING)
        assert publisher.packet() == PONG
        broker.wait_until(lambda: "slow" not in core.connections)
        assert broker.ask(lambda: core.outboxes.waiting_bytes) == 0


@any_loop
def test_readers_who_do_not_read_hold_nobody_back(loop: str) -> None:
    """75 of them, each of a topic of its own, have all that readers may have unread.

    How much the kernel takes for each decides who is held, and who is closed for having most.
    """
    with (
        Running(
            loop=loop,
            outbox_bytes_max=1 << 18,
            outbox_total_bytes_max=1 << 22,
            packet_bytes_max=1 << 19,
        ) as broker,
        broker.client("p") as publisher,
        broker.client("stranger") as stranger,
        contextlib.ExitStack() as stack,
    ):
        for number in range(75):
            one = stack.enter_context(broker.client(f"s{number}", receive_buffer=4096))
            one.send(subscribe(V5, f"a/{number}"))
            assert one.packet()[0] == 0x90
        core = broker.server.broker
        payload = bytes(200_000)
        held = core.backpressure.held
        others = 2  # the publisher and the stranger
        while broker.ask(lambda: held()["unread"] + 75 - (len(core.connections) - others)) < 60:
            for number in range(75):
                publisher.send(publish(f"a/{number}", payload))
            publisher.send(PING)
            assert publisher.packet() == PONG
            stranger.send(publish("b", b"x", qos=1, packet_id=7), PING)
            assert stranger.packet()[:2] == b"\x40\x03"
            assert stranger.packet() == PONG
        assert broker.ask(lambda: core.outboxes.waiting_bytes) <= 1 << 22
        assert broker.ask(held)["store"] == 0


@any_loop
def test_links_that_close_hold_so_much_and_no_more(loop: str) -> None:
    """Those who come, fill their outboxes and leave again cannot add up."""
    with (
        Running(loop=loop, outbox_bytes_max=1 << 16, outbox_total_bytes_max=1 << 20) as broker,
        broker.client("p") as publisher,
        contextlib.ExitStack() as stack,
    ):
        core, net = broker.server.broker, broker.server.net
        for number in range(8):
            one = stack.enter_context(broker.client(f"s{number}", receive_buffer=4096))
            one.send(subscribe(V5, "a"))
            assert one.packet()[0] == 0x90
        while broker.ask(lambda: core.backpressure.held()["unread"]) < 4:
            publisher.send(publish("a", bytes(10_000)) * 10, PING)
            assert publisher.packet() == PONG

        def end_all() -> int:
            for number in range(8):
                core.kick(f"s{number}", broker.server.turn.now())
            return net.lingering_bytes

        assert 0 < broker.ask(end_all) <= 1 << 17
        broker.wait_until(lambda: net.lingering_bytes == 0)


@any_loop
def test_a_reset_while_we_do_not_read_is_no_busy_loop(loop: str) -> None:
    """A socket that nobody reads still reports its end, at every poll."""
    with (
        Running(loop=loop, outbox_bytes_max=1 << 20) as broker,
        broker.client("slow", receive_buffer=4096) as slow,
        broker.client("p") as publisher,
    ):
        slow.send(subscribe(V5, "a"))
        assert slow.packet()[0] == 0x90
        core = broker.server.broker
        connection = core.connections["slow"]
        while not broker.ask(lambda: connection.is_paused):
            publisher.send(publish("a", bytes(100_000)))
        slow.reset()
        poller = broker.server.net.poller
        served = 0
        serve = poller.serve

        def count(events: list[tuple[int, int]]) -> list[tuple[int, int]]:
            nonlocal served
            served += 1
            return serve(events)

        poller.serve = count  # type: ignore[method-assign]
        loop_time = broker.loop.time
        end = loop_time() + 0.3
        asked = 0

        def over() -> bool:
            nonlocal asked
            asked += 1
            return loop_time() > end

        broker.wait_until(over)
        assert served < 2 * asked + 50
        poller.serve = serve  # type: ignore[method-assign]


@any_loop
def test_stopping_tells_everybody(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_S", 3600.0)  # nobody is waited for who has read it
    with Running(loop=loop) as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.client(f"c{n}")) for n in range(20)]
        old = stack.enter_context(broker.client("old", V311))
        silent = stack.enter_context(broker.raw())
        broker.stop_soon()
        for client in clients:
            assert client.rest().hex() == "e0018b"
        assert old.rest() == silent.rest() == b""
        for client in [*clients, old, silent]:
            client.sock.close()
        broker.stop()


def test_stopping_waits_for_nobody_for_long() -> None:
    with Running() as broker, broker.client("c"):
        broker.stop()  # the client never reads


def test_stopping_lets_go_of_every_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Running() as broker, broker.client("c") as client:
        client.send(PING)
        assert client.packet() == PONG
    assert len(os.listdir("/proc/self/fd")) == before


# Addresses.


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt.sock")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    with Running(Endpoint(path=path)) as broker:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            client = Raw(sock)
            client.send(connect("c"), PING)
            assert client.packet()[0] == 0x20
            assert client.packet() == PONG
        assert [str(endpoint) for endpoint in broker.bound] == [f"unix:{path}"]
    assert not os.path.exists(path)


def test_a_unix_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt.sock")
    with Running(Endpoint(path=path)):
        with pytest.raises(ConfigError, match=r"mqtt\.sock"), Running(Endpoint(path=path)):
            pass
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)


def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError), Running(Endpoint(path=str(path))):
        pass
    assert path.read_text() == "precious"


@any_loop
def test_several_listeners(loop: str, tmp_path: Path) -> None:
    ends = Endpoint("127.0.0.1", 0), Endpoint("localhost", 0), Endpoint(path=str(tmp_path / "s"))
    with Running(*ends, loop=loop) as broker:
        first, second, third = broker.bound
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", first.port)),
            (socket.AF_UNIX, third.path),
        ):
            with socket.socket(family) as sock:
                sock.connect(address)
                client = Raw(sock)
                client.send(connect("c"))
                assert client.packet()[0] == 0x20
        with socket.create_connection(("localhost", second.port)) as sock:
            client = Raw(sock)
            client.send(connect("c"))
            assert client.packet()[0] == 0x20


def test_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with Running(Endpoint("::1", 0)) as broker:
        with socket.create_connection(("::1", broker.port)) as sock:
            client = Raw(sock)
            client.send(connect("c"))
            assert client.packet()[0] == 0x20
        assert str(broker.bound[0]) == f"[::1]:{broker.port}"


@any_loop
def test_a_port_in_use_is_one_line(loop: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"127.0.0.1:{port}"),
            Running(Endpoint("127.0.0.1", port), loop=loop),
        ):
            pass


@any_loop
def test_a_port_in_use_beside_a_free_one_is_one_line(loop: str, tmp_path: Path) -> None:
    """Listen everywhere, or nowhere: what was bound before is given back."""
    path = tmp_path / "mqtt.sock"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ends = Endpoint("127.0.0.1", 0), Endpoint(path=str(path)), Endpoint("127.0.0.1", port)
        with (
            pytest.raises(ConfigError, match=f"127.0.0.1:{port}"),
            Running(*ends, loop=loop),
        ):
            pass
    assert not path.exists()


def test_a_name_that_does_not_resolve_is_one_line() -> None:
    with (
        pytest.raises(ConfigError, match=r"nowhere\.invalid"),
        Running(Endpoint("nowhere.invalid")),
    ):
        pass


def test_an_address_of_another_machine_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"), Running(Endpoint("192.0.2.1", 0)):
        pass


# Many at once.


@any_loop
def test_a_thousand_silent_connections(loop: str) -> None:
    with Running(loop=loop) as broker, contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(broker.raw())
        with broker.client("c") as client:
            client.send(PING)
            assert client.packet() == PONG
        broker.wait_until(lambda: broker.server.broker.counters.sockets == 1001)
        stack.close()
        broker.wait_until(lambda: not broker.server.broker.links)


@any_loop
def test_links_that_end_in_the_turn_in_which_they_are_ready(loop: str) -> None:
    """Twenty takeovers of one name and the publishes of the taken are ready at once."""
    with Running(loop=loop) as broker, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(broker.raw()) for _ in range(20)]
        broker.wait_until(lambda: len(broker.server.broker.links) == 20)

        def in_one_turn() -> None:
            for raw in raws:
                raw.send(connect("same"), subscribe(V5, "a"), publish("a", b"x") * 3)

        broker.ask(in_one_turn)
        assert raws[-1].packet()[0] == 0x20
        broker.wait_until(lambda: len(broker.server.broker.links) == 1)
        (left,) = broker.server.broker.links
        assert left.session.client_id == "same"
        with broker.client("other") as other:
            other.send(PING)
            assert other.packet() == PONG


def test_the_server_needs_its_loop() -> None:
    with pytest.raises(RuntimeError):
        Server(Config(durability="memory"))


# Our own mistakes.


@any_loop
def test_our_mistake_in_a_timer_stops_neither_timers_nor_the_broker(loop: str) -> None:
    def fail(now: float) -> None:
        raise ZeroDivisionError

    with Running(loop=loop, connect_timeout_s=0.2) as broker, broker.client("c") as client:
        timers = broker.server.broker.timers
        broker.ask(lambda: timers.at(broker.server.now(), fail))
        client.send(PING)
        assert client.packet() == PONG
        with broker.raw() as silent:
            assert silent.rest() == b""


@any_loop
def test_our_mistake_while_bytes_are_sent_costs_that_connection_alone(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = SlowReaders.settle

    def fail(
        self: SlowReaders, client: SlowReader, box: Outbox, link_bytes: int, now: float
    ) -> None:
        if client.name.startswith("slow"):
            raise ZeroDivisionError
        settle(self, client, box, link_bytes, now)

    with (
        Running(loop=loop, outbox_bytes_max=1 << 20) as broker,
        broker.client("slow", receive_buffer=4096) as slow,
        broker.client("p") as client,
    ):
        slow.send(subscribe(V5, "a"))
        assert slow.packet()[0] == 0x90
        core = broker.server.broker
        connection = core.connections["slow"]
        while not broker.ask(lambda: connection.outbox.waiting_bytes):
            client.send(publish("a", bytes(100_000)))
        monkeypatch.setattr(SlowReaders, "settle", fail)
        with contextlib.suppress(OSError):
            slow.rest()
        client.send(PING)
        assert client.packet() == PONG
        assert broker.ask(lambda: "slow" not in core.connections)


def assigned_id(broker: Running) -> str:
    """Come without a name; return the one that CONNACK says."""
    with broker.raw() as client:
        client.send(connect(""))
        answer = Decoder(from_server=True, version=V5).feed(client.packet())[0]
        assert isinstance(answer, Connack)
        name = answer.properties.text(prop.ASSIGNED_CLIENT_IDENTIFIER)
        assert name is not None
        return name


def test_assigned_client_ids_do_not_tell_the_next() -> None:
    """Six hundred numbers of `random.Random` tell its state, and a client may ask for as many. A
    session that nobody with a user name made belongs to whoever says its id.
    """
    with Running() as broker:
        names = {assigned_id(broker) for _ in range(3)}
        assert len(names) == 3
        seen_through = random.Random()
        seen_through.setstate(broker.server.broker.runtime.rng.getstate())
        guess = uuid.UUID(int=seen_through.getrandbits(128), version=4)
        assert assigned_id(broker) != f"auto-{guess}"
