"""amqtt's asyncio client, on the event loop of the broker itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from amqtt.client import MQTTClient

from mqtt_broker.testing import Broker
from tests.interop.clients import PATIENCE_S

any_qos = pytest.mark.parametrize("qos", [0, 1, 2])


@contextlib.asynccontextmanager
async def client(broker: Broker, client_id: str, *, clean: bool = True) -> AsyncIterator[Any]:
    one = MQTTClient(client_id, {"auto_reconnect": False})
    await one.connect(f"{broker.url}/", cleansession=clean)
    try:
        yield one
    finally:
        await one.disconnect()


async def payloads(receiver: Any, count: int) -> list[bytes]:
    return [
        bytes((await receiver.deliver_message(timeout_duration=PATIENCE_S)).data)
        for _ in range(count)
    ]


@any_qos
def test_messages_go_round_in_order(qos: int) -> None:
    sent = [b"%d" % number for number in range(50)]

    async def main() -> None:
        async with Broker() as broker, client(broker, "s") as sub, client(broker, "p") as pub:
            assert await sub.subscribe([("a/+", qos)]) == [qos]
            for payload in sent:
                await pub.publish("a/b", payload, qos=qos)
            assert await payloads(sub, len(sent)) == sent

    asyncio.run(main())


@any_qos
def test_a_retained_message(qos: int) -> None:
    async def main() -> None:
        async with Broker() as broker, client(broker, "p") as pub:
            await pub.publish("kept", b"x", qos=qos, retain=True)
            await pub.ping()
            async with client(broker, "late") as late:
                await late.subscribe([("kept", qos)])
                message = await late.deliver_message(timeout_duration=PATIENCE_S)
                assert (bytes(message.data), message.retain, message.qos) == (b"x", True, qos)

    asyncio.run(main())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_keeps_what_its_client_misses(qos: int) -> None:
    async def main() -> None:
        async with Broker() as broker:
            async with client(broker, "logger", clean=False) as logger:
                await logger.subscribe([("log", qos)])
            async with client(broker, "p") as pub:
                for payload in (b"1", b"2", b"3"):
                    await pub.publish("log", payload, qos=qos)
            async with client(broker, "logger", clean=False) as logger:
                assert await payloads(logger, 3) == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_both_ways_at_once() -> None:
    """Packet ids of the two directions are the same numbers and have nothing to do with it."""
    count = 30

    async def main() -> None:
        async with Broker() as broker, client(broker, "a") as one, client(broker, "b") as two:
            await one.subscribe([("to/a", 2)])
            await two.subscribe([("to/b", 2)])

            async def send(sender: Any, topic: str) -> None:
                for number in range(count):
                    await sender.publish(topic, b"%d" % number, qos=2)

            await asyncio.gather(send(one, "to/b"), send(two, "to/a"))
            expected = [b"%d" % number for number in range(count)]
            assert await payloads(one, count) == expected
            assert await payloads(two, count) == expected

    asyncio.run(main())
