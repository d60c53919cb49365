"""Nothing that clients of the HTTP API say, and nothing that a stored stream says, is imported or
called: functions and classes are named in the configuration alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote

import pytest
from aiohttp import web

from mqtt_broker.http_api import http_server
from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.server.config.config import Config, StartError, load
from mqtt_broker.server.services.extensions import partition_functions
from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.stream_settings import StreamSettings
from tests.core.peers import publish
from tests.http_api.brokers import Serving
from tests.server.running import Running

TRAP: Final = "fleetmq_trap"
FUNCTION: Final = f"{TRAP}.partition_of"
# A function, a class, a sink, a file, a database: whatever is imported somewhere by its name.
NAMES: Final = (
    FUNCTION, f"{TRAP}:Class", f"python:{TRAP}:Sink", f"{TRAP}/__init__.py", f"sqlite+{TRAP}://",
    f"json:$.{TRAP}", f"property:{TRAP}", TRAP,
)  # fmt: skip
STREAM: Final = StreamSettings("telemetry", "t/#", partitions=4)


class Trap:
    """Finds the module, and notes that somebody asked for it, or called what is in it."""

    def __init__(self) -> None:
        self.sprung: list[str] = []

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] != TRAP:
            return None
        self.sprung.append(f"import {name}")
        return spec_from_loader(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        setattr(module, "partition_of", self.partition_of)  # noqa: B010 (mypy)
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass

    def partition_of(self, topic: str, client: str, payload: bytes, user: object) -> int:
        self.sprung.append(f"call {payload.decode()}")
        return int(payload) % 4


@pytest.fixture
def trap() -> Iterator[Trap]:
    found = Trap()
    sys.meta_path.insert(0, found)
    yield found
    sys.meta_path.remove(found)
    sys.modules.pop(TRAP, None)


def test_the_trap_is_one(trap: Trap) -> None:
    found = partition_functions(Config(partition_functions=(FUNCTION,)))
    assert found[FUNCTION]("t", "c", b"6", ()) == 2
    assert trap.sprung == [f"import {TRAP}", "call 6"]


_HOLE: Final = re.compile(r"\{[^}]*\}")


class Walk:
    """Asks every route of the application with these names in every place that it takes."""

    def __init__(
        self, http: Serving, routes: Sequence[tuple[str, str]], names: Sequence[str]
    ) -> None:
        self.http = http
        self.names = names
        self.connection = http.connect()
        self.routes = routes
        self.asked = 0
        self.keys: set[str] = set()

    def ask(self, method: str, path: str, body: object = None) -> str:
        self.asked += 1
        reply = self.http.ask(method, path, body, over=self.connection)
        assert reply.status < 500, (method, path, body, reply)
        return reply.body.decode()

    def known(self, said: str) -> list[str]:
        """The names that a refusal of an unknown one lists."""
        listed = re.search(r"expected (?:one of )?([a-z_, ]+)\"", said)
        found = listed[1].split(", ") if listed else []
        self.keys.update(found)
        return found

    def go(self) -> None:
        for method, pattern in self.routes:
            stream = pattern.replace("{name}", STREAM.name).replace("{partition}", "p0")
            paths = {name: _HOLE.sub(quote(name, safe=""), stream) for name in self.names}
            keys = self.known(self.ask(method, f"{paths[self.names[0]]}?x-unknown=1"))
            fields = []
            if method in ("POST", "PATCH", "PUT"):
                fields = self.known(self.ask(method, paths[self.names[0]], {"x-unknown": 1}))
            for name, path in paths.items():
                self.ask(method, _HOLE.sub(quote(name, safe=""), pattern))
                for key in keys:
                    self.ask(method, f"{path}?{key}={quote(name, safe='')}")
                self.bodies(method, path, name, fields)
        self.connection.close()

    def bodies(self, method: str, path: str, name: str, fields: list[str]) -> None:
        for key in fields:
            whole = {"name": "made", "kind": "client", "value": "x", "partitions": 4}
            for value in (name, [name], {name: name, "$ref": name, "type": name}):
                self.ask(method, path, {key: value})
                self.ask(method, path, {**whole, key: value})


@pytest.mark.parametrize(
    "names", [NAMES[:2], pytest.param(NAMES, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_no_request_imports_or_calls_what_it_names(
    tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    found: list[tuple[str, str]] = []
    make = http_server.make_application

    def noted(site: Any) -> web.Application:
        application = make(site)
        for route in application.router.routes():
            assert route.resource is not None
            found.append((route.method, route.resource.canonical))
        return application

    monkeypatch.setattr(http_server, "make_application", noted)
    config = Config(streams=(STREAM,), data_dir=str(tmp_path))
    with (
        Running(config=config) as broker,
        Serving(ServerInterface(broker.server), tmp_path / "streams") as http,
        broker.client("p") as client,
    ):
        http.get("/healthz")
        asked = [(method, path) for method, path in found if method != "HEAD"]  # GET without a body
        walk = Walk(http, [(method, path) for method, path in asked if method != "DELETE"], names)
        walk.go()
        keys, count = walk.keys, walk.asked
        for number in range(8):
            client.send(publish("t/a", b"%d" % number, qos=1, packet_id=number + 1))
            client.packet()
        rest = [(method, path) for method, path in asked if method in ("GET", "DELETE")]
        walk = Walk(http, rest, names)
        walk.go()
        assert count > 375 * len(names) and walk.asked > 37 * len(names)
        assert {"partition_by", "schema", "before", "to", "kind", "at", "epoch"} <= keys
    assert trap.sprung == []


@pytest.mark.parametrize("key", ["partition_by", "filter", "event_time", "sent_time", "schema"])
def test_no_stored_setting_is_imported(tmp_path: Path, trap: Trap, key: str) -> None:
    config = Config(streams=(STREAM,), data_dir=str(tmp_path))
    with Running(config=config):
        pass
    path = tmp_path / "streams" / STREAM.name / file_names.METADATA
    before = path.read_text()
    for name in NAMES:
        value: object = {"$ref": name, "type": name} if key == "schema" else name
        path.write_text(json.dumps({**json.loads(before), key: value}))
        other = Config(streams=(StreamSettings("other", "o"),), data_dir=str(tmp_path))
        try:
            with Running(config=other) as broker, broker.client("p") as client:
                for number in range(8):
                    client.send(publish("t/a", b"%d" % number, qos=1, packet_id=number + 1))
                    client.packet()
        except StartError as error:  # refused, which is as well
            assert key in str(error)  # noqa: PT017
    assert trap.sprung == []


def named(tmp_path: Path, **changes: Any) -> Config:
    path = tmp_path / "f.toml"
    path.write_text(
        f'partition_functions = ["{FUNCTION}"]\ndata_dir = "{tmp_path}"\n[[streams]]\n'
        'name = "telemetry"\nfilter = "t/#"\npartitions = 4\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in changes.items())
    )
    return load(str(path), {}, {})


def test_the_file_names_functions_and_requests_choose_among_them(
    tmp_path: Path, trap: Trap, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"name": "made", "filter": "t/#", "partitions": 4, "partition_by": FUNCTION}
    other = "py_compile.compile"
    with (
        Running(config=named(tmp_path)) as broker,
        Serving(ServerInterface(broker.server), tmp_path / "streams") as http,
        broker.client("p") as client,
    ):
        for partition_by in (other, f"{TRAP}.other"):
            asked = settings | {"partition_by": partition_by}
            said = http.ask("POST", "/api/v1/streams", asked)
            assert (said.status, said.json()["error"]) == (400, "Invalid")
            assert said.json()["text"] == (
                f"partition_by: the function {partition_by} is not one of partition_functions in "
                f"the configuration, which has {FUNCTION}"
            )
            asked = {"partition_by": partition_by}
            assert http.ask("PATCH", "/api/v1/streams/telemetry", asked).status == 400
        assert http.ask("POST", "/api/v1/streams", settings).status == 201
        for number in (1, 1, 2):
            client.send(publish("t/a", b"%d" % number, qos=1, packet_id=number))
            client.packet()
        assert http.get("/api/v1/streams/made").json()["ends"] == {
            "p0": 0, "p1": 2, "p2": 1, "p3": 0,
        }  # fmt: skip
    assert trap.sprung == [f"import {TRAP}", "call 1", "call 1", "call 2"]
    assert not caplog.records


def test_a_stream_whose_function_is_not_named_any_more_goes_by_client(
    tmp_path: Path, trap: Trap, caplog: pytest.LogCaptureFixture
) -> None:
    with Running(config=named(tmp_path, partition_by=FUNCTION)):
        pass
    trap.sprung.clear()
    config = Config(streams=(StreamSettings("other", "o"),), data_dir=str(tmp_path))
    with (
        Running(config=config) as broker,
        Serving(ServerInterface(broker.server), tmp_path / "streams") as http,
        broker.client("p") as client,
    ):
        for number in range(4):
            client.send(publish("t/a", b"%d" % number, qos=1, packet_id=number + 1))
            client.packet()
        client.send(publish("t/a", b"9") * 3, publish("t/a", b"5", qos=1, packet_id=9))
        client.packet()
        ends = http.get("/api/v1/streams/telemetry").json()["ends"]
        assert sorted(ends.values()) == [0, 0, 0, 8]
        assert b'partition_failures_total{stream="telemetry"} 8.0' in http.get("/metrics").body
        figures = broker.server.broker.runtime.metrics.read("log")
        assert figures["streams/telemetry/partition_failures"] == 8
        # What is not about the function can be changed, and what it is now can be said again.
        same = {"retain_s": 60, "partition_by": FUNCTION}
        assert http.ask("PATCH", "/api/v1/streams/telemetry", same).status == 200
        assert http.ask("PATCH", "/api/v1/streams/other", {"partition_by": FUNCTION}).status == 400
    assert trap.sprung == []
    [line] = [one.getMessage() for one in caplog.records if "partition" in one.getMessage()]
    assert line == (
        f"telemetry log: stream 'telemetry': its messages go by client id: {FUNCTION} is not one "
        "of partition_functions in the configuration"
    )
