"""The log of clients where no server words it: refusals alone, as plain lines."""

from __future__ import annotations

from mqtt_broker.core.interfaces.client_log import RefusalLog
from tests.core.peers import World, connect


def test_without_a_server_refusals_are_plain_lines() -> None:
    lines: list[str] = []
    log = RefusalLog(lines.append)
    log.connected("a", None, "x", "", 5, 0, is_resumed=False)
    log.disconnected("a", None, "x", "gone", 1.0)
    log.refused("a", None, "x", "", "Banned")
    log.refused("", None, "x", "", "Banned")
    assert lines == ["a (x): refused, Banned", "x: refused, Banned"]


def test_a_refusal_names_the_client() -> None:
    lines: list[str] = []
    world = World(log=lines.append, connections_max=1)
    world.client("first")
    world.peer().send(connect("second"))
    assert lines == ["second (192.0.2.1:1): refused, Server busy"]
