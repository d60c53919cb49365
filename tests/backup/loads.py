"""A broker under load, and what a stored session and a reader of the stream find in a copy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mqtt_broker.backup.figures import RUNNING, BackupFigures
from mqtt_broker.server.services.backups import BackupService
from mqtt_broker.streams import open_reader, open_source, records
from mqtt_broker.testing import Broker

PATIENCE_S: Final = 30.0
STREAM: Final = "telemetry"


def broker(data: Path, **more: Any) -> Broker:
    return Broker(
        data_dir=data,
        durability="commit",
        streams=[{"name": STREAM, "filter": "plant/#", "segment_bytes": 65_536, "partitions": 2}],
        **more,
    )


class Load:
    """It publishes until the block ends; `acknowledged` are the payloads that are promised."""

    def __init__(self, running: Broker) -> None:
        self._broker = running
        self.acknowledged: list[bytes] = []

    async def run(self, topic: str) -> None:
        number = 0
        while True:
            number += 1
            payload = f"{topic} {number}".encode()
            await self._broker.publish(topic, payload, qos=1)
            self.acknowledged.append(payload)

    async def wait_for_more(self, count: int = 100) -> None:
        until = len(self.acknowledged) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < until:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def under_load(running: Broker) -> AsyncIterator[Load]:
    """Publish from several places to a stream and to a stored session that is away."""
    await asyncio.to_thread(leave_session, running.port)
    load = Load(running)
    tasks = [asyncio.create_task(load.run(f"plant/{number}")) for number in range(8)]
    await load.wait_for_more()
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def backup(service: BackupService, directory: str = "") -> BackupFigures:
    """Make a backup, and wait for its end."""
    found = await asyncio.wrap_future(service.begin(directory))
    async with asyncio.timeout(PATIENCE_S):
        while found.state == RUNNING:
            await asyncio.sleep(0.01)
            known = await asyncio.wrap_future(service.figures())
            [found] = [one for one in known if one.id == found.id]
    return found


def _session(port: int) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, "logger", protocol=paho.MQTTv5)
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    return client


def leave_session(port: int) -> None:
    client = _session(port)
    subscribed = threading.Event()

    def on_connect(*_: object) -> None:
        client.subscribe("plant/#", 1)

    client.on_connect = on_connect
    client.on_subscribe = lambda *_: subscribed.set()
    client.loop_start()
    assert subscribed.wait(PATIENCE_S)
    client.disconnect()
    client.loop_stop()


def queued(port: int, count: int) -> list[bytes]:
    """Return what the session that was away gets: at least `count` messages."""
    found: list[bytes] = []
    enough = threading.Event()
    client = _session(port)

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        found.append(bytes(message.payload))
        if len(found) >= count:
            enough.set()

    client.on_message = on_message
    client.loop_start()
    assert enough.wait(PATIENCE_S), f"{len(found)} of {count}"
    client.disconnect()
    client.loop_stop()
    return found


def logged(data: Path) -> list[bytes]:
    """Return what the stream has."""
    found: list[bytes] = []
    with open_source(str(data / "streams"), STREAM) as source:
        for partition in range(2):
            with open_reader(source, partition, 0) as reader:
                while batches := reader.read():
                    found += [record.payload for batch in batches for record in records(batch)]
    return found


async def check(data: Path, promised: list[bytes], **more: Any) -> None:
    """Start a broker on a restored place: all that was promised is there, and nothing twice."""
    async with broker(data, **more) as running:
        got = await asyncio.to_thread(queued, running.port, len(promised)) if promised else []
        assert set(promised) <= set(got) and len(set(got)) == len(got)
        log = logged(data)
        assert set(promised) <= set(log) and len(set(log)) == len(log)
