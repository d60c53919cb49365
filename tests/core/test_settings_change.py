"""Settings that change while the broker runs: each live key has its effect, and no other is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Connack
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.live_keys import LIVE
from tests.core.peers import V5, V311, World, connect, publish


def change(world: World, **changes: Any) -> None:
    world.broker.change_settings(dataclasses.replace(world.broker.settings, **changes), world.now)
    world.settle()


def connack(world: World, client_id: str = "c", version: int = V5, **fields: Any) -> Connack:
    peer = world.peer(version)
    peer.send(connect(client_id, version, **fields))
    [answer] = peer.take()[:1]
    assert isinstance(answer, Connack)
    return answer


def keep_alive(world: World) -> object:
    return connack(world, keep_alive=600).properties.get(prop.SERVER_KEEP_ALIVE)


def expiry(world: World) -> object:
    return connack(world, expiry=600).properties.get(prop.SESSION_EXPIRY_INTERVAL)


def one_more(world: World) -> object:
    world.client("first", expiry=60)
    return connack(world, "second").reason


def assigned(world: World) -> object:
    found = connack(world, "").properties.get(prop.ASSIGNED_CLIENT_IDENTIFIER)
    return None if found is None else str(found)[:4]


def no_name(world: World) -> object:
    return connack(world, "", V311).reason


def response(world: World) -> object:
    return world.broker.settings.response_information


def alias(world: World) -> object:
    peer = world.client("c", alias_maximum=10)
    connection = peer.connection
    return connection.outbox.aliases is not None


def large_connect(world: World) -> object:
    peer = world.peer()
    peer.send(connect("c" * 100))
    return peer.is_closed


def timeout(world: World) -> object:
    peer = world.peer()
    world.wait(5.0)
    return peer.is_closed


def events(world: World) -> object:
    watcher = world.client("w")
    watcher.subscribe("$SYS/broker/clients/#")
    watcher.take()
    world.client("c")
    return len(watcher.publishes())


# Key: a value, what is seen without it, and with it, and how to see it.
EFFECTS: dict[str, tuple[Any, object, object, Callable[[World], object]]] = {
    "max_keepalive": (60, None, 60, keep_alive),
    "session_expiry_s_max": (60, None, 60, expiry),
    "connections_max": (1, 0, 0x89, one_more),
    "sessions_max": (1, 0, 0x89, one_more),
    "auto_id_prefix": ("unit", "auto", "unit", assigned),
    "allow_zero_length_clientid": (False, 0, 2, no_name),
    "response_information": ("here", "", "here", response),
    "topic_alias_outbound_max": (0, True, False, alias),
    "connect_bytes_max": (50, False, True, large_connect),
    "connect_timeout_s": (1.0, False, True, timeout),
    "client_events": (True, 0, 1, events),
}
# These are looked at by other parts, with tests of their own.
ELSEWHERE = {
    "log_level",  # tests/server/services/test_config_reload.py
    "log_format",
    "log_connections",
    "sys_log",
    "sys_interval_s",  # below
    "unanswered_s_max",  # tests/server/process/test_watchdog.py
    "loop_late_s_max",
    "redeliveries_max",  # read at every redelivery, below
    "replay_skips_damage",
}


def test_every_live_key_is_examined() -> None:
    assert set(LIVE) == set(EFFECTS) | ELSEWHERE
    assert {key for key in LIVE if "log" not in key} <= {
        field.name for field in dataclasses.fields(Settings)
    }


@pytest.mark.parametrize("key", EFFECTS)
def test_a_live_key_has_its_effect(key: str) -> None:
    value, before, after, see = EFFECTS[key]
    assert see(World()) == before
    world = World()
    change(world, **{key: value})
    assert see(world) == after


def sys_values(world: World) -> int:
    watcher = world.client("w")
    watcher.subscribe("$SYS/broker/uptime")
    found = len(watcher.publishes())
    watcher.drop()
    return found


def test_the_interval_of_sys_changes_at_once() -> None:
    world = World()
    watcher = world.client("w")
    watcher.subscribe("$SYS/broker/uptime")
    world.wait(100)
    assert watcher.publishes() == []  # 0: none
    change(world, sys_interval_s=10)
    world.wait(35)
    assert len(watcher.publishes()) == 4  # at once, and three times more
    change(world, sys_interval_s=3600)  # which publishes, too
    change(world, sys_interval_s=2)  # and does not wait for the hour to be over
    watcher.take()
    world.wait(11)
    assert len(watcher.publishes()) == 5
    change(world, sys_interval_s=0)
    watcher.take()
    world.wait(100)
    assert watcher.publishes() == []


def test_redeliveries_are_those_of_now() -> None:
    world = World(dead_letters="redelivery")
    assert world.broker.redeliveries_max == 5
    change(world, redeliveries_max=7)
    assert world.broker.redeliveries_max == 7


def test_connected_clients_keep_what_they_were_told() -> None:
    world = World()
    peer = world.client("c", keep_alive=600)
    change(world, max_keepalive=1)
    world.wait(500)
    assert not peer.is_closed
    peer.send(publish("t", b"x"))
    assert not peer.is_closed
