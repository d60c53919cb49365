"""Every call of a turn fails once: the process goes on, and what was acknowledged is there.

Whatever a broker with a store calls in its turns, its timers and what its store's threads tell
it raises at one moment. It costs a connection at most; acknowledgements that stop come again by
themselves, and while they do not, the state says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.ack_queue import AckQueue
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.routing import dead_letters
from mqtt_broker.core.routing.router import Router
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.storage import StorageService
from mqtt_broker.server.services.streams import StreamService
from sessions.journal import records
from sessions.journal.journal import Journal
from sessions.messages.outbox import Outboxes
from sessions.outbound import Outbound
from sessions.store import pager, worker
from sessions.store.applier import JournalApplier
from sessions.store.store import Store
from sessions.store.writer import Writer
from tests.core.peers import V311, publish, subscribe
from tests.server.running import Running

CALLS: Final[tuple[tuple[Any, str], ...]] = (
    (Broker, "flush"),
    (Outboxes, "write"),
    (Broker, "tick"),
    (Broker, "on_committed"),
    (Broker, "on_folded"),
    (Connection, "_leave"),
    (Broker, "on_store_state"),
    (AckQueue, "release_ready"),
    (Connection, "end"),
    (Turn, "end_now"),
    (dead_letters, "publish_all"),
    (StorageService, "after_turn"),
    (StorageService, "_flush"),
    (StorageService, "_end_linger"),
    (StorageService, "_figures"),
    (Journal, "flush"),
    (Journal, "on_committed"),
    (Journal, "on_folded"),
    (Journal, "drop_settled"),
    (Outbound, "deliver"),
    (Outbound, "pump"),
    (Outbound, "on_page"),
    (Store, "submit"),
    (Store, "page"),
    (Store, "_committed"),
    (Store, "_count_folded"),
    (StreamService, "on_committed"),
    (Writer, "_commit"),
    (Writer, "_gather"),
    (Writer, "_sort_in"),
    (Writer, "_tell"),
    (Writer, "submit"),
    (JournalApplier, "apply_some"),
    (JournalApplier, "_report"),
    (JournalApplier, "_read"),
    (pager.Pager, "_read"),
    (worker.Worker, "attempt"),
    (worker.Worker, "_set_state"),
    (Router, "deliver"),
    (records, "seal"),
    (records, "encode_delivered"),
)  # fmt: skip


class Faults:
    """Raises in the n-th call of one function, and again in some that follow."""

    def __init__(self, act: Callable[..., Any], nth: int, error: type[Exception]) -> None:
        self.act = act
        self.nth = nth
        self.error = error
        self.calls = 0
        self.is_armed = False
        self._lock = threading.Lock()

    def wrapped(self) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.is_armed:
                with self._lock:
                    self.calls += 1
                    is_due = self.calls == self.nth
                if is_due:
                    raise self.error("a mistake")
            return self.act(*args, **options)

        return call


def config(directory: Path) -> Config:
    return Config(data_dir=str(directory), durability="commit")


def until_acknowledged(broker: Running, topic: str, payload: bytes) -> None:
    """What a client does: it sends again until it is answered."""
    for _ in range(40):
        with (
            contextlib.suppress(OSError, EOFError, AssertionError),
            broker.client("publisher", V311, clean=True) as client,
        ):
            client.sock.settimeout(0.5)
            client.send(publish(topic, payload, qos=1, version=V311))
            if client.packet() == b"\x40\x02\x00\x01":
                return
    pytest.fail(
        f"{payload!r} is never acknowledged: {broker.server.broker.backpressure.store_state}"
    )


def received(broker: Running, count: int) -> set[bytes]:
    """What waits for the client that was away; it comes until it has all."""
    found: set[bytes] = set()
    for _ in range(40):
        with (
            contextlib.suppress(OSError, EOFError, AssertionError),
            broker.client("away", V311, clean=False) as client,
        ):
            client.sock.settimeout(0.5)
            while len(found) < count:
                packet = client.packet()
                if packet[0] >> 4 == 3:
                    found.add(packet[7:])  # behind two lengths, the topic and the id
                    client.send(b"\x40\x02" + packet[5:7])
        if len(found) >= count:
            break
    return found


def examine(directory: Path, owner: Any, name: str, nth: int, error: type[Exception]) -> int:
    faults = Faults(getattr(owner, name), nth, error)
    sent = [b"%03d" % number for number in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, faults.wrapped())
        with Running(config=config(directory), dead_letters="all") as broker:
            with broker.client("away", V311, clean=False) as client:
                client.send(subscribe(V311, "t", qos=1))
                assert client.packet()[0] == 0x90
            faults.is_armed = True
            for payload in sent[:3]:
                until_acknowledged(broker, "t", payload)
            store = broker.server.storage.store  # type: ignore[union-attr]
            store.apply_soon()
            for payload in sent[3:]:
                until_acknowledged(broker, "t", payload)
            broker.ask(lambda: None)
            faults.is_armed = False
            broker.wait_until(lambda: not broker.server.broker.backpressure.store_state)
        with Running(config=config(directory)) as broker:
            assert received(broker, len(sent)) >= set(sent)
    return faults.calls


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RETRY_S", 0.001)
    monkeypatch.setattr(worker, "RETRY_S_MAX", 0.02)
    monkeypatch.setattr("mqtt_broker.server.services.storage.RETRY_S", 0.02)


def test_each_call_fails_in_one_broker(tmp_path: Path) -> None:
    sent: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        found = [Faults(getattr(owner, name), 1, ValueError) for owner, name in CALLS]
        for faults, (owner, name) in zip(found, CALLS, strict=True):
            patch.setattr(owner, name, faults.wrapped())
        with Running(config=config(tmp_path), dead_letters="all") as broker:
            with broker.client("away", V311, clean=False) as client:
                client.send(subscribe(V311, "t", qos=1))
                assert client.packet()[0] == 0x90
            for number, faults in enumerate(found):
                faults.is_armed = True
                sent.append(b"%03d" % number)
                until_acknowledged(broker, "t", sent[-1])
            for _ in found:  # what is done once in a while has its turn
                broker.server.storage.store.apply_soon()  # type: ignore[union-attr]
                sent.append(b"%03d" % len(sent))
                until_acknowledged(broker, "t", sent[-1])
            broker.wait_until(lambda: not broker.server.broker.backpressure.store_state)
        with Running(config=config(tmp_path)) as broker:
            assert received(broker, len(sent)) >= set(sent)
    assert sum(faults.calls > 0 for faults in found) > len(CALLS) - 8


def test_a_turn_that_always_fails_is_tried_again_by_one_timer(tmp_path: Path) -> None:
    with Running(config=config(tmp_path)) as broker:
        server, made = broker.server, []

        def call_later(delay: float, act: Any) -> object:
            made.append((delay, act))
            return server.loop.call_soon(int)

        def fail_often() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server.loop, "call_later", call_later)
                for _ in range(10):
                    server.turn.try_again(ValueError("a mistake"))

        broker.ask(fail_often)
        assert len(made) == 1
        broker.ask(made[0][1])
        broker.ask(fail_often)
        assert len(made) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name"), CALLS, ids=[f"{getattr(o, '__name__', o)}.{n}" for o, n in CALLS]
)
@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_the_nth_call_fails(tmp_path: Path, owner: Any, name: str, error: type[Exception]) -> None:
    for nth in range(1, 12):
        if examine(tmp_path / str(nth), owner, name, nth, error) < nth:
            break
