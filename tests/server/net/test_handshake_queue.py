"""Many who come at once, and those who are connected meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.server.net import handshake_queue
from tests.core.peers import connect, publish, subscribe
from tests.server.running import LOOPS, PATIENCE_S, Raw, Running

CROWD = 40
PING = b"\xc0\x00"
PONG = b"\xd0\x00"


@contextlib.contextmanager
def held(broker: Running) -> Iterator[None]:
    """The loop stands still, so that all that is sent is there when the next turn begins."""
    stands, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        stands.set()
        assert goes_on.wait(PATIENCE_S)

    broker.loop.call_soon_threadsafe(wait)
    assert stands.wait(PATIENCE_S)
    try:
        yield
    finally:
        goes_on.set()


def crowd(broker: Running) -> list[Raw]:
    """Connected sockets that have said nothing yet."""
    before = broker.ask(lambda: len(broker.server.broker.links))
    found = [broker.raw() for _ in range(CROWD)]
    broker.wait_until(lambda: len(broker.server.broker.links) == before + CROWD)
    return found


def client(broker: Running, client_id: str) -> Raw:
    raw = broker.raw()
    raw.send(connect(client_id))
    assert raw.packet()[0] == 0x20
    return raw


@pytest.mark.parametrize("loop", LOOPS)
def test_who_is_connected_does_not_wait_for_those_who_come(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is nothing here: one newcomer a turn, whatever the machine is like."""
    monkeypatch.setattr(handshake_queue, "SHARE_S", 0.0)
    with Running(loop=loop) as broker, client(broker, "in") as witness:
        witness.send(subscribe(V5, "#"))
        assert witness.packet()[0] == 0x90
        newcomers = crowd(broker)
        with held(broker):
            for number, raw in enumerate(newcomers):
                raw.send(connect(f"c{number}") + publish("a", b"newcomer"))
            witness.send(publish("a", b"connected"))
        came = [witness.packet().rpartition(b"\x01a\x00")[2] for _ in range(CROWD + 1)]
        assert came.index(b"connected") <= 1
        for raw in newcomers:  # and each of them comes in
            assert raw.packet()[0] == 0x20
            raw.sock.close()


def test_those_who_left_the_line_cost_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_queue, "SHARE_S", 0.0)
    with Running() as broker, client(broker, "in") as witness:
        newcomers = crowd(broker)
        links: list[Any] = broker.ask(lambda: [one.link for one in broker.server.broker.links])
        with held(broker):
            for number, raw in enumerate(newcomers):
                raw.send(connect(f"c{number}"))
            for raw in newcomers[::2]:
                raw.sock.close()
        for raw in newcomers[1::2]:
            assert raw.packet()[0] == 0x20
        broker.wait_until(lambda: len(broker.server.broker.links) == 1 + CROWD // 2)
        assert not broker.ask(lambda: any(link.is_queued for link in links))
        witness.send(PING)
        assert witness.packet() == PONG
        for raw in newcomers[1::2]:
            raw.send(PING)
            assert raw.packet() == PONG
            raw.sock.close()


def test_stopping_while_some_stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_queue, "SHARE_S", 0.0)
    with Running() as broker:
        newcomers = crowd(broker)
        with held(broker):
            for number, raw in enumerate(newcomers):
                raw.send(connect(f"c{number}"))
            broker.stop_soon()
        for raw in newcomers:
            raw.rest()
            raw.sock.close()


def test_one_who_comes_alone_does_not_stand_in_line() -> None:
    with Running() as broker:
        server = broker.server
        assert broker.ask(server.net.handshakes.has_time)
        with client(broker, "c") as one:
            links: list[Any] = broker.ask(lambda: [one.link for one in server.broker.links])
            assert not any(link.is_queued for link in links)
            one.send(PING)
            assert one.packet() == PONG
