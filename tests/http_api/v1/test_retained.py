"""/api/v1/retained against a running broker."""

from __future__ import annotations

import asyncio
import base64

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.core.interfaces.rows import RetainedRow
from mqtt_broker.http_api.v1.retained import branches
from tests.core.peers import publish
from tests.http_api.operated import operated
from tests.http_api.v1.test_clients import enter


def test_the_tree_the_list_a_message_and_clearing() -> None:
    with operated() as site:
        raw = enter(site, "p")
        found = {prop.CONTENT_TYPE: "text/plain", prop.USER_PROPERTY: [("k", "v"), ("k", "w")]}
        raw.send(publish("a/b", b"\xff\x00", qos=1, retain=True, properties=found))
        raw.packet()
        for topic in ("a", "a/b/c", "a/b/d", "b", "/x", "c//y"):
            raw.send(publish(topic, b"text", qos=1, retain=True))
            raw.packet()
        assert site.get("/retained")["total"] == 7
        assert site.get("/retained?filter=a/%23&limit=2")["total"] == 4
        assert site.get("/retained?q=B/C")["items"][0]["topic"] == "a/b/c"
        assert site.get("/retained?sort=-bytes&limit=1")["items"][0]["payload_bytes"] == 4
        top = {one["name"]: one for one in site.get("/retained/tree")["items"]}
        assert set(top) == {"", "a", "b", "c"}
        assert (top["a"]["messages"], top["a"]["retained"], top["a"]["children"]) == (4, True, True)
        (below,) = site.get("/retained/tree?prefix=a")["items"]
        assert (below["topic"], below["messages"], below["retained"]) == ("a/b", 3, True)
        names = [one["name"] for one in site.get("/retained/tree?prefix=a/b")["items"]]
        assert names == ["c", "d"]
        whole = site.get("/retained/message?topic=a/b")
        assert whole["payload"] is None
        assert base64.b64decode(whole["payload_base64"]) == b"\xff\x00"
        assert whole["properties"] == {
            "content_type": "text/plain", "user_properties": [["k", "v"], ["k", "w"]],
        }  # fmt: skip
        assert site.get("/retained/message?topic=b")["payload"] == "text"
        site.get("/retained/message?topic=nothing", 404)
        assert site.ask("DELETE", "/retained?filter=a/%23") == {"filter": "a/#", "removed": 4}
        assert site.get("/retained")["total"] == 3
        raw.sock.close()


@pytest.mark.parametrize(
    "path",
    ["?filter=a%23", "?filter=", "/tree?prefix=%2B", "/tree?prefix=a/%23", "/message", "?sort=x",
     "/message?topic="],
)  # fmt: skip
def test_what_is_no_filter(path: str) -> None:
    with operated() as site:
        site.get(f"/retained{path}", 400)
        site.ask("DELETE", "/retained", None, 400)


def test_branches_of_odd_names() -> None:
    rows = [RetainedRow(topic, 0, 1, "p", 0.0, 0.0) for topic in ("a", "a/", "a//b", "ab", "/")]
    top = asyncio.run(branches(rows, ""))
    assert {one["name"]: one["messages"] for one in top} == {"a": 3, "ab": 1, "": 1}
    inside = asyncio.run(branches(rows, "a"))
    assert {one["name"]: one["topic"] for one in inside} == {"": "a/"}
