"""Limits of a listener and of its clients, from the configuration file to the socket."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from mqtt_broker.codec.constants import V5
from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules, WebSocketRules
from tests.core.peers import connect, publish, subscribe
from tests.server.running import Raw, Running

TWO = """
packet_bytes_max = 5_000
[[listeners]]
name = "outside"
port = 0
limits = { packet_bytes_max = 300, subscriptions_max = 1, retain_available = false }
[[listeners]]
name = "inside"
port = 0
limits = { packet_bytes_max = 9_000 }
"""


def read(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "fleetmq.toml"
    path.write_text(text)
    return load(str(path), {}, {"durability": "memory"})


def dial(broker: Running, listener: int) -> Raw:
    return Raw(socket.create_connection(("127.0.0.1", broker.bound[listener].port), 5))


def enter(raw: Raw, client_id: str) -> bytes:
    raw.send(connect(client_id))
    answer = raw.packet()
    assert answer[3] == 0
    return answer


def test_each_listener_has_its_own(tmp_path: Path) -> None:
    config = read(TWO, tmp_path)
    with Running(*config.endpoints, packet_bytes_max=config.settings.packet_bytes_max) as broker:
        outside, inside = dial(broker, 0), dial(broker, 1)
        told = enter(outside, "o")
        assert b"\x27\x00\x00\x01\x2c" in told and b"\x25\x00" in told  # 300; nothing retained
        assert b"\x27\x00\x00\x13\x88" in enter(inside, "i")  # 5,000: the broker's is stricter
        for raw, code in ((outside, 0x97), (inside, 0)):
            raw.send(subscribe(V5, "a", "b"))
            assert raw.packet()[-2:] == bytes([0, code])
        inside.send(publish("a", b"x" * 200), publish("a", b"kept", retain=True))
        assert outside.packet()[-200:] == b"x" * 200 and outside.packet().endswith(b"kept")
        outside.send(publish("a", b"x" * 400))
        assert outside.packet() == b"\xe0\x01\x95" and outside.rest() == b""
        for raw in (outside, inside):
            raw.sock.close()


def test_the_longest_websocket_message_follows(tmp_path: Path) -> None:
    """Nobody makes the broker hold a frame of which no packet could be taken."""
    rules = ListenerRules(websocket=WebSocketRules(), limits=ClientLimits(packet_bytes_max=100))
    with Running(Endpoint("127.0.0.1", 0, rules=rules)) as broker:
        layers = broker.server.listeners[0].layers
        assert layers is not None and layers.packet_bytes_max == 100


def test_connections_a_second(tmp_path: Path) -> None:
    config = read("[[listeners]]\nport = 0\nconnects_per_s = 0.2\n", tmp_path)
    with Running(*config.endpoints) as broker:
        first = dial(broker, 0)
        enter(first, "c")
        with dial(broker, 0) as second, contextlib.suppress(ConnectionError):
            assert second.rest() == b""  # not a word
        broker.wait_until(lambda: broker.refusals == {"listener connects_per_s": 1})
        listener = broker.server.listeners[0]
        assert listener.state.connections == 1
        first.sock.close()


def test_messages_of_all_its_clients(tmp_path: Path) -> None:
    """Together they are slow; who comes elsewhere is not."""
    text = "[[listeners]]\nport = 0\nmessages_per_s = 10\n[[listeners]]\nport = 0\n"
    config = read(text, tmp_path)
    with Running(*config.endpoints) as broker:
        one, two, other = dial(broker, 0), dial(broker, 0), dial(broker, 1)
        for number, raw in enumerate((one, two, other)):
            enter(raw, f"c{number}")
            raw.send(*[publish("t", b"x")] * 8)
        connections = broker.server.broker.connections
        broker.wait_until(lambda: connections["c0"].is_paused or connections["c1"].is_paused)
        broker.wait_until(lambda: broker.server.broker.counters.packets_received[3] == 24)
        assert not connections["c2"].is_paused and connections["c2"].bucket is None
        assert connections["c0"].bucket is not connections["c1"].bucket
        broker.wait_until(lambda: not any(c.is_paused for c in connections.values()))
        for raw in (one, two, other):
            raw.sock.close()


def test_users_and_their_listener(tmp_path: Path) -> None:
    text = TWO + "[[client_limits]]\npacket_bytes_max = 200\ninflight_max = 7\n"
    with Running(*(config := read(text, tmp_path)).endpoints, config=config) as broker:
        raw = dial(broker, 1)
        assert b"\x27\x00\x00\x00\xc8" in enter(raw, "i")
        connection = broker.server.broker.connections["i"]
        assert (connection.limits.inflight_max, connection.limits.subscriptions_max) == (7, 10_000)
        raw.sock.close()
