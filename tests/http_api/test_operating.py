"""The operations of a running broker over HTTP: configuration, reload, log, listeners, health."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.server.config.config import load
from tests.http_api.brokers import Serving
from tests.security.gate import HASHES
from tests.server.running import Running
from tests.server.transports import Files, over_tls

API = "/api/v1"
FILE = """
durability = "memory"
max_keepalive = 100
[[listeners]]
name = "devices"
port = 0
"""


@contextmanager
def serving(tmp_path: Path, text: str = FILE) -> Iterator[tuple[Running, Serving, Path]]:
    path = tmp_path / "f.toml"
    path.write_text(text)
    config = load(str(path), {}, {})
    endpoints = config.endpoints
    with (
        Running(*endpoints, config=config, max_keepalive=100) as broker,
        Serving(ServerInterface(broker.server), None) as http,
    ):
        yield broker, http, path
        assert http.lines == []


def test_the_configuration_in_force_has_its_sources(tmp_path: Path) -> None:
    text = 'http_token = "hunter2"\n' + FILE
    with serving(tmp_path, text) as (_, http, path):
        found = http.get(f"{API}/config")
        assert found.status == 200 and b"hunter2" not in found.body
        values = {one["key"]: one for one in found.json()["values"]}
        assert values["max_keepalive"] == {
            "key": "max_keepalive",
            "value": 100,
            "origin": f"{path}:4",
            "default": 65_535,
            "holds": "for clients that connect from then on",
        }
        assert values["packet_bytes_max"]["holds"] == ""
        [table] = found.json()["tables"]
        assert table["header"] == "[[listeners]]"
        assert table["values"]["name"] == {"value": "devices", "place": f"{path}:6"}
        tag = {"If-None-Match": found.headers["ETag"]}
        assert http.get(f"{API}/config", headers=tag).status == 304


def test_a_reload_says_what_it_did(tmp_path: Path) -> None:
    with serving(tmp_path) as (broker, http, path):
        path.write_text("packet_bytes_max = 100\n" + FILE.replace("100", "60"))
        found = http.ask("POST", f"{API}/reload").json()
        assert [one["key"] for one in found["taken_up"]] == ["max_keepalive"]
        assert [(one["key"], one["value"]) for one in found["needs_restart"]] == [
            ("packet_bytes_max", 100)
        ]
        assert (found["reloaded"], found["failed"], found["pending"]) == (
            [f"configuration {path}"], {}, [],
        )  # fmt: skip
        assert broker.server.broker.settings.max_keepalive == 60
        waiting = http.get(f"{API}/config").json()["needs_restart"]
        assert [one["key"] for one in waiting] == ["packet_bytes_max"]
        path.write_text("nonsense")
        found = http.ask("POST", f"{API}/reload").json()
        assert "not TOML" in found["failed"][f"configuration {path}"]


def test_the_log_is_read_and_its_level_changes(tmp_path: Path) -> None:
    before = logging.getLogger("fleetmq").level
    with serving(tmp_path) as (broker, http, _):
        assert http.get(f"{API}/logs").status == 409  # a program has the log
        broker.ask(broker.server.keep_log)
        assert http.ask("PUT", f"{API}/log-level", {"level": "info"}).json() == {"level": "info"}
        broker.client("pump-7").sock.close()
        broker.wait_until(lambda: not broker.server.broker.clients.connections)
        lines = http.get(f"{API}/logs?q=PUMP-7").json()
        assert [line["fields"]["event"] for line in lines["items"]] == ["connected", "disconnected"]
        last = lines["last"]
        assert http.get(f"{API}/logs?after={last}").json() == {
            "items": [],
            "total": 0,
            "last": last,
        }
        assert http.get(f"{API}/logs?level=error").json()["total"] == 0
        assert http.ask("PUT", f"{API}/log-level", {"level": "loud"}).status == 400
        assert http.ask("PUT", f"{API}/log-level", {"level": "error"}).status == 200
        broker.client("quiet").sock.close()
        assert http.get(f"{API}/logs?q=quiet").json()["total"] == 0
        assert http.get(f"{API}/log-level").json() == {"level": "error"}
    logging.getLogger("fleetmq").setLevel(before)


def test_health_has_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as (_, http, _):
        found = http.get(f"{API}/health").json()
        assert found["status"] == "ok"
        assert [part["name"] for part in found["parts"]] == [
            "store", "log", "loop", "disk", "certificates", "events",
        ]  # fmt: skip
    text = f'data_dir = "{tmp_path}/data"\n' + FILE.replace("memory", "commit")
    with serving(tmp_path, text) as (broker, http, _):
        disk = {"total": 1000 << 30, "used": 0, "free": 50 << 30}
        monkeypatch.setattr(
            "mqtt_broker.http_api.operating.shutil.disk_usage",
            lambda path: type("Usage", (), disk),
        )
        found = http.get(f"{API}/health").json()
        assert found["status"] == "degraded"
        assert "5 % of the disk is free" in json.dumps(found)
        disk["free"] = 1 << 20
        assert http.get(f"{API}/health").json()["status"] == "failing"
        disk["free"] = 500 << 30
        broker.ask(lambda: broker.server.broker.on_store_state("away"))
        found = http.get(f"{API}/health").json()
        assert (found["status"], found["parts"][0]["why"]) == ("failing", "away")
        broker.ask(lambda: broker.server.broker.on_store_state(""))
        recorder = broker.server.flight_recorder
        assert recorder is not None and recorder.event_files is not None
        recorder.event_files.failed = "events: No space left on device"
        found = http.get(f"{API}/health").json()
        assert found["status"] == "degraded"
        assert "events: No space left on device; events of clients" in found["parts"][-1]["why"]
        assert b"fleetmq_events_lost_total 0.0" in http.get("/metrics").body


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


def test_listeners_come_change_and_go(tmp_path: Path) -> None:
    with serving(tmp_path) as (broker, http, _):
        [first] = http.get(f"{API}/listeners").json()["items"]
        assert (first["name"], first["connections"], first["is_from_file"]) == ("devices", 0, True)
        added = http.ask("POST", f"{API}/listeners", {"name": "new/one", "port": 0})
        assert added.status == 201
        port = added.json()["port"]
        assert connects(port) and not added.json()["is_from_file"]
        assert (first["after_restart"], added.json()["after_restart"]) == ("same", "gone")
        client = broker.client("c")  # of the first
        broker.bound.append(broker.server.listeners[1].endpoint)
        where = f"{API}/listeners/new%2Fone"
        shown = http.get(where)
        changed = http.ask(
            "PATCH", where, {"max_connections": 1}, headers={"If-Match": shown.headers["ETag"]}
        )
        assert changed.json()["settings"] == {
            "name": "new/one", "host": "127.0.0.1", "port": port, "max_connections": 1,
        }  # fmt: skip
        stale = http.ask("PATCH", where, {"port": 1}, headers={"If-Match": shown.headers["ETag"]})
        assert stale.status == 412
        assert connects(port)
        assert http.ask("PATCH", where, {"max_connections": None}).json()["settings"] == {
            "name": "new/one", "host": "127.0.0.1", "port": port,
        }  # fmt: skip
        assert http.ask("DELETE", where).json()["closed"] == "new/one"
        assert not connects(port)
        assert http.get(where).status == 404
        closed = http.ask("DELETE", f"{API}/listeners/devices?disconnect=true")
        assert closed.json() == {
            "closed": "devices", "connections": 1, "after_restart": "open",
        }  # fmt: skip
        assert client.packet()[0] == 0xE0
        client.sock.close()
        assert http.get(f"{API}/listeners").json() == {"items": [], "total": 0}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"port": 70_000}, "port is 0 to 65535"),
        ({"port": "x"}, "port is a whole number"),
        ({"speed": 1}, "unknown key speed"),
        ({"name": "devices", "port": 0}, "a listener is named 'devices' already"),
        ({"host": "0.0.0.0", "port": 0}, "can be reached from other machines"),
        ({"port": 0, "tls": {"cert": "missing.pem", "key": "missing.key"}}, "missing.pem"),
        ({"host": "192.0.2.1", "port": 0, "allow_anonymous": True}, "cannot listen on"),
        ([], "the body"),
    ],
)
def test_a_listener_that_cannot_be(tmp_path: Path, settings: Any, why: str) -> None:
    with serving(tmp_path) as (broker, http, _):
        found = http.ask("POST", f"{API}/listeners", settings)
        assert found.status == 400 and why in found.json()["text"], found.body
        assert len(broker.server.listeners) == 1
        before = http.get(f"{API}/listeners/devices").json()
        if isinstance(settings, dict) and "name" not in settings:
            assert http.ask("PATCH", f"{API}/listeners/devices", settings).status == 400
            assert http.get(f"{API}/listeners/devices").json() == before
            assert connects(before["port"])


def test_a_certificate_is_shown_and_watched(tmp_path: Path) -> None:
    files = Files(tmp_path)
    rules = {"cert": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.key")}
    with serving(tmp_path) as (broker, http, _):
        made = http.ask("POST", f"{API}/listeners", {"name": "tls", "port": 0, "tls": rules})
        assert made.status == 201, made.body
        changed = http.ask("PATCH", f"{API}/listeners/tls", {"max_connections": 9})
        assert changed.json()["settings"]["tls"] == rules
        assert "TLS of tls" in broker.server.reload.watched
        with over_tls(made.json()["port"], files.ca):
            pass
        [item] = http.get(f"{API}/certificates").json()["items"]
        assert (item["listener"], item["key"]) == ("tls", "cert")
        assert item["begins_at"] < time.time() < item["ends_at"]
        parts = {part["name"]: part for part in http.get(f"{API}/health").json()["parts"]}
        ends = files.server.certificate.not_valid_after_utc.timestamp()
        left = parts["certificates"]["figures"]["first_ends_in_s"]
        assert abs(left - (ends - time.time())) < 60
        http.ask("DELETE", f"{API}/listeners/tls")
        assert "TLS of tls" not in broker.server.reload.watched


RULES = """
[[auth]]
type = "password_file"
file = "USERS"
[[acl]]
permit = "allow"
topics = ["ops/#"]
roles = ["ops"]
[[acl]]
permit = "deny"
action = "publish"
topics = ["d/%u/secret"]
"""


def test_the_running_broker_explains(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{HASHES['ann']}:ops\n")
    with serving(tmp_path, FILE + RULES.replace("USERS", str(users))) as (_, http, path):

        def explain(**question: Any) -> Any:
            return http.ask("POST", f"{API}/rules/explain", question).json()

        found = explain(topic="ops/x", user="ann", client="c")  # its role is in the password file
        assert found["is_allowed"] and found["roles"] == ["ops"]
        assert found["rule"] == f"{path}:11" and found["text"] == "allow all ops/# for role ops"
        assert not explain(topic="ops/x", user="bob")["is_allowed"]
        assert explain(topic="ops/x", user="bob", roles=["ops"])["is_allowed"]
        denied = explain(topic="d/ann/secret", user="ann")
        assert (denied["is_allowed"], denied["rule"]) == (False, f"{path}:15")
        assert not explain(topic="ops/+", user="bob", action="subscribe")["is_allowed"]
        for wrong in ({"topic": "a/#"}, {"topic": "x", "address": "here"}, {"topic": ""}, {}):
            assert explain(**wrong)["status"] == 400
    with serving(tmp_path) as (_, http, _):
        found = http.ask("POST", f"{API}/rules/explain", {"topic": "x"}).json()
        assert found["is_allowed"] and found["why"] == "this broker has no access control"
