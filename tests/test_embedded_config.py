"""The configuration of an embedded broker: checked as a file is, and with all of its keys."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.core.interfaces.access import OpenAccess
from mqtt_broker.server.config.config import load
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.testing import Broker, ThreadedBroker

WRONG: dict[str, dict[str, Any]] = {
    "receive_maximum = '5'": {"receive_maximum": "5"},
    "receive_maximum = 0": {"receive_maximum": 0},
    "max_keepalive = true": {"max_keepalive": True},
    "recieve_maximum = 5": {"recieve_maximum": 5},
    "queue_full = 'explode'": {"queue_full": "explode"},
    "durability = 'hope'": {"durability": "hope"},
    "[[listeners]]\nprot = 1": {"listeners": [{"prot": 1}]},
    "[[streams]]\nname = 's'\nfilters = '#'": {"streams": [{"name": "s", "filters": "#"}]},
    "[[auth]]\ntype = 'nothing'": {"auth": [{"type": "nothing"}]},
    "[security]\nban_file = 'x'": {"security": {"ban_file": "x"}},
    "auth = []": {"auth": []},
    "[[topics]]\nfilter = 'a'\ndurability = 'x'": {"topics": [{"filter": "a", "durability": "x"}]},
}


@pytest.mark.parametrize("kind", [Broker, ThreadedBroker])
@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_refused_at_construction_in_the_words_of_the_file(
    tmp_path: Path, kind: Any, text: str
) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as of_file:
        load(str(path), {}, {})
    with pytest.raises(ConfigError) as of_program:
        kind(**WRONG[text])
    words = str(of_file.value).removeprefix(str(path)).split(": ", 1)[1]
    assert str(of_program.value) == words


def test_what_others_can_reach_needs_the_word() -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        Broker(host="0.0.0.0")
    Broker(host="0.0.0.0", allow_anonymous=True)
    Broker(host="0.0.0.0", access=OpenAccess())


def test_what_is_kept_needs_a_directory(tmp_path: Path) -> None:
    streams = [{"name": "s", "filter": "#"}]
    with pytest.raises(ConfigError, match="topics: the state needs a place: give data_dir"):
        Broker(topics=[{"filter": "a", "durability": "commit"}])
    with pytest.raises(ConfigError, match="durability: the state needs a place"):
        Broker(durability="commit")
    Broker(streams=streams, data_dir=str(tmp_path))
    Broker(dead_letters="all")  # messages, without a stream that keeps them


def test_every_key_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(
            data_dir=str(tmp_path / "state"),
            durability="relaxed",
            unix_socket=str(tmp_path / "socket"),
            log_level="error",
            http="127.0.0.1:0",
            http_token="t",
            recover=True,
            listeners=[{"name": "ws", "port": 0, "websocket": True}],
            topics=[{"filter": "fast/#", "durability": "memory"}],
            streams=[{"name": "s", "filter": "t/#", "partitions": 2}],
            acl=[{"permit": "allow", "topics": ["t/#"]}],
            client_limits=[{"messages_per_s": 1e6}],
            security={"audit_connects": True},
        )
        async with broker, broker.subscribe("t/#", qos=1) as messages:
            await broker.publish("t/1", b"x", qos=1)
            assert (await anext(messages)).payload == b"x"
            loop = asyncio.get_running_loop()
            text = await loop.run_in_executor(None, _fetch, f"{broker.http_url}/healthz")
            assert text
            names = [one.endpoint.rules.name for one in broker.server.listeners]
            assert names == ["", "ws", ""]
            assert broker.port == broker.server.listeners[0].endpoint.port

    before = logging.getLogger("fleetmq").level
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("fleetmq").setLevel(before)


def _fetch(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": "Bearer t"})
    with urllib.request.urlopen(request) as answer:
        found: bytes = answer.read()
    return found
