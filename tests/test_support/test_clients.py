"""Clients that are named, kicked, dropped and delayed, and a clock that is moved."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.in_process import Disconnected
from mqtt_broker.test_support.clients import ConnectedClient, NotConnected, NotSubscribed
from mqtt_broker.testing import Broker, ThreadedBroker
from tests.core.peers import connect, publish, subscribe
from tests.server.running import PATIENCE_S
from tests.test_support.peers import connected, logged_in, login, opened

HOUR_S = 3600


def test_who_is_connected() -> None:
    with ThreadedBroker(users={"ada": "secret"}) as broker:
        broker.publish("t")  # clients of this process do not count
        with (
            logged_in(broker, login("a", "ada", "secret", keep_alive=30)) as a,
            logged_in(broker, login("b", "ada", "secret", V311)),
        ):
            a.send(subscribe(V5, "pump/+", "tank/#"))
            a.packet()
            one, two = broker.clients
            assert one == ConnectedClient("a", "ada", 5, 30, one.peer, ("pump/+", "tank/#"))
            assert (two.client_id, two.version, two.keep_alive) == ("b", 4, 0)


def test_waiting_for_clients() -> None:
    with ThreadedBroker() as broker, connected(broker, "a"), connected(broker, "b"):
        broker.wait_for_clients("a", "b")
        with pytest.raises(NotConnected) as caught:
            broker.wait_for_clients("a", "c", timeout_s=0.02)
    assert str(caught.value) == "not connected within 0.02 s: 'c'; connected: 'a', 'b'"


def test_waiting_for_a_subscription() -> None:
    with ThreadedBroker() as broker, connected(broker, "a") as a, connected(broker, "b"):
        a.send(subscribe(V5, "pump/+", "$share/g/tank"))
        broker.wait_for_subscription("pump/+")
        broker.wait_for_subscription("$share/g/tank", "a")
        there = "subscribed: 'a' to 'pump/+', 'a' to '$share/g/tank'"
        for arguments, text in (
            (("pump/#",), "nobody has subscribed to 'pump/#'"),
            (("pump/+", "b"), "client 'b' has not subscribed to 'pump/+'"),
        ):
            with pytest.raises(NotSubscribed) as caught:
                broker.wait_for_subscription(*arguments, timeout_s=0.02)
            assert str(caught.value) == f"{text} within 0.02 s; {there}"
    with ThreadedBroker() as broker, pytest.raises(NotSubscribed, match=r"subscribed: nobody$"):
        broker.wait_for_subscription("t", timeout_s=0.01)


def test_a_client_that_is_kicked_is_told() -> None:
    with ThreadedBroker() as broker:
        with connected(broker, "a") as a:
            broker.kick("a")
            assert a.rest() == b"\xe0\x01\x98"
        with connected(broker, "a") as a:
            broker.kick("a", 0x97)
            assert a.rest() == b"\xe0\x01\x97"
        with connected(broker, "a"), pytest.raises(ValueError, match="0x86: no DISCONNECT has it"):
            broker.kick("a", 0x86)


@pytest.mark.parametrize("tool", ["kick", "drop"])
def test_nobody_of_this_name(tool: str) -> None:
    with ThreadedBroker() as broker:
        with pytest.raises(NotConnected, match="no client 'x' is connected; connected: nobody"):
            getattr(broker, tool)("x")
        with pytest.raises(NotConnected):
            broker.delay("x", 1)
        with pytest.raises(NotConnected):
            broker.advance(1, silent=["x"])


def test_a_connection_that_is_dropped_sends_its_will() -> None:
    will = Will("gone", b"a", 1, False)
    with ThreadedBroker() as broker, connected(broker, "a", will=will) as a:
        broker.drop("a")
        with a.sock, pytest.raises((EOFError, ConnectionError)):
            a.exactly(1)
        [message] = broker.wait_for_messages(1, "gone")
        assert message.client_id == "a"
        assert broker.clients == []


def test_what_a_delayed_client_sends_is_acted_upon_afterwards() -> None:
    with ThreadedBroker() as broker, connected(broker, "a") as a, connected(broker, "b") as b:
        began = time.monotonic()
        broker.delay("a", 0.2)
        a.send(publish("t", b"late", qos=1))
        b.send(publish("t", b"soon", qos=1))
        assert b.packet()[0] == 0x40
        assert [one.payload for one in broker.published("t")] == [b"soon"]
        assert a.packet()[0] == 0x40
        assert time.monotonic() - began >= 0.2
        assert [one.payload for one in broker.published("t")] == [b"soon", b"late"]


def test_a_retained_message_expires_and_clients_stay() -> None:
    with ThreadedBroker() as broker, connected(broker, "a", keep_alive=60) as a:
        a.send(
            publish(
                "t", b"x", qos=1, retain=True, properties={prop.MESSAGE_EXPIRY_INTERVAL: HOUR_S}
            )
        )
        assert a.packet()[0] == 0x40
        broker.advance(HOUR_S - 60)
        a.send(subscribe(V5, "t"))
        assert a.packet()[0] == 0x90
        assert b"x" in a.packet()
        broker.advance(120)
        a.send(subscribe(V5, "t"), b"\xc0\0")
        assert [a.packet()[0], a.packet()[0]] == [0x90, 0xD0]
        assert [one.client_id for one in broker.clients] == ["a"]


def test_a_silent_client_is_over_its_keep_alive_and_its_will_follows() -> None:
    will = Will("gone", b"a", 1, False, Properties({prop.WILL_DELAY_INTERVAL: 30}))
    with (
        ThreadedBroker() as broker,
        connected(broker, "a", keep_alive=60, expiry=HOUR_S, will=will) as a,
        connected(broker, "b", keep_alive=60) as b,
    ):
        broker.advance(91, silent=["a"])
        assert a.rest() == b"\xe0\x01\x8d"
        assert broker.published("gone") == []
        broker.advance(30)
        assert len(broker.published("gone")) == 1
        b.send(b"\xc0\0")
        assert b.packet() == b"\xd0\0"


def test_what_follows_from_what_fell_due_happens_in_one_step() -> None:
    will = Will("gone", b"a", 1, False, Properties({prop.WILL_DELAY_INTERVAL: 30}))
    with (
        ThreadedBroker() as broker,
        connected(broker, "a", keep_alive=60, expiry=HOUR_S, will=will),
    ):
        broker.advance(30 * 86_400, silent=["a"])
        assert len(broker.published("gone")) == 1
    with ThreadedBroker() as broker:
        with connected(broker, "a", expiry=HOUR_S):
            pass
        broker.advance(HOUR_S + 60)
        with opened(broker) as a:
            a.send(connect("a", clean=False))
            assert a.packet()[2] == 0  # Session Present


def test_the_clock_tells_the_time_and_goes_forward_alone() -> None:
    with ThreadedBroker() as broker:
        assert abs(broker.now - time.time()) < HOUR_S
        before = broker.now
        broker.advance(86_400)
        assert 86_400 <= broker.now - before < 86_400 + HOUR_S
        with pytest.raises(ValueError, match="the clock goes forward alone"):
            broker.advance(-1)


def test_a_restart_keeps_port_clock_and_what_is_on_disk(tmp_path: Path) -> None:
    with ThreadedBroker(data_dir=tmp_path / "state") as broker:
        port = broker.port
        broker.advance(86_400)
        day = broker.now
        with connected(broker, "a", expiry=HOUR_S) as a:
            a.send(subscribe(V5, "t", qos=1))
            assert a.packet()[0] == 0x90
        for kill in (False, True, True, False):
            broker.publish("t", "x", qos=1)
            broker.restart(kill=kill)
        assert broker.port == port
        assert 0 <= broker.now - day < HOUR_S
        with opened(broker) as a:
            a.send(connect("a", clean=False, expiry=HOUR_S))
            assert a.packet()[2] == 1  # Session Present
            assert [a.packet()[0] >> 4 for _ in range(4)] == [3] * 4
        assert len(broker.published("t")) == 4  # the record goes on


def test_a_restart_in_memory_forgets_everything() -> None:
    with ThreadedBroker() as broker:
        broker.publish("t", "x", retain=True)
        with connected(broker, "a", expiry=HOUR_S) as a:
            broker.restart()
            assert a.rest() == b"\xe0\x01\x8b"
        with opened(broker) as a:
            a.send(connect("a", clean=False))
            assert a.packet()[2] == 0
            a.send(subscribe(V5, "t"), b"\xc0\0")
            assert [a.packet()[0], a.packet()[0]] == [0x90, 0xD0]


def test_a_kill_tells_nobody() -> None:
    async def main() -> None:
        async with Broker(record=10) as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(connect("a"))
            await broker.wait_for_clients("a")
            await reader.readexactly(3)
            async with broker.subscribe("t") as messages:
                await broker.restart(kill=True)
                with pytest.raises(Disconnected):
                    await anext(messages)
            with contextlib.suppress(ConnectionError):
                connack = await reader.read()
                assert connack.endswith(b"\x21\x00\x14")  # and no DISCONNECT behind it
            assert broker.clients == []
            await broker.publish("t", "on", qos=1)
            writer.close()

    asyncio.run(main())


def test_a_broker_is_restarted_very_often_and_ends(tmp_path: Path) -> None:
    with ThreadedBroker(data_dir=tmp_path, streams={"s": "#"}) as broker:
        for number in range(6):
            broker.publish("t", str(number), qos=1)
            broker.restart(kill=number % 2 == 0)
        with connected(broker, "a") as a:
            a.send(subscribe(V5, "$stream/s/@earliest", qos=1))
            packets = [a.packet() for _ in range(7)]
            assert [one[-1:] for one in packets[1:]] == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("steps", range(8))
def test_a_publish_that_is_under_way_at_a_kill_ends(steps: int) -> None:
    async def main() -> None:
        async with Broker() as broker:
            publishing = asyncio.create_task(broker.publish("t", qos=1))
            subscription = broker.subscribe("t")
            subscribing = asyncio.create_task(subscription.__aenter__())
            for _ in range(steps):
                await asyncio.sleep(0)
            await broker.restart(kill=True)
            async with asyncio.timeout(PATIENCE_S):
                found = await asyncio.gather(publishing, subscribing, return_exceptions=True)
            assert all(one is None or isinstance(one, Disconnected) for one in found[:1])
            await broker.publish("t", qos=1)

    asyncio.run(main())


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(data_dir=tmp_path, streams={"s": "t/#"}) as broker:
            acknowledged: list[bytes] = []
            is_over = False

            async def publish_on(name: str) -> None:
                number = 0
                while not is_over:
                    number += 1
                    payload = f"{name} {number}".encode()
                    try:
                        await broker.publish(f"t/{name}", payload, qos=1 + number % 2)
                        acknowledged.append(payload)
                    except Disconnected:
                        await asyncio.sleep(0)

            publishing = [asyncio.create_task(publish_on(name)) for name in "abc"]
            for kills in range(1, 5):
                while len(acknowledged) < 3 * kills:
                    await asyncio.sleep(0)
                await broker.restart(kill=True)
            is_over = True
            await asyncio.gather(*publishing)
            await broker.publish("t/end", "end", qos=1)
            found: list[bytes] = []
            async with broker.subscribe("$stream/s/@earliest", qos=1) as messages:
                while not found or found[-1] != b"end":
                    found.append((await anext(messages)).payload)
            assert [one for one in acknowledged if one not in found] == []
            assert len(set(found)) == len(found)

    asyncio.run(main())
