"""What systemd is told, with a socket of ours in its place."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mqtt_broker.server.process.systemd import Notifier
from tests.server.broker_process import PATIENCE_S, Process


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "notify")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.settimeout(PATIENCE_S)
        sock.bind(path)
        yield path, sock


def test_a_broker_says_that_it_is_ready_lives_and_stops(
    systemd: tuple[str, socket.socket],
) -> None:
    path, sock = systemd
    env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000"}
    with Process("--port", "0", env=env) as broker:
        assert sock.recv(4096).startswith(b"READY=1\nSTATUS=listens on 127.0.0.1:")
        assert [sock.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        broker.end()
    told = b""
    while told != b"STOPPING=1":
        told = sock.recv(4096)


def test_a_name_that_is_no_file() -> None:
    name = f"fleetmq-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.settimeout(PATIENCE_S)
        sock.bind(f"\0{name}")
        with closing(asyncio.new_event_loop()) as loop:
            Notifier(loop, {"NOTIFY_SOCKET": f"@{name}"}).ready("x")
        assert sock.recv(4096) == b"READY=1\nSTATUS=x"


def test_a_broker_that_needs_a_restart_gets_one(systemd: tuple[str, socket.socket]) -> None:
    """It does not say that it lives; when the trouble is over it does."""
    path, sock = systemd
    troubles = [True]
    environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "60000000"}
    with closing(asyncio.new_event_loop()) as loop:
        notifier = Notifier(loop, environment, lambda: bool(troubles))
        notifier.ready("x")
        troubles.clear()
        notifier.keep_alive()
        notifier.stopping()
    assert [sock.recv(4096) for _ in range(3)] == [
        b"READY=1\nSTATUS=x",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        notifier = Notifier(loop, environment)
        notifier.ready("x")
        notifier.stopping()
