"""The OpenAPI 3.1 document of the API, made from its operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from mqtt_broker.http_api.request import problems
from mqtt_broker.http_api.request.access import COOKIE, OPEN, ROLE_NAMES
from mqtt_broker.http_api.request.json_types import Components, Member, Nullable, Schema
from mqtt_broker.http_api.request.operations import JSON, Operation

PREFIX: Final = "/api/v1"
_PATTERN: Final = re.compile(r":[^{}]*(?=\})")
_ALWAYS: Final = (400, 401, 403, 409, 429, 503)  # 409: not offered by this broker
_WITH_BODY: Final = (408, 413, 415)
_PROBLEM: Final[Schema] = {
    "type": "object",
    "description": "An error (RFC 9457). Some have further members.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "one line"},
        "error": {"type": "string", "description": "the name of the error"},
        "text": {"type": "string", "description": "the same as detail"},
    },
    "required": ["type", "title", "status", "detail", "error", "text"],
}


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the document of all operations under /api/v1."""
    components: Components = {"Problem": _PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for one in sorted(operations, key=lambda one: (one.path, one.method)):
        if one.path.startswith(PREFIX):
            path = _PATTERN.sub("", one.path)
            paths.setdefault(path, {})[one.method.lower()] = _described(one, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "FleetMQ",
            "version": version,
            "description": "The HTTP API of a FleetMQ broker.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
        "security": [{"token": []}, {"session": []}],
    }


def _described(one: Operation, components: Components) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _name_of(one),
        "tags": [one.path.removeprefix(PREFIX).split("/")[1]],
        "summary": one.summary,
        "responses": _responses(one, components),
    }
    if one.description:
        found["description"] = one.description
    if one.role == OPEN:
        found["security"] = []
    else:
        found["x-role"] = ROLE_NAMES[one.role]
    if parameters := _parameters(one, components):
        found["parameters"] = parameters
    if one.shown_body is not None:
        found["requestBody"] = {"content": {JSON: {"schema": one.shown_body.schema(components)}}}
    return found


def _name_of(one: Operation) -> str:
    words = re.findall(r"[A-Za-z]+", one.path.removeprefix(PREFIX))
    return "_".join([one.method.lower(), *words])


def _parameters(one: Operation, components: Components) -> list[dict[str, Any]]:
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {**shape.schema(components), **_not_empty(shape.schema({}))},
        }
        for name, shape in one.takes
    ]
    if one.query is not None:
        found += [_in_query(member, components) for member in one.query.members]
    if one.has_etag and one.changes:
        found.append({"name": "If-Match", "in": "header", "schema": {"type": "string"}})
    return found


def _not_empty(schema: Schema) -> Schema:
    return {"minLength": 1} if schema.get("type") == "string" else {}


def _in_query(member: Member, components: Components) -> dict[str, Any]:
    shape = member.shape.inner if isinstance(member.shape, Nullable) else member.shape
    found: dict[str, Any] = {
        "name": member.name,
        "in": "query",
        "required": member.is_required,
        "schema": shape.schema(components),
    }
    if member.text:
        found["description"] = member.text
    return found


def _responses(one: Operation, components: Components) -> dict[str, Any]:
    schema: Schema = {} if one.answer is None else one.answer.schema(components)
    found: dict[str, Any] = {
        str(one.status): {
            "description": problems.title_of(one.status),
            "content": {one.media_type: {"schema": schema}},
        }
    }
    statuses = {*_ALWAYS, *one.errors}
    if one.takes:
        statuses.add(404)
    if one.shown_body is not None:
        statuses.update(_WITH_BODY)
    if one.has_etag:
        statuses.add(412)
    for status in sorted(statuses):
        found[str(status)] = {
            "description": problems.title_of(status),
            "content": {
                problems.CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}
            },
        }
    return found
