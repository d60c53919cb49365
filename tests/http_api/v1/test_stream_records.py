"""Messages of a stream as JSON: the last ones, and all of them page by page from a place on."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from mqtt_broker.http_api.v1.stream_records import read_records
from mqtt_broker.streams.read.source import Source
from tests.http_api.brokers import LogBroker, Serving
from tests.streams.logs import NAME, Sent

PATH = f"/api/v1/streams/{NAME}/messages"


def payloads(items: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(one["payload_base64"]) for one in items]


def fill(broker: LogBroker, many: int) -> None:
    for number in range(many):
        broker.put_all([Sent(f"t/{number}", f"c{number % 7}", b"%d" % number)])


def test_all_messages_come_page_by_page_in_the_order_of_each_partition(
    broker: LogBroker, http: Serving
) -> None:
    fill(broker, 60)
    at, found = "earliest", []
    for _ in range(20):
        page = http.get(f"{PATH}?limit=7&at={quote(at)}").json()
        assert len(page["items"]) <= 7
        found += page["items"]
        at = json.dumps(page["next"])
    assert sorted(payloads(found), key=int) == [b"%d" % number for number in range(60)]
    for partition in range(4):
        offsets = [one["offset"] for one in found if one["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    assert http.get(f"{PATH}?at={quote(at)}").json()["items"] == []
    fill(broker, 1)
    assert payloads(http.get(f"{PATH}?at={quote(at)}").json()["items"]) == [b"0"]


def test_the_last_messages_and_what_follows(broker: LogBroker, http: Serving) -> None:
    fill(broker, 60)
    page = http.get(f"{PATH}?limit=5").json()
    times = [one["received_at"] for one in page["items"]]
    every = http.get(f"{PATH}?limit=200&at=earliest").json()["items"]
    assert times == sorted(one["received_at"] for one in every)[-5:]
    assert sum(page["next"].values()) == 60
    assert http.get(f"{PATH}?at={quote(json.dumps(page['next']))}").json()["items"] == []


def test_an_empty_stream_has_none(http: Serving) -> None:
    assert http.get(PATH).json() == {"items": [], "next": {f"p{n}": 0 for n in range(4)}}


def test_a_large_payload_is_cut(broker: LogBroker, http: Serving) -> None:
    broker.put(bytes(100_000))
    [one] = http.get(PATH).json()["items"]
    assert one["payload_bytes"] == 100_000
    assert len(base64.b64decode(one["payload_base64"])) == 65_536


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("at=yesterday", 400),
        ("at=%7B%22p9%22:1%7D", 404),
        ("at=%7B%22p0%22:1%7D", 400),
        ("at=%7B%22p0%22:99,%22p1%22:0,%22p2%22:0,%22p3%22:0%7D", 416),
        ("limit=0", 400),
        ("limit=1001", 400),
        ("other=1", 400),
    ],
)
def test_wrong_queries_are_refused(http: Serving, query: str, status: int) -> None:
    found = http.get(f"{PATH}?{query}")
    assert found.status == status, found.body
    assert found.json()["detail"]


def test_an_unknown_stream(http: Serving) -> None:
    assert http.get("/api/v1/streams/other/messages").status == 404


def test_reading_needs_no_server(broker: LogBroker) -> None:
    fill(broker, 3)
    with Source.open(broker.root, NAME) as source:
        assert len(read_records(source, "earliest", 2)["items"]) == 2
