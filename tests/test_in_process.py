"""`Broker.publish` and `Broker.subscribe`: clients inside the process, without a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, Refuse, Verdict
from mqtt_broker.in_process import (
    RECEIVE_MAXIMUM,
    Disconnected,
    InProcessAccess,
    Message,
    PublishRefused,
    SubscribeRefused,
)
from mqtt_broker.testing import Broker, ThreadedBroker
from tests.core.peers import connect

WAIT_S = 10.0  # a bound for what should come at once


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 6 * WAIT_S))


async def take(messages: Any, count: int) -> list[Message]:
    return [await asyncio.wait_for(anext(messages), WAIT_S) for _ in range(count)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_a_subscription(qos: int) -> None:
    async def main() -> None:
        async with Broker() as broker, broker.subscribe("pump/+", qos=qos) as messages:
            await broker.publish("pump/1", "on", qos=qos)
            await broker.publish("pump/2", b"\x00", qos=qos)
            await broker.publish("tank/1", "no", qos=qos)
            await broker.publish("pump/3", qos=qos)
            assert await take(messages, 3) == [
                Message("pump/1", b"on", qos),
                Message("pump/2", b"\x00", qos),
                Message("pump/3", b"", qos),
            ]

    run(main())


def test_properties_arrive() -> None:
    async def main() -> None:
        async with Broker() as broker, broker.subscribe("a") as messages:
            await broker.publish(
                "a",
                "x",
                expiry_s=60,
                content_type="text/plain",
                response_topic="b",
                correlation_data=b"7",
                user_properties=[("k", "1"), ("k", "2")],
            )
            assert await take(messages, 1) == [
                Message("a", b"x", 0, False, "text/plain", "b", b"7", (("k", "1"), ("k", "2")))
            ]

    run(main())


def test_retained_messages_come_first() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await broker.publish("a", "kept", retain=True)
            async with broker.subscribe("#", qos=1) as messages:
                await broker.publish("a", "live", qos=1)
                got = await take(messages, 2)
            assert [(m.payload, m.retain) for m in got] == [(b"kept", True), (b"live", False)]

    run(main())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_at_once_in_order(qos: int) -> None:
    """More than Receive Maximum and the queue of a subscription hold at a time."""

    async def main() -> None:
        async with Broker() as broker, broker.subscribe("a", qos=qos) as messages:
            count = 5 * RECEIVE_MAXIMUM
            publishing = asyncio.gather(
                *(broker.publish("a", str(number), qos=qos) for number in range(count))
            )
            got = await take(messages, count)
            await publishing
            assert [int(m.payload) for m in got] == list(range(count))

    run(main())


def test_qos_0_that_is_not_taken_is_dropped_by_the_core_and_not_kept_here() -> None:
    async def main() -> None:
        async with Broker(outbox_bytes_max=65_536) as broker, broker.subscribe("a") as messages:
            for _ in range(100):
                await broker.publish("a", bytes(10_000))
            waiting = broker.server.broker.outboxes.waiting_bytes
            assert waiting <= 65_536 + 2 * 10_100
            await take(messages, 5)
            await broker.publish("a", "last")
            assert broker.server.broker.backlog.dropped

    run(main())


def test_an_acknowledged_message_is_in_the_next_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(data_dir=str(tmp_path)) as broker:
            await broker.publish("a", "1", qos=1, retain=True)
            await broker.publish("b", "2", qos=2, retain=True)
        async with Broker(data_dir=str(tmp_path)) as broker, broker.subscribe("#") as messages:
            assert {m.payload for m in await take(messages, 2)} == {b"1", b"2"}

    run(main())


def test_what_a_block_did_not_finish_goes_to_another_member() -> None:
    async def main() -> None:
        async with Broker() as broker:
            first = broker.subscribe("$share/g/a", qos=1)
            async with broker.subscribe("$share/g/a", qos=1) as second:
                await first.__aenter__()
                await broker.publish("a", "x", qos=1)
                await broker.publish("a", "y", qos=1)
                await take(first, 1)
                await first.__aexit__(RuntimeError, RuntimeError("of the block"), None)
                assert {m.payload for m in await take(second, 2)} == {b"x", b"y"}

    run(main())


def test_refusals_carry_their_reason() -> None:
    async def main() -> None:
        async with Broker(packet_bytes_max=1000, maximum_qos=1) as broker:
            with pytest.raises(PublishRefused, match=r"maximum of 1000"):
                await broker.publish("a", bytes(2000))
            with pytest.raises(PublishRefused, match="Not authorized") as refused:
                await broker.publish("$SYS/x", "no", qos=1)
            assert (refused.value.topic, refused.value.reason) == ("$SYS/x", 0x87)
            with pytest.raises(PublishRefused, match=r"QoS not supported \(0x9B\)"):
                await broker.publish("a", qos=2)
            with pytest.raises(SubscribeRefused) as subscribing:
                async with broker.subscribe("a", "$stream/none"):
                    pass
            assert subscribing.value.filter == "$stream/none"
            await broker.publish("a", qos=1)

    run(main())


@pytest.mark.parametrize("topic", ["", "a/+", "#", "\x00", "a" * 70_000, "\ud800"])
def test_topics_that_are_none(topic: str) -> None:
    async def main() -> None:
        async with Broker() as broker:
            with pytest.raises(ValueError, match="invalid topic"):
                await broker.publish(topic)
            assert not broker.server.broker.connections

    run(main())


@pytest.mark.parametrize("text", ["", "a/#/b", "a+", "\x01", "a" * 70_000, "$share/g/a+"])
def test_filters_that_are_none(text: str) -> None:
    async def main() -> None:
        async with Broker() as broker:
            with pytest.raises(ValueError, match="invalid Topic Filter"):
                broker.subscribe(text)
            with pytest.raises(ValueError, match="nothing to subscribe"):
                broker.subscribe()
            with pytest.raises(ValueError, match="qos"):
                broker.subscribe("a", qos=3)

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"qos": 3},
        {"expiry_s": -1},
        {"response_topic": "+"},
        {"content_type": "\x00"},
        {"correlation_data": bytes(70_000)},
        {"user_properties": [("a", "b" * 70_000)]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_properties_that_are_none(wrong: dict[str, Any]) -> None:
    async def main() -> None:
        async with Broker() as broker:
            with pytest.raises(ValueError, match="invalid"):
                await broker.publish("a", **wrong)

    run(main())


class _OnlyPumps:
    """Lets in clients named pump, which may do nothing."""

    guards_topics = True

    def connect(self, request: ConnectRequest) -> Verdict:
        return Allow() if request.client_id == "pump" else Refuse()

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return False

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return False


def test_the_program_itself_is_not_asked_by_its_access() -> None:
    async def main() -> None:
        async with (
            Broker(access=_OnlyPumps()) as broker,
            broker.subscribe("a", qos=1) as messages,
        ):
            await broker.publish("a", "x", qos=1)
            assert (await take(messages, 1))[0].payload == b"x"
            for name, code in (("pump", 0), ("in-process", 0x87)):
                reader, writer = await asyncio.open_connection(broker.host, broker.port)
                writer.write(connect(name))
                assert (await reader.readexactly(4))[3] == code
                writer.close()
                await writer.wait_closed()

    run(main())


def test_nobody_else_gets_in_as_the_program() -> None:
    access = InProcessAccess(_OnlyPumps())

    def ask(peer: str, password: bytes | None) -> Verdict:
        return access.connect(ConnectRequest("x", "in-process", password, 5, peer))

    assert isinstance(ask("in-process", access.secret), Allow)
    assert isinstance(ask("127.0.0.1:7", access.secret), Refuse)
    assert isinstance(ask("in-process", b"guess"), Refuse)
    assert isinstance(ask("in-process", None), Refuse)
    assert not access.may_publish("pump", None, "a")


def test_iterations_end_when_the_broker_stops() -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def read() -> None:
            async with broker.subscribe("a") as messages:
                ready.set()
                async for message in messages:
                    got.append(message.payload)

        ready = asyncio.Event()
        async with Broker() as broker:
            reading = asyncio.create_task(read())
            await ready.wait()
            await broker.publish("a", "1")
            await broker.publish("a", "2")
        await asyncio.wait_for(reading, WAIT_S)
        assert got == [b"1", b"2"]
        with pytest.raises(Disconnected, match="not running"):
            await broker.publish("a")
        with pytest.raises(Disconnected, match="not running"):
            broker.subscribe("a")

    run(main())


def test_a_kicked_client_is_told_and_publishing_goes_on() -> None:
    async def main() -> None:
        async with Broker() as broker, broker.subscribe("a") as messages:
            await broker.publish("a", "1", qos=1)
            core = broker.server.broker
            for client_id in list(core.connections):
                core.kick(client_id, broker.server.now())
            assert (await take(messages, 1))[0].payload == b"1"
            with pytest.raises(Disconnected, match="Administrative action"):
                await asyncio.wait_for(anext(messages), WAIT_S)
            await broker.publish("a", "2", qos=1)

    run(main())


def test_a_cancelled_publish_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with Broker() as broker:
            publishing = asyncio.create_task(broker.publish("a", qos=1))
            await asyncio.sleep(0)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            await broker.publish("a", qos=1)

    run(main())


def test_a_subscription_is_entered_once_and_first() -> None:
    async def main() -> None:
        async with Broker() as broker:
            messages = broker.subscribe("a")
            with pytest.raises(RuntimeError, match="enter"):
                await anext(messages)
            async with messages:
                pass
            with pytest.raises(RuntimeError, match="before"):
                async with messages:
                    pass
            assert not broker.server.broker.connections
            assert not len(broker.server.broker.sessions)

    run(main())


def test_a_keep_alive_that_the_broker_asks_for_is_answered() -> None:
    async def main() -> None:
        async with Broker(max_keepalive=1) as broker, broker.subscribe("a") as messages:
            core = broker.server.broker
            [connection] = core.connections.values()
            before = connection.last_heard_at
            while connection.last_heard_at == before:
                await asyncio.sleep(0.05)
            await broker.publish("a", "still here")
            await take(messages, 1)

    run(main())


def test_a_log_of_your_own_needs_a_broker_without_data(tmp_path: Path) -> None:
    log: Any = object()
    with pytest.raises(ValueError, match="data_dir"):
        Broker(message_log=log, data_dir=str(tmp_path))


def test_a_thread_publishes() -> None:
    with ThreadedBroker() as broker:
        broker.publish("a", "1", qos=1, retain=True)
        with pytest.raises(PublishRefused):
            broker.publish("$SYS/x", qos=1)
    with pytest.raises(Disconnected):
        broker.publish("a")
