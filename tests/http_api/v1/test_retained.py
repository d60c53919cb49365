"""/api/v1/retained against a running broker."""

from __future__ import annotations

import base64

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.core.interfaces.rows import HAS_MESSAGE, ONE_BELOW
from mqtt_broker.http_api.v1.retained import branch_of
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


def test_pages_of_many_in_each_order() -> None:
    with operated() as site:
        raw = enter(site, "p")
        for number in range(120):
            raw.send(publish(f"{number % 7}//{number}", b"x" * (number % 5 + 1), retain=True))
        raw.send(b"\xc0\x00")
        raw.packet()
        for sort in ("topic", "bytes", "received_at"):
            found: dict[str, list[str]] = {}
            for order in (sort, f"-{sort}"):
                topics: list[str] = []
                cursor: str | None = ""
                while cursor is not None:
                    page = site.get(f"/retained?limit=17&sort={order}&cursor={cursor}")
                    topics += [one["topic"] for one in page["items"]]
                    cursor = page["next"]
                    assert page["total"] == 120
                found[order] = topics
            assert found[sort] == found[f"-{sort}"][::-1] and len(set(found[sort])) == 120
        wrong = site.get("/retained?limit=1&sort=bytes")["next"]
        site.get(f"/retained?cursor={wrong}", 400)
        (below,) = site.get("/retained/tree?prefix=3")["items"]
        assert (below["name"], below["topic"], below["children"]) == ("", "3/", True)
        raw.sock.close()


def test_a_branch_in_one_number() -> None:
    assert branch_of("a", "b", 7 * ONE_BELOW | HAS_MESSAGE) == {
        "name": "b", "topic": "a/b", "messages": 7, "retained": True, "children": False,
    }  # fmt: skip
