"""Names in paths, as real clients send them: none of them gets another name."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqtt_broker.cli.api_client import Api, escaped
from mqtt_broker.http_api.request.path_names import name_of
from mqtt_broker.http_api.server_interface import ServerInterface
from tests.http_api.brokers import PATIENCE_S, Serving
from tests.server.running import Running

IDS = (".", "..", ".~", "..~", "..~~", "...", "~", "a/../b", "%2e%2e", "é\u202e", "<b>", "a b?c#d")


@given(st.text(max_size=20) | st.text(".~", max_size=6))
@example("..")
@example(".~")
def test_each_name_has_a_spelling_of_its_own(name: str) -> None:
    assert unquote(escaped(name)) not in (".", "..")
    assert name_of(unquote(escaped(name))) == name


def test_a_name_that_arrives_as_it_is() -> None:
    assert [name_of(part) for part in (".", "..", "a~", "~", "", "...~")] == [
        ".", "..", "a~", "~", "", "...~",
    ]  # fmt: skip


def by_urllib(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return str(json.load(answer)["id"])


def by_curl(url: str) -> str:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("no curl")
    done = subprocess.run([curl, "-sS", "-g", url], capture_output=True, check=True)
    return str(json.loads(done.stdout)["id"])


def by_ctl(url: str) -> str:
    root, _, part = url.partition("/api/v1")
    return str(Api(root).get(part)["id"])


@pytest.mark.parametrize("ask", [by_urllib, by_curl, by_ctl])
def test_real_clients_find_each(ask: Callable[[str], str], tmp_path: Path) -> None:
    with Running() as broker, Serving(ServerInterface(broker.server), None) as http:
        clients = [broker.client(client_id) for client_id in IDS]
        for client_id in IDS:
            assert ask(f"{http.url}/api/v1/clients/{escaped(client_id)}") == client_id
        for client in clients:
            client.sock.close()
