"""Operations: declared by a handler's types, and answered by them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from mqtt_broker.http_api import http_server
from mqtt_broker.http_api.request import access, openapi
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import (
    Call,
    Operation,
    Reply,
    delete,
    encode,
    encode_slowly,
    etag_of,
    get,
    patch,
    post,
    put,
)
from mqtt_broker.http_api.request.paging import Page, Paging
from mqtt_broker.http_api.request.routing import open_routes
from tests.http_api.brokers import LogBroker, Serving


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing."""

    name: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Filter(Paging):
    size: int | None = None


class _Things:
    def __init__(self) -> None:
        self.size = 1

    async def list(self, query: Filter) -> Page[Thing]:
        """List things.

        All of them.
        """
        return Page([Thing("a", query.size or 0)], None, 1)

    async def show(self, name: str) -> Thing:
        """Show a thing."""
        return Thing(name, self.size)

    async def change(self, name: str, body: Thing, call: Call) -> Thing:
        """Change a thing."""
        call.check_match(Thing(name, self.size))
        self.size = body.size
        return Thing(name, self.size)

    async def add(self, body: Thing) -> Reply[Thing]:
        """Add a thing."""
        return Reply(body, headers={"Location": "/x"})

    async def remove(self, number: int) -> Thing:
        """Remove a thing by its number."""
        return Thing(str(number))

    async def raw(self, request: web.Request) -> web.Response:
        """Show text."""
        return web.Response(text="raw")


def operations(site: object = None) -> list[Operation]:
    things = _Things()
    root = "/api/v1/things"
    return [
        get(root, things.list),
        post(root, things.add, status=201),
        get(root + "/of/{name}", things.show, etag=True),
        put(root + "/of/{name}", things.change, etag=True),
        patch(root + "/of/{name}", things.change, etag=True, role=access.ADMIN),
        delete(root + "/{number}", things.remove),
        get(root + "/raw", things.raw),
    ]


@pytest.fixture
def http(broker: LogBroker, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(http_server, "all_operations", operations)
    with Serving(broker, broker.root) as serving:
        yield serving
    assert serving.lines == []


def test_values_come_from_the_path_the_query_and_the_body(http: Serving) -> None:
    root = "/api/v1/things"
    assert http.get(f"{root}?size=5").json() == {
        "items": [{"name": "a", "size": 5}], "next": None, "total": 1,
    }  # fmt: skip
    assert http.get(f"{root}/of/a%2Fb%25%F0%9F%98%80").json()["name"] == "a/b%\U0001f600"
    made = http.ask("POST", root, {"name": "x"})
    assert (made.status, made.headers["Location"]) == (201, "/x")
    assert http.ask("DELETE", f"{root}/7").json()["name"] == "7"
    assert http.get(f"{root}/raw").body == b"raw"
    assert http.ask("HEAD", f"{root}/of/x").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("GET", "?size=x", None, 400, "invalid size"), ("GET", "?limit=0", None, 400, "limit"),
        ("GET", "?limit=1001", None, 400, "1000"), ("GET", "?x=1", None, 400, "unknown parameter"),
        ("GET", "?size=1&size=2", None, 400, "twice"), ("DELETE", "/x", None, 400, "number"),
        ("POST", "", {}, 400, "name is missing"), ("POST", "", {"name": 1}, 400, "name"),
        ("POST", "", {"name": "x", "y": 1}, 400, "unknown key 'y'"),
        ("PUT", "", {"name": "x"}, 405, "does not support PUT"),
        ("GET", "/of/", None, 404, "nothing at"), ("GET", "/of/a/b", None, 404, "nothing at"),
    ],
)  # fmt: skip
def test_each_mistake_is_a_problem(
    http: Serving, method: str, path: str, body: object, status: int, why: str
) -> None:
    found = http.ask(method, "/api/v1/things" + path, body)
    assert found.status == found.json()["status"] == status
    assert why in found.json()["detail"] == found.json()["text"]
    assert found.headers["Content-Type"].startswith("application/problem+json")


def test_an_edit_of_something_older_is_refused(http: Serving) -> None:
    path = "/api/v1/things/of/x"
    first = http.get(path)
    tag = first.headers["ETag"]
    assert tag == etag_of(first.body)
    assert http.get(path, headers={"If-None-Match": tag}).status == 304
    body = {"name": "x", "size": 2}
    changed = http.ask("PUT", path, body, headers={"If-Match": tag})
    assert changed.status == 200 and changed.headers["ETag"] != tag
    assert http.ask("PUT", path, body, headers={"If-Match": tag}).status == 412
    for good in ("*", f'"y", {changed.headers["ETag"]}'):
        assert http.ask("PUT", path, body, headers={"If-Match": good}).status == 200


def test_the_document_has_what_the_handlers_say() -> None:
    found = openapi.document(operations(), "1.0")
    listed = found["paths"]["/api/v1/things"]["get"]
    assert listed["summary"] == "List things." and listed["description"] == "All of them."
    assert [one["name"] for one in listed["parameters"]] == ["limit", "cursor", "size"]
    answer = listed["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/ThingPage"}
    items = found["components"]["schemas"]["ThingPage"]["properties"]["items"]
    assert items == {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}}
    edited = found["paths"]["/api/v1/things/of/{name}"]
    assert edited["patch"]["x-role"] == "admin" and edited["put"]["x-role"] == "operator"
    assert "412" in edited["put"]["responses"]


@pytest.mark.parametrize("count", [0, 25, 26, 50, 1_000])
def test_a_long_page_is_encoded_in_parts_and_is_the_same(count: int) -> None:
    page = Page([Thing(f"\u00fc\ud800{n}", n) for n in range(count)], "x" if count else None, 7)
    assert json.loads(asyncio.run(encode_slowly(page))) == json.loads(encode(page))


def test_a_handler_has_to_take_what_its_path_has() -> None:
    with pytest.raises(AssertionError, match="GET /a/"):
        get("/a/{x}", _Things().list)


def test_only_these_need_no_token() -> None:
    site: Any = Site
    found = open_routes(http_server.all_operations(site))
    assert {path for _, path in found} == {
        "/healthz", "/readyz", "/api/v1/login", "/api/v1/openapi.json",
    }  # fmt: skip


def test_all_operations_have_a_summary_and_a_name_of_their_own(broker: LogBroker) -> None:
    site: Any = Site
    found = [one for one in http_server.all_operations(site) if one.path.startswith("/api/v1")]
    document = openapi.document(found, "1")
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names) > 15
    assert all(one.summary.endswith(".") or one.summary[-1].isalnum() for one in found)
