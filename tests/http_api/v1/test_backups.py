"""Backups over HTTP: of a broker that runs, followed to the end, and refused in one line."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.backup import take
from mqtt_broker.backup.manifest import Manifest
from mqtt_broker.backup.restore import verify
from mqtt_broker.http_api.request.access import OPERATOR, ApiToken, Credentials, digest_of
from mqtt_broker.http_api.v1.backups import ROOT
from mqtt_broker.testing import ThreadedBroker
from tests.http_api.brokers import LogBroker, Serving

LOOK_S: Final = 0.05


class Http:
    """Requests to a broker that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def until_ended(self, name: str) -> Any:
        while True:
            status, found = self.ask("GET", f"{ROOT}/{name}")
            assert status == 200
            if found["state"] != "running":
                return found
            time.sleep(LOOK_S)  # or there are too many requests a second


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Http]:
    with ThreadedBroker(
        data_dir=tmp_path / "data", durability="commit", http="127.0.0.1:0"
    ) as broker:
        yield Http(broker.http_url)


def test_a_backup_is_made_and_listed(http: Http, tmp_path: Path) -> None:
    status, begun = http.ask("POST", ROOT, {"directory": "monday"})
    assert status == 202 and begun["id"] == "monday"
    found = http.until_ended("monday")
    assert found["state"] == "done" and found["bytes"] and found["created_at"]
    verify(Path(found["directory"]))
    http.until_ended(http.ask("POST", ROOT)[1]["id"])
    http.until_ended(http.ask("POST", ROOT, {"directory": str(tmp_path / "x")})[1]["id"])
    status, listed = http.ask("GET", f"{ROOT}?limit=2")
    assert listed["total"] == 3 and listed["items"][0]["id"] == "x"
    status, listed = http.ask("GET", f"{ROOT}?limit=2&cursor={listed['next']}")
    assert [one["id"] for one in listed["items"]] == ["monday"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"directory": "a/b"}, 409, "expected a name without '/'"),
        ({"directory": "/nowhere/at/all"}, 409, "is not a directory: make it first"),
        ({"directory": "x" * 5_000}, 400, "directory"),
        ({"directory": 1}, 400, "directory"),
        ({"where": "x"}, 400, "where"),
        ({"directory": "x\0"}, 409, "U+0000"),
    ],
)
def test_bodies_that_are_refused(http: Http, body: object, status: int, said: str) -> None:
    found, problem = http.ask("POST", ROOT, body)
    assert found == status and said in problem["detail"] and "\n" not in problem["detail"]
    assert http.ask("GET", ROOT)[1]["items"] == []


def test_one_at_a_time(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go = threading.Event()
    real = take.fill

    def fill(*arguments: Any) -> Manifest:
        assert may_go.wait(30)
        return real(*arguments)

    monkeypatch.setattr(take, "fill", fill)
    assert http.ask("POST", ROOT, {"directory": "monday"})[0] == 202
    status, problem = http.ask("POST", ROOT, {"directory": "tuesday"})
    assert status == 409 and "is being made: wait for its end" in problem["detail"]
    may_go.set()
    assert http.until_ended("monday")["state"] == "done"
    assert http.ask("GET", f"{ROOT}/tuesday")[0] == 404


def test_a_broker_in_memory_has_nothing_to_back_up() -> None:
    with ThreadedBroker(http="127.0.0.1:0") as broker:
        status, problem = Http(broker.http_url).ask("POST", ROOT)
    assert status == 409 and "it keeps everything in memory" in problem["detail"]


def test_paths_are_for_admins(broker: LogBroker) -> None:
    known = Credentials([ApiToken("o", digest_of("to"), OPERATOR)])
    with Serving(broker, None, credentials=lambda: known) as http:
        for directory, status in (("/srv/x", 403), ("x", 409)):
            found = http.ask(
                "POST", ROOT, {"directory": directory}, headers={"Authorization": "Bearer to"}
            )
            assert found.status == status
