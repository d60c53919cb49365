"""Traces over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from mqtt_broker.http_api.request.access import OPERATOR, ApiToken, Credentials, digest_of
from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.http_api.v1.traces import ROOT
from mqtt_broker.testing import ThreadedBroker
from tests.http_api.brokers import Serving
from tests.server.running import Running


class Http:
    def __init__(self, broker: ThreadedBroker) -> None:
        self.broker = broker

    def request(self, method: str, path: str, body: object = None) -> urllib.request.Request:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.broker.http_url}{ROOT}{path}"
        headers = {"Content-Type": "application/json"}
        return urllib.request.Request(url, data, headers, method=method)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.request(method, path, body)) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def served() -> Iterator[Http]:
    with ThreadedBroker(http="127.0.0.1:0") as broker:
        yield Http(broker)


def test_a_trace_is_read_to_its_end(served: Http) -> None:
    status, begun = served.ask("POST", "", {"topic": "a/#", "packets_max": 2, "payloads": True})
    assert status == 201 and begun["topic"] == "a/#"
    with urllib.request.urlopen(served.request("GET", f"/{begun['n']}/packets")) as answer:
        for payload in (b"x", b"y", b"z"):
            served.broker.publish("a/<b>", payload)
        lines = [json.loads(line) for line in answer.read().splitlines()]
    assert [line["payload"] for line in lines] == ["x", "y"]
    status, listed = served.ask("GET", "")
    assert [(one["n"], one["is_over"], one["packets"]) for one in listed["items"]] == [
        (begun["n"], True, 2)
    ]
    assert served.ask("DELETE", f"/{begun['n']}") == (200, {"ended": begun["n"]})
    assert served.ask("DELETE", f"/{begun['n']}")[0] == 404
    assert served.ask("GET", f"/{begun['n']}/packets")[0] == 404


def test_a_trace_ends_when_its_token_is_withdrawn() -> None:
    tokens = [ApiToken(name, digest_of(name), OPERATOR) for name in ("operator", "other")]
    known = Credentials(tokens)
    with (
        Running() as broker,
        Serving(ServerInterface(broker.server), None, credentials=lambda: known) as http,
    ):
        head = {"Authorization": "Bearer operator"}
        assert http.ask("POST", ROOT, {"topic": "#"}, headers=head).status == 201
        near = http.connect()
        near.request("GET", f"{ROOT}/1/packets", headers=head)
        answer = near.getresponse()
        assert answer.status == 200
        known = Credentials(tokens[1:])
        assert answer.read() == b""  # it ends by itself
        near.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "one of client, topic and address"),
        ({"client": "c", "topic": "t"}, "one of client, topic and address"),
        ({"topic": "a/#/b"}, "last level"),
        ({"client": "c", "for_s": 0}, "for_s"),
        ({"client": "c", "packets_max": 0}, "packets_max"),
        ({"client": "c", "colour": "red"}, "colour"),
    ],
)
def test_wrong_traces_are_refused(served: Http, body: object, said: str) -> None:
    status, found = served.ask("POST", "", body)
    assert status == 400
    assert said in found["detail"]


def test_there_is_an_end_to_traces(served: Http) -> None:
    begun = []
    for _ in range(20):
        status, found = served.ask("POST", "", {"client": "c"})
        begun.append(status)
        if status == 201:
            last = found["n"]
    assert 429 in begun
    assert served.ask("GET", "/0/packets")[0] == 404
    for number in range(last + 1):
        served.ask("DELETE", f"/{number}")
