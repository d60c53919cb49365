"""`fleetmq ctl listener`: what it sends to the broker, and what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqtt_broker.cli.ctl_listeners import settings_of
from mqtt_broker.cli.errors import UsageError
from tests.cli.fake_api import Ctl, problem

FOUND = {"name": "spare", "url": "127.0.0.1:1884", "after_restart": "gone"}


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["name=spare", "port=1884"], {"name": "spare", "port": 1884}),
        (["path=/run/fleetmq.sock"], {"path": "/run/fleetmq.sock"}),
        (["tls.cert=a.pem", "tls.key=b=c"], {"tls": {"cert": "a.pem", "key": "b=c"}}),
        (["websocket=true", "bytes_per_s=1e6"], {"websocket": True, "bytes_per_s": 1e6}),
        (["websocket.origins=['https://a']"], {"websocket": {"origins": ["https://a"]}}),
        (['name="5"', "max_connections="], {"name": "5", "max_connections": None}),
    ],
)
def test_settings(words: list[str], settings: dict[str, Any]) -> None:
    assert settings_of(words) == settings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["port"], "is not KEY=VALUE"),
        (["=1"], "is not KEY=VALUE"),
        (["a.b.c=1"], "is not KEY=VALUE"),
        (["port=1", "port=2"], "port is given twice"),
        (["tls=true", "tls.cert=x"], "tls has a value of its own"),
    ],
)
def test_words_that_are_no_settings(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings_of(words)


def test_one_is_added(ctl: Ctl) -> None:
    ctl.api.answers["POST /listeners"] = FOUND
    code, out, _ = ctl("listener", "add", "name=spare", "port=1884")
    assert code == 0 and ctl.api.last().body == {"name": "spare", "port": 1884}
    assert out == (
        "listens on 127.0.0.1:1884 (until the broker stops: add it to the configuration file to "
        "keep it)\n"
    )
    assert json.loads(ctl("listener", "add", "port=1884", "--json")[1]) == FOUND
    assert "a key has no value" in ctl("listener", "add", "port=")[2]


def test_one_is_changed(ctl: Ctl) -> None:
    ctl.api.answers["PATCH /listeners/127.0.0.1%3A1884"] = FOUND | {"after_restart": "changed"}
    code, out, _ = ctl("listener", "change", "127.0.0.1:1884", "max_connections=", "port=1885")
    assert code == 0 and ctl.api.last().body == {"max_connections": None, "port": 1885}
    assert out.startswith("changed listener '127.0.0.1:1884', 127.0.0.1:1884 (until the broker")
    ctl.api.answers["PATCH /listeners/127.0.0.1%3A1884"] = FOUND | {"after_restart": "same"}
    assert "until" not in ctl("listener", "change", "127.0.0.1:1884", "port=1")[1]
    ctl.api.answers["PATCH /listeners/x"] = problem(400, "port is 0 to 65535")
    code, _, err = ctl("listener", "change", "x", "port=70000")
    assert code == 2 and "port is 0 to 65535" in err


def test_one_is_closed(ctl: Ctl) -> None:
    ctl.api.answers["DELETE /listeners/spare"] = {
        "closed": "spare", "connections": 3, "after_restart": "open",
    }  # fmt: skip
    assert ctl("listener", "close", "spare")[1] == (
        "closed listener 'spare'; 3 connections stay (until the broker stops: the configuration "
        "file has it still)\n"
    )
    assert ctl.api.last().query == {}
    assert "3 connections were disconnected" in ctl("listener", "close", "spare", "--disconnect")[1]
    assert ctl.api.last().query == {"disconnect": "true"}
    assert ctl("listener")[0] == 2
