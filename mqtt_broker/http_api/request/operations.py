"""Operations of the API: each is declared once, by a handler with types.

    operations = [get("/api/v1/things/{name}", things.show), ...]

    async def show(self, name: str) -> Thing:
        \"\"\"Show a thing.\"\"\"

A handler's parameters say what it takes: `query` and `body` are dataclasses (a body may also be
`dict[str, Any]`, which the handler checks), `call` is a `Call`, any other name stands in the path.
What it returns is the answer: a dataclass, a TypedDict, a `Reply` with status and headers, or a
response of aiohttp for what is not JSON. A handler that takes `request` checks everything itself.
From this, routing, checks, `openapi.json` and
docs/reference/http.md are made; the docstring's first line is the summary.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

from aiohttp import web

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.access import Access, Caller
from mqtt_broker.http_api.request.bodies import check_parameters, read_object
from mqtt_broker.http_api.request.json_types import Object, Shape, json_default, shape_of
from mqtt_broker.http_api.request.middleware import CALLER, Site
from mqtt_broker.http_api.request.paging import Page
from mqtt_broker.http_api.request.path_names import name_of
from mqtt_broker.http_api.request.problems import Problem

UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
JSON: Final = "application/json"
_ITEMS_AT_ONCE: Final = 25  # of a page, that are encoded until others may run
_IN_PATH: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """An answer with a status or headers of its own."""

    value: T
    status: int = 0  # 0: that of the operation
    headers: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """The request, for handlers that need more of it than its values."""

    request: web.Request
    caller: Caller
    access: Access

    @property
    def is_withdrawn(self) -> bool:
        """Tell whether the token or the session is no longer valid: a long answer then ends."""
        return not self.access.still_allows(self.caller)

    def check_match(self, current: object) -> None:
        """Raise 412 if `If-Match` names another state than the `current` answer of GET."""
        given = self.request.headers.get("If-Match", "").strip()
        if given and given != "*" and etag_of(encode(current)) not in _tags(given):
            raise Problem(
                412, "PreconditionFailed", "it was changed meanwhile: read it again (ETag)"
            )


Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path: its handler, and what is known about it."""

    method: str
    path: str
    handler: Handler
    role: int
    status: int
    media_type: str
    has_etag: bool
    errors: tuple[int, ...]
    takes: tuple[tuple[str, Shape], ...]  # from the path
    query: Object | None
    body: Shape | None
    shown_body: Shape | None  # for the document
    answer: Shape | None  # None: no JSON
    wants_call: bool
    is_raw: bool  # the handler takes the request, and checks it

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]

    @property
    def description(self) -> str:
        """The docstring without its first line."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[2].strip()

    @property
    def changes(self) -> bool:
        """Tell whether it changes anything."""
        return self.method in UNSAFE

    async def run(self, request: web.Request, site: Site) -> Any:
        """Check a request and call the handler."""
        if self.is_raw:
            return await self.handler(request)
        values: dict[str, Any] = {
            name: shape.read_text(name_of(request.match_info[name]), name)
            for name, shape in self.takes
        }
        known = () if self.query is None else [member.name for member in self.query.members]
        given = check_parameters(request, known)
        if self.query is not None:
            values["query"] = self.query.read_query(given)
        if self.body is not None:
            values["body"] = self.body.read(await read_object(request, site.limits), "the body")
        if self.wants_call:
            values["call"] = Call(request, request[CALLER], site.access)
        return await self.handler(**values)

    async def respond(self, request: web.Request, found: Any) -> web.StreamResponse:
        """Return the response for what the handler returned."""
        if isinstance(found, web.StreamResponse):
            return found
        reply = found if isinstance(found, Reply) else Reply(found)
        data = await encode_slowly(reply.value)
        headers = dict(reply.headers or {})
        if self.has_etag:
            headers["ETag"] = etag_of(data)
            if self.method == "GET" and headers["ETag"] in _tags(
                request.headers.get("If-None-Match", "")
            ):
                return web.Response(status=304, headers=headers)
        return web.Response(
            status=reply.status or self.status,
            body=data,
            headers=headers,
            content_type=JSON,
            charset="utf-8",
        )


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    text = json.dumps(value, ensure_ascii=False, default=json_default) + "\n"
    # Names from clients may contain a lone surrogate: JSON escapes it, UTF-8 cannot encode it.
    return text.encode(errors="backslashreplace")


async def encode_slowly(value: object) -> bytes:
    """Return a value as JSON. A long page is encoded in parts, between which others may run: the
    broker's thread, too, which waits for the interpreter meanwhile.
    """
    if not isinstance(value, Page) or len(value.items) <= _ITEMS_AT_ONCE:
        return encode(value)
    parts: list[bytes] = []
    for start in range(0, len(value.items), _ITEMS_AT_ONCE):
        part = encode(value.items[start : start + _ITEMS_AT_ONCE])
        parts.append(part.strip()[1:-1])
        await asyncio.sleep(0)
    rest = encode({"next": value.next, "total": value.total})
    return b'{"items": [' + b", ".join(parts) + b"], " + rest[1:]


def etag_of(data: bytes) -> str:
    """Return the entity tag of a JSON text."""
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def _tags(text: str) -> list[str]:
    return [part.strip().removeprefix("W/") for part in text.split(",")]


def operation(
    method: str,
    path: str,
    handler: Handler,
    *,
    role: int = 0,
    status: int = 200,
    media_type: str = JSON,
    etag: bool = False,
    errors: Sequence[int] = (),
    body: Any = None,
    is_open: bool = False,
) -> Operation:
    """Declare an operation.

    `role`: who may (by default viewers may read and operators change); `etag`: the answer has one;
    `errors`: statuses beside those that every operation may have; `body`: the type that the
    document shows for a handler that takes `dict[str, Any]`; `is_open`: nobody needs a token.
    """
    if not is_open and not role:
        role = access.OPERATOR if method in UNSAFE else access.VIEWER
    hints = get_type_hints(handler, include_extras=True)
    answer = hints.pop("return")
    in_path = _IN_PATH.findall(path)
    query, taken = hints.pop("query", None), hints.pop("body", None)
    wants_call = hints.pop("call", None) is not None
    if is_raw := hints.pop("request", None) is not None:
        in_path = []
    assert set(in_path) == set(hints), f"{method} {path}: the handler takes {sorted(hints)}"
    query_shape = None if query is None else shape_of(query)
    assert query_shape is None or isinstance(query_shape, Object)
    body_shape = None if taken is None else shape_of(taken)
    return Operation(
        method,
        path,
        handler,
        access.OPEN if is_open else role,
        status,
        media_type,
        etag,
        tuple(errors),
        tuple((name, shape_of(hints[name])) for name in in_path),
        query_shape,
        body_shape,
        body_shape if body is None else shape_of(body),
        _answer_shape(answer),
        wants_call,
        is_raw,
    )


def _answer_shape(annotation: Any) -> Shape | None:
    if get_origin(annotation) is Reply:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, web.StreamResponse):
        return None
    return shape_of(annotation)


def get(path: str, handler: Handler, **more: Any) -> Operation:
    """Declare an operation that reads."""
    return operation("GET", path, handler, **more)


def post(path: str, handler: Handler, **more: Any) -> Operation:
    """Declare an operation that creates, or acts."""
    return operation("POST", path, handler, **more)


def put(path: str, handler: Handler, **more: Any) -> Operation:
    """Declare an operation that replaces."""
    return operation("PUT", path, handler, **more)


def patch(path: str, handler: Handler, **more: Any) -> Operation:
    """Declare an operation that changes some members."""
    return operation("PATCH", path, handler, **more)


def delete(path: str, handler: Handler, **more: Any) -> Operation:
    """Declare an operation that removes."""
    return operation("DELETE", path, handler, **more)
