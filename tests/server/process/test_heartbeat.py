"""What `kill -9` leaves to the next start: wills of connected clients, and how long ago it was."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Publish, Will
from mqtt_broker.codec.properties import NO_PROPERTIES
from mqtt_broker.server.process.heartbeat import FILE, Heartbeat
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.core.peers import connect, publish, subscribe
from tests.server.broker_process import Process

HOUR_S = 3600.0
ENVIRONMENT = {"FLEETMQ_DURABILITY": "commit"}
STREAM = '[[streams]]\nname = "states"\nfilter = "state/#"\npartitions = 1\n'


def test_a_will_of_an_unstored_session(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(STREAM)
    options = ("--config", str(config), "--port", "0", "--data-dir", str(tmp_path / "data"))
    will = Will("state/device", b"offline", 1, True, NO_PROPERTIES)
    with Process(*options, env=ENVIRONMENT) as broker, broker.raw() as device:
        device.send(connect("device", will=will))
        assert device.packet()[0] == 0x20
        device.send(publish("state/device", b"online", qos=1, retain=True))
        assert device.packet()[0] == 0x40
        broker.process.kill()
        broker.process.wait()
    with Process(*options, env=ENVIRONMENT) as broker, broker.client("watcher") as watcher:
        watcher.send(subscribe(V5, "state/#"))
        assert watcher.packet()[0] == 0x90
        (found,) = Decoder(from_server=True, version=V5).feed(watcher.packet())
        assert isinstance(found, Publish) and found.payloads() == [b"offline"]
        broker.end()
    assert payloads(tmp_path / "data" / "streams") == [b"online", b"offline"]


def payloads(root: Path) -> list[bytes]:
    with Source.open(root, "states") as source, Reader(source, 0, 0) as reader:
        return [one.payload for batch in reader.read() for one in records(batch)]


@pytest.mark.parametrize(("is_alive", "present"), [(True, 1), (False, 0)])
def test_a_session_counts_from_the_last_sign_of_life(
    tmp_path: Path, is_alive: bool, present: int
) -> None:
    """The tables were last written an hour ago: the database was away, or the broker was."""
    options = ("--port", "0", "--data-dir", str(tmp_path))
    with Process(*options, env=ENVIRONMENT) as broker, broker.raw() as client:
        client.send(connect("c", expiry=600, clean=False))
        assert client.packet()[0] == 0x20
        client.send(subscribe(V5, "a"))
        assert client.packet()[0] == 0x90
        broker.process.kill()
        broker.process.wait()
    at = time.time() - HOUR_S
    if not is_alive:
        os.utime(tmp_path / FILE, (at, at))
    for name, statement in (
        ("fleetmq.db", "UPDATE meta SET alive_at = ?"),
        ("journal.db", "UPDATE journal SET at = ?"),
    ):
        with sqlite3.connect(tmp_path / name) as connection:
            connection.execute(statement, (at,))
    with Process(*options, env=ENVIRONMENT) as broker, broker.raw() as client:
        client.send(connect("c", expiry=600, clean=False))
        assert client.packet()[2] == present


class TestHeartbeat:
    def test_nobody_knows(self, tmp_path: Path) -> None:
        assert Heartbeat(tmp_path, time.time).last() == 0.0

    def test_a_beat_is_the_time_of_the_file(self, tmp_path: Path) -> None:
        now = 1_000_000.0
        heart = Heartbeat(tmp_path, lambda: now)
        heart.start()
        assert heart.last() == now
        now += 5
        heart.beat()
        heart.stop()
        assert Heartbeat(tmp_path, time.time).last() == now

    def test_a_directory_that_is_gone_stops_nobody(self, tmp_path: Path) -> None:
        heart = Heartbeat(tmp_path / "none", time.time)
        heart.beat()
        heart.stop()
        assert heart.last() == 0.0
