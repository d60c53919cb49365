"""Streams and groups by JSON: requests arrive at the broker, and wrong ones do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http_api.brokers import PATIENCE_S, LogBroker, Serving
from tests.streams.logs import NAME

ROOT = "/api/v1/streams"
ONE = f"{ROOT}/{NAME}"


def test_a_life_of_a_stream(broker: LogBroker, http: Serving) -> None:
    found = http.ask("POST", ROOT, {
        "name": "latest", "filter": "fleet/+/state", "partitions": 2, "compact": True,
        "retain_s": 86_400, "schema": {"type": "object"},
    })  # fmt: skip
    assert found.status == 201, found.body
    assert found.headers["Location"] == f"{ROOT}/latest"
    made = found.json()
    assert made["settings"]["filter"] == "fleet/+/state"
    assert made["settings"]["compact"] is True
    assert made["schema"] == {"type": "object"}
    assert made["ends"] == {"p0": 0, "p1": 0}
    assert made["epoch"]
    assert [one["name"] for one in http.get(ROOT).json()["streams"]] == ["latest", NAME]

    found = http.ask("PATCH", f"{ROOT}/latest", {"retain_s": 60, "schema": None, "partitions": 2})
    assert (found.status, found.json()["settings"]["retain_s"]) == (200, 60)
    assert http.get(f"{ROOT}/latest").json()["schema"] is None

    assert http.ask("DELETE", f"{ROOT}/latest").json() == {"deleted": "latest"}
    assert http.get(f"{ROOT}/latest").status == 404
    assert http.ask("DELETE", f"{ROOT}/latest").status == 404


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("levels", [90, 300, 500, 900, 980, 1_100, 100_000])
def test_deep_bodies_are_refused_everywhere_and_leave_nothing(
    broker: LogBroker, http: Serving, levels: int
) -> None:
    before = sorted(broker.root.rglob("*"))
    places = [
        (method, path, key)
        for method, path, keys in (
            ("POST", ROOT, ("name", "filter", "partitions", "compact", "schema", "x")),
            ("PATCH", ONE, ("name", "retain_s", "schema", "x")),
            ("POST", f"{ONE}/truncate", ("before", "x")),
            ("POST", f"{ONE}/groups/g/reset", ("to", "x")),
            ("POST", "/api/v1/bans", ("kind", "value", "for_s", "why", "x")),
            ("DELETE", "/api/v1/bans", ("kind",)),
        )
        for key in keys
    ]
    for method, path, key in places:
        for body in (b'{"name": "y", "%b": %b}' % (key.encode(), deep(levels)), deep(levels)):
            found = http.ask(method, path, body)
            assert found.status == 400, (method, path, key, found)
            assert len(found.json()["text"]) < 300
    assert sorted(broker.root.rglob("*")) == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "name: it is missing"),
        (b"{", "the body is not JSON"),
        (b"[]", "the body is not a JSON object"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"name": "x", "schema": ' + deep(100_000) + b"}", "the body is not JSON"),
        (b'{"name": "x", "schema": ' + deep(900) + b"}", "the body is refused: it is nested in"),
        (b'{"name": "x", "schema": ' + deep(80) + b"}", "schema: it is nested in more than 64"),
        (b'{"name": ' + deep(900) + b"}", "the body is refused: it is nested in more than 100"),
        (b'{"name": "x", "max_bytes": NaN}', "the body is not JSON"),
        (b'\xff{"name": "x"}', "the body is not JSON"),
        ({"name": "x", "colour": 1}, "colour: unknown setting"),
        ({"name": "x", "epoch": "e"}, "epoch: unknown setting"),
        ({"name": 5}, "name: 5 is not a string"),
        ({"name": "x", "partitions": "4"}, 'partitions: "4" is not a whole number'),
        ({"name": "x", "partitions": True}, "partitions: true is not a whole number"),
        ({"name": "x", "partitions": 1.5}, "partitions: 1.5 is not a whole number"),
        ({"name": "x", "retain_s": 10**30}, "retain_s: the number is too large"),
        ({"name": "x", "compact": 1}, "compact: 1 is not true or false"),
        ({"name": "x", "schema": []}, "schema: a JSON Schema must be a JSON object"),
        ({"name": "x", "filter": None}, "filter: null is not a string"),
        ({"name": "x", "filter": "a/#/b"}, "filter: "),
        ({"name": "x", "partitions": 257}, "partitions: 257 is out of range: expected 1 to 256"),
        ({"name": "x", "partition_by": "no"}, "partition_by: "),
        ({"name": "../x"}, "name: '../x' is invalid: expected up to 100"),
        ({"name": NAME}, f"name: a stream '{NAME}' exists already"),
    ],
)
def test_a_stream_that_cannot_be(http: Serving, body: object, says: str) -> None:
    found = http.ask("POST", ROOT, body)
    assert found.status == 400
    assert says in found.json()["text"]
    assert [one["name"] for one in http.get(ROOT).json()["streams"]] == [NAME]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "no setting to change"),
        ({"partitions": 5}, "partitions: it is 4 and cannot be changed"),
        ({"retain_s": -1}, "retain_s: -1 is negative"),
        ({"name": "x"}, "name: it is 'telemetry' and cannot be changed"),
    ],
)
def test_a_change_that_cannot_be(http: Serving, body: dict[str, Any], says: str) -> None:
    found = http.ask("PATCH", ONE, body)
    assert (found.status, says in found.json()["text"]) == (400, True), found


def test_truncate(broker: LogBroker, http: Serving) -> None:
    broker.stream_change(NAME, {"segment_bytes": 4_096}).result(PATIENCE_S)
    for _ in range(10):
        broker.put(*[bytes(500)] * 10)
        broker.writing.now_us += 1_000_000
    key, end = max(http.get(ONE).json()["ends"].items(), key=lambda item: item[1])
    assert end == 100
    everywhere = {"p0": 0, "p1": 0, "p2": 0, "p3": 0}

    found = http.ask("POST", f"{ONE}/truncate", {"before": everywhere | {key: 35}})
    assert (found.status, found.json()["segments_removed"]) == (200, 3)
    assert found.json()["starts"][key] == 30
    again = http.ask("POST", f"{ONE}/truncate", {"before": everywhere | {key: 35}})
    assert (again.status, again.json()["segments_removed"]) == (200, 0)  # gone already: no harm
    found = http.ask("POST", f"{ONE}/truncate", {"before": "2023-11-14T22:13:25Z"})
    assert found.json()["starts"][key] == 50
    for body, says in (
        ({"before": "soon"}, "'soon' is invalid"),
        ({"before": 5}, "invalid before: expected earliest, latest"),
        ({"before": {"p0": 1}}, "is missing"),
        ({"after": "latest"}, "unknown key 'after': expected before"),
    ):
        found = http.ask("POST", f"{ONE}/truncate", body)
        assert (found.status, says in found.json()["text"]) == (400, True), found
    wrong = http.ask("POST", f"{ONE}/truncate", {"before": everywhere | {"epoch": "other"}})
    assert wrong.status == 409
    for everything in (None, {}, {"before": None}, {"before": "latest"}):
        found = http.ask("POST", f"{ONE}/truncate", everything)
        assert found.json()["starts"] == found.json()["ends"]


def test_groups(broker: LogBroker, http: Serving) -> None:
    broker.put(b"x", b"y")
    assert http.get(f"{ONE}/groups").json() == {"groups": []}
    group = f"{ONE}/groups/night%2Fshift%20%C3%BC"
    found = http.ask("POST", f"{group}/reset", {"to": "earliest"})
    assert found.json() == {
        "group": "night/shift ü", "committed": {"p0": 0, "p1": 0, "p2": 0, "p3": 0},
    }  # fmt: skip
    broker.members["night/shift ü"] = {"worker": [0, 2], "idle": []}
    (about,) = http.get(f"{ONE}/groups").json()["groups"]
    assert about["members"] == {"worker": ["p0", "p2"], "idle": []}
    assert sum(about["lag"].values()) == 2
    assert http.get(ONE).json()["groups"] == ["night/shift ü"]

    found = http.ask("POST", f"{group}/reset", {"to": "latest"})
    assert (found.status, "has members" in found.json()["text"]) == (400, True)
    for body, status in (({}, 400), ({"to": "soon"}, 400), ({"to": {"p0": 99}}, 400),
                         ({"to": {"p0": 99, "p1": 0, "p2": 0, "p3": 0}}, 416)):  # fmt: skip
        assert http.ask("POST", f"{group}/reset", body).status == status
    broker.members.clear()
    assert http.ask("DELETE", group).json() == {"deleted": "night/shift ü"}
    assert http.ask("DELETE", group).status == 400
    assert http.get(f"{ROOT}/other/groups").status == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", ONE, "DELETE,GET,HEAD,PATCH"),
        ("DELETE", ROOT, "GET,HEAD,POST"),
        ("POST", "/healthz", "GET,HEAD"),
        ("GET", f"{ONE}/truncate", "POST"),
        ("OPTIONS", ONE, "DELETE,GET,HEAD,PATCH"),
    ],
)
def test_methods(http: Serving, method: str, path: str, allowed: str) -> None:
    found = http.ask(method, path)
    assert found.status == 405
    assert found.headers["Allow"] == allowed


def test_a_broker_without_a_log_says_so(broker: LogBroker) -> None:
    with Serving(broker, None) as http:
        found = http.ask("POST", f"{ONE}/groups/g/reset", {"to": "latest"})
        assert (found.status, found.json()["error"]) == (409, "Refused")
