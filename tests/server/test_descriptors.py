"""More connections than descriptors: accepting pauses, is said once a second, and goes on."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.server.process.descriptors import Descriptors
from tests.core.peers import connect, publish, subscribe
from tests.server.broker_process import PATIENCE_S, Process, http_address
from tests.server.running import Raw
from tests.server.transports import Files, WebSocketRaw, connected, tls_context

FILES: Final = 120
PING: Final = b"\xc0\x00"
PONG: Final = b"\xd0\x00"
KINDS: Final = ("tcp", "tls", "ws", "wss", "unix")
# On SIGUSR1 every descriptor is in use, on SIGUSR2 they are free again.
EATER: Final = """
import os, signal
held = []
def eat(*_):
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    os.write(1, b"all are in use\\n")
def free(*_):
    while held:
        os.close(held.pop())
signal.signal(signal.SIGUSR1, eat)
signal.signal(signal.SIGUSR2, free)
"""


class World:
    """A broker with few descriptors that listens in every way, keeps a stream, and serves HTTP."""

    def __init__(self, tmp_path: Path, files: int = FILES, before: str = "") -> None:
        self.files = Files(tmp_path)
        tls = f"tls = {{ cert = {self.files.cert!r}, key = {self.files.key!r} }}"
        path = tmp_path / "f.toml"
        path.write_text(
            f"data_dir = '{tmp_path}/data'\n"
            "[[streams]]\nname = 's'\nfilter = 's/#'\npartitions = 4\npartition_by = 'level:2'\n"
            + "".join(
                f"[[listeners]]\nname = '{kind}'\nport = 0\n"
                + ("websocket = {}\n" if kind.startswith("ws") else "")
                + (f"{tls}\n" if kind in ("tls", "wss") else "")
                for kind in KINDS[:-1]
            )
            + f"[[listeners]]\nname = 'unix'\npath = '{tmp_path}/s'\n"
        )
        env = {"FLEETMQ_DURABILITY": "commit", "FLEETMQ_HTTP": "127.0.0.1:0"}
        self.broker = Process("--config", str(path), env=env, files=files, before=before)
        self.lines: list[tuple[float, str]] = []

    @contextlib.contextmanager
    def run(self) -> Iterator[World]:
        with self.broker:
            self.url = http_address(self.broker)
            yield self

    def get(self, path: str) -> Any:
        return urllib.request.urlopen(f"{self.url}{path}", timeout=PATIENCE_S)

    def settle_http(self) -> None:
        """Wait until HTTP is up and idle: a file that it closes later would be free for others."""
        host, port = self.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as near:
            near.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while near.recv(65_536):
                pass

    def healthy(self) -> bool:
        with self.get("/healthz") as answer:
            return bool(json.loads(answer.read()) == {"status": "ok"})

    def ailing(self) -> str:
        """Why it is not ready."""
        with pytest.raises(urllib.error.HTTPError) as caught, self.get("/readyz"):
            pass
        with caught.value:
            return str(json.loads(caught.value.read())["detail"])

    def metric(self, name: str) -> float:
        with self.get("/metrics") as answer:
            [line] = [one for one in answer.read().decode().splitlines() if one.startswith(name)]
        return float(line.split()[-1])

    def eat(self) -> None:
        """Leave no descriptor to anybody."""
        self.broker.process.send_signal(signal.SIGUSR1)
        assert self.broker.process.stdout is not None
        assert self.broker.process.stdout.readline() == "all are in use\n"

    def raw(self, kind: str) -> Raw:
        return self.broker.raw(self.broker.addresses[KINDS.index(kind)])

    def through(self, kind: str, raw: Raw) -> Raw:
        """A whole connection of its kind."""
        sock = raw.sock
        if kind in ("tls", "wss"):
            sock = tls_context(self.files.ca).wrap_socket(sock, server_hostname="127.0.0.1")
        return WebSocketRaw(sock) if kind.startswith("ws") else Raw(sock)

    def said(self, words: str) -> list[str]:
        """Lines of the log so far that hold these words."""
        return [line for line in list(self.broker.lines.queue) if words in line]

    def wait(self, words: str, count: int = 1) -> None:
        until = time.monotonic() + PATIENCE_S
        while len(self.said(words)) < count:
            assert time.monotonic() < until, "".join(self.broker.lines.queue)
            time.sleep(0.01)


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("tcp", "wss") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_more_clients_than_descriptors(tmp_path: Path, kind: str) -> None:
    with World(tmp_path).run() as world, contextlib.ExitStack() as stack:
        begun = time.monotonic()
        first = stack.enter_context(connected(world.through("tcp", world.raw("tcp")), "first"))
        crowd = [stack.enter_context(world.raw(kind)) for _ in range(FILES)]
        last = stack.enter_context(world.raw(kind))
        world.wait("cannot accept: all 90 descriptors for clients are in use (limit 120)", 2)
        for _ in range(5):
            assert world.healthy()
        assert world.metric("fleetmq_accept_pauses_total") >= 2
        # Who is in is served, and what the broker needs files for is done: each partition of the
        # stream has its segment and index opened now.
        for number in range(16):
            first.send(publish(f"s/{number}", b"x", qos=1, packet_id=number + 1))
            assert first.packet()[0] == 0x40
        first.send(subscribe(V5, "#"))
        assert first.packet()[0] == 0x90
        for one in crowd:
            one.sock.close()
        with connected(world.through(kind, last), "last") as client:
            client.send(PING)
            assert client.packet() == PONG
        seconds = time.monotonic() - begun
        assert len(world.said("cannot accept")) <= seconds + 1
        assert not world.said("Traceback")
        assert not world.said("store:")
        world.broker.end()


def test_http_takes_no_descriptor_from_files(tmp_path: Path) -> None:
    with World(tmp_path).run() as world, contextlib.ExitStack() as stack:
        host, _, port = world.url.removeprefix("http://").partition(":")
        crowd = [
            stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            for _ in range(FILES)
        ]
        assert b"503" in crowd[-1].recv(100)
        with connected(world.through("tcp", world.raw("tcp")), "c") as client:
            for number in range(16):
                client.send(publish(f"s/{number}", b"x", qos=1, packet_id=number + 1))
                assert client.packet()[0] == 0x40
        for one in crowd:
            one.close()
        world_is_well(world)
        assert not world.said("Traceback")


def world_is_well(world: World) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert world.healthy()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_none_are_left_at_all(tmp_path: Path) -> None:
    """Somebody else in the process took them: files cannot be opened either."""
    with World(tmp_path, before=EATER).run() as world, contextlib.ExitStack() as stack:
        world.settle_http()
        first = stack.enter_context(connected(world.through("tcp", world.raw("tcp")), "first"))
        second = stack.enter_context(connected(world.through("tcp", world.raw("tcp")), "second"))
        world.eat()
        begun = time.monotonic()
        waiting = [stack.enter_context(world.raw(kind)) for kind in KINDS]
        waiting[0].send(connect("waits"))
        first.send(publish("s/1", b"x", qos=1, packet_id=1))
        world.wait("telemetry log: Too many open files (")
        world.wait("cannot accept: ", 3)
        for _ in range(3):
            assert "Too many open files" in world.ailing()  # it answers
        second.send(publish("t", b"x", qos=1, packet_id=1), PING)
        assert second.packet()[0] == 0x40
        assert second.packet() == PONG
        assert len(world.said("cannot accept")) <= time.monotonic() - begun + 1
        assert len(world.said("store: ")) <= 2  # of the log, and of the tables
        world.broker.process.send_signal(signal.SIGUSR2)
        assert first.packet()[0] == 0x40
        assert waiting[0].packet()[0] == 0x20
        world.wait("store: works again")
        world_is_well(world)
        assert not world.said("Traceback")


@pytest.mark.parametrize(("file", "part"), [("journal.db", "journal"), ("fleetmq.db", "tables")])
def test_the_store_waits_for_descriptors(tmp_path: Path, file: str, part: str) -> None:
    """A lock makes it close a database, and then it has no descriptors to open it again."""
    with World(tmp_path, before=EATER).run() as world, contextlib.ExitStack() as stack:
        subscriber = stack.enter_context(connected(world.raw("tcp"), "s", expiry=600))
        other = stack.enter_context(connected(world.raw("tcp"), "other"))
        world.settle_http()
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / file)) as lock:
            lock.isolation_level = None
            lock.execute("BEGIN IMMEDIATE")
            subscriber.send(subscribe(V5, "t", qos=1))
            world.wait(f"{part}: database is locked")
            while not world.said(f"{part}: database file cannot be opened (SQLITE_CANTOPEN)"):
                world.eat()  # what it closed in between, too
        other.send(PING)
        assert other.packet() == PONG
        world.broker.process.send_signal(signal.SIGUSR2)
        assert subscriber.packet()[0] == 0x90
        world.wait("store: works again")
        world_is_well(world)
        assert not world.said("Traceback")


def test_a_line_a_second_for_all_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    now = [100.0]
    descriptors = Descriptors(lines.append, clock=lambda: now[0])
    error = OSError(24, "Too many open files")
    for _ in range(30):
        for where in ("a", "b"):
            descriptors.report(where, error)
        now[0] += 0.1
    assert len(lines) == 3
    assert descriptors.pauses == 60
    assert descriptors.is_short
    assert all("cannot accept: Too many open files" in line and "\n" not in line for line in lines)
    assert descriptors.has_room()  # nothing else was wrong
    assert not descriptors.is_short


def test_the_reserve_is_a_share_of_few_and_grows_with_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limits(soft: int) -> Any:
        return lambda _: (soft, soft)

    files = [0]
    for limit, more, end in (
        (1_000_000, 0, 999_936), (1_024, 0, 960), (100, 0, 75), (1_024, 100, 860),
        (1_024, 1_000, 768), (-1, 0, (1 << 30) - 64),
    ):  # fmt: skip
        monkeypatch.setattr("resource.getrlimit", limits(limit))
        files[0] = more
        found = Descriptors(print, lambda: files[0])
        assert found.clients_end == end
        assert found.clients_end < found.http_end
