"""The watchdog: acknowledgements that stop, a loop that hangs, a thread of the store that dies.

The clock is the tests' own, and so is the moment at which the watchdog looks.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.core.sys_topics import ROOT, gauges
from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.process.watchdog import LOOP, THREADS, UNANSWERED, Watchdog
from sessions.journal.journal import Journal
from sessions.journal.transaction import PublishTransaction
from sessions.store.writer import Writer
from tests.core.peers import V5 as VERSION
from tests.core.peers import publish, subscribe
from tests.http_api.brokers import Reply, Serving
from tests.server.broker_process import PATIENCE_S, Process, document
from tests.server.running import Raw, Running

HOLD_S: Final = 60.0  # at most; a test lets go of what it holds


class Watching:
    """A broker with a watchdog that looks when a test says so, and its HTTP server."""

    def __init__(self, broker: Running, http: Serving) -> None:
        self.broker = broker
        self.http = http
        self.server = broker.server
        self.clock = 1000.0
        storage = self.server.storage
        self.dog = self.server.watchdog = Watchdog(
            self.server.broker,
            self.server.loop,
            lambda: self.clock,
            storage.dead_threads if storage is not None else list,
        )

    def pass_by(self, seconds: int) -> None:
        """As many seconds, with a look in each that the loop answers."""
        for _ in range(seconds):
            self.clock += 1
            self.dog.check()
            self.broker.ask(lambda: None)  # behind the watchdog's own question

    def hang(self, seconds: int) -> None:
        """The same, and the loop answers nothing."""
        for _ in range(seconds):
            self.clock += 1
            self.dog.check()

    def health(self, path: str = "/healthz") -> tuple[int, str]:
        found: Reply = self.http.get(path)
        return found.status, found.json().get("why", "")

    def needs_restart(self) -> bool:
        return self.dog.needs_restart

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").body.decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def sys(self, name: str) -> str:
        return self.broker.ask(lambda: gauges(self.server.broker.state, self.clock)[name])


@contextmanager
def watching(data_dir: Path | None, **settings: Any) -> Iterator[Watching]:
    config = Config(durability="memory")
    if data_dir is not None:
        config = replace(config, durability="commit", data_dir=str(data_dir))
    with (
        Running(config=config, **settings) as broker,
        Serving(ServerInterface(broker.server), None) as http,
    ):
        yield Watching(broker, http)


def with_a_session(broker: Running) -> Raw:
    """A publisher, and somebody away who is to get what it publishes to `a`."""
    with broker.client("away", clean=False, expiry=1000) as away:
        away.send(subscribe(VERSION, "a", qos=1))
        assert away.packet()[0] == 0x90
    return broker.client("p")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is cleared the writer commits nothing and says nothing."""
    may_commit = threading.Event()
    may_commit.set()
    commit = Writer._commit

    def wait(self: Writer) -> None:
        assert may_commit.wait(HOLD_S)
        commit(self)

    monkeypatch.setattr(Writer, "_commit", wait)
    return may_commit


def test_a_store_that_never_answers(
    tmp_path: Path, stopped: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fleetmq")
    with watching(tmp_path) as watch, with_a_session(watch.broker) as publisher:
        watch.pass_by(3)
        assert (watch.health(), watch.health("/readyz")) == ((200, ""), (200, ""))
        stopped.clear()
        publisher.send(publish("a", b"x", qos=1, packet_id=7))
        watch.broker.wait_until(lambda: len(watch.server.broker.unanswered) > 0)
        watch.pass_by(11)  # it is seen first in the first of them
        assert watch.health()[0] == 200
        assert watch.metric("fleetmq_oldest_unanswered_seconds") == 10
        watch.pass_by(1)
        why = (
            "the oldest unanswered publish has waited 11.0 s for the store; unanswered_s_max is 10"
        )
        assert watch.health() == watch.health("/readyz") == (503, why)
        assert watch.metric("fleetmq_oldest_unanswered_seconds") == 11
        assert watch.metric("fleetmq_healthy") == 0
        assert watch.sys("publish/unanswered/oldest") == "11 seconds"
        assert watch.sys("health") == why
        assert watch.needs_restart()
        watch.pass_by(5)
        stopped.set()
        assert publisher.packet()[:4] == b"\x40\x02\x00\x07"
        watch.pass_by(2)
        assert watch.health() == (200, "")
        assert watch.metric("fleetmq_oldest_unanswered_seconds") == 0
        assert watch.sys("publish/unanswered/oldest") == "0 seconds"
        assert watch.sys("health") == "ok"
        assert not watch.needs_restart()
    assert [record.getMessage() for record in caplog.records] == [
        f"unhealthy: {why}",
        "healthy: acknowledgements are sent again",
    ]


def test_a_store_that_says_what_is_wrong_is_no_reason_to_restart(
    tmp_path: Path, stopped: threading.Event
) -> None:
    with watching(tmp_path) as watch, with_a_session(watch.broker) as publisher:
        stopped.clear()
        publisher.send(publish("a", b"x", qos=1, packet_id=7))
        watch.broker.wait_until(lambda: len(watch.server.broker.unanswered) > 0)
        watch.pass_by(30)
        assert watch.needs_restart()
        watch.broker.ask(lambda: watch.server.broker.on_store_state("journal: disk full"))
        assert UNANSWERED in watch.dog.look().why and not watch.needs_restart()
        stopped.set()


def test_entries_that_the_journal_loses_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is gone: later ones are committed, and its publisher waits for ever."""
    is_lost = threading.Event()
    flush = Journal.flush

    def lose(self: Journal, now: float) -> None:
        if not any(isinstance(entry, PublishTransaction) for entry in self._entries):
            flush(self, now)
            return
        self._entries = []
        monkeypatch.setattr(Journal, "flush", flush)
        is_lost.set()

    with watching(tmp_path) as watch, with_a_session(watch.broker) as publisher:
        monkeypatch.setattr(Journal, "flush", lose)
        publisher.send(publish("a", b"x", qos=1, packet_id=7))
        assert is_lost.wait(PATIENCE_S)
        with watch.broker.client("other") as other:
            for second in range(1, 15):
                other.send(publish("a", b"x", qos=1, packet_id=second))
                assert other.packet()[0] == 0x40
                watch.pass_by(1)
        assert "waited" in watch.health()[1]


def test_a_loop_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fleetmq")
    go_on, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert go_on.wait(HOLD_S)

    with watching(None) as watch:
        watch.pass_by(2)
        assert (watch.health(), watch.dog.look().loop_late_s) == ((200, ""), 0)
        watch.broker.loop.call_soon_threadsafe(hang)
        assert hangs.wait(PATIENCE_S)
        watch.hang(6)
        assert watch.dog.look().why == {}
        watch.hang(1)
        why = "the event loop is 6.0 s late; loop_late_s_max is 5"
        assert watch.dog.look().why == {LOOP: why}
        assert watch.health() == watch.health("/readyz") == (503, why)
        assert watch.metric("fleetmq_loop_late_seconds") == 6  # and of the others there are none
        assert not watch.needs_restart()  # whoever is fed from the loop is not fed anyway
        go_on.set()
        watch.broker.ask(lambda: None)
        watch.pass_by(2)  # its answer may come behind the look of the first
        assert watch.health() == (200, "")
        assert watch.metric("fleetmq_loop_late_seconds") == 0
        assert watch.sys("loop/late") == "6.0 seconds"  # the latest since it was told last
        assert watch.sys("loop/late") == "0.0 seconds"
        assert watch.sys("publish/unanswered/oldest") == "0 seconds"
    assert [record.getMessage() for record in caplog.records] == [
        f"unhealthy: {why}",
        "healthy: the event loop responds again",
    ]


@pytest.mark.parametrize("name", ["writer", "applier", "pager"])
def test_a_thread_of_the_store_that_dies(tmp_path: Path, name: str) -> None:
    with watching(tmp_path) as watch:
        assert watch.server.storage is not None
        worker = getattr(watch.server.storage.store, name)
        assert watch.health() == (200, "") and not watch.needs_restart()
        worker.abandon()
        assert worker.join(PATIENCE_S)
        assert watch.health() == (
            503,
            f"store: thread {worker.name} has ended; restart the broker",
        )
        assert THREADS in watch.dog.look().why and watch.needs_restart()


def test_limits_may_be_off(tmp_path: Path, stopped: threading.Event) -> None:
    with (
        watching(tmp_path, unanswered_s_max=0, loop_late_s_max=0) as watch,
        with_a_session(watch.broker) as publisher,
    ):
        stopped.clear()
        publisher.send(publish("a", b"x", qos=1, packet_id=7))
        watch.broker.wait_until(lambda: len(watch.server.broker.unanswered) > 0)
        watch.pass_by(100)
        assert watch.dog.look().unanswered_s > 90 and watch.dog.look().why == {}
        stopped.set()


def test_the_command_has_one_and_embedders_have_none(tmp_path: Path) -> None:
    with Running() as broker:
        assert broker.server.watchdog is None
        names = broker.ask(lambda: set(gauges(broker.server.broker.state, 0.0)))
        assert not names & {"health", "loop/late", "publish/unanswered/oldest"}
    with Process("--port", "0", "--http", "127.0.0.1:0", "--data-dir", str(tmp_path)) as process:
        assert process.process.stdout is not None
        host, _, port = process.process.stdout.readline().rpartition("/")[2].partition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as near:
            near.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            answer = b""
            while part := near.recv(65_536):
                answer += part
        assert b"\nfleetmq_healthy 1.0" in answer
        assert b"\nfleetmq_oldest_unanswered_seconds 0.0" in answer
        process.end()


TOPICS: Final = ("health", "loop/late", "publish/unanswered/oldest")


def test_its_topics_stand_in_the_document() -> None:
    text = document("docs/PROTOCOL.md")
    assert ROOT == "$SYS/broker/"
    assert all(f"`{topic}`" in text for topic in TOPICS)
