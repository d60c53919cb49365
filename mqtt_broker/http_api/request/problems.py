"""Errors as problem documents (RFC 9457).

`{"type": ..., "title": ..., "status": 404, "detail": ONE LINE, "error": NAME, "text": ONE LINE}`:
`error` and `text` are those of earlier versions, by which tools and `streams.remote` go; errors of
the log have further members.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

CONTENT_TYPE: Final = "application/problem+json"
_TYPES: Final = "/api/docs#errors-"


class Problem(Exception):
    """An error answer: status, name and one line of text."""

    def __init__(
        self, status: int, error: str, text: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.error = error
        self.headers = headers or {}


def unauthorized() -> Problem:
    """Return the problem of a request without a valid token."""
    return Problem(
        401,
        "Unauthorized",
        "the token is missing or wrong: send Authorization: Bearer TOKEN",
    )


def bad_request(text: str) -> Problem:
    """Return the answer 400 with this text."""
    return Problem(400, "BadRequest", text)


def not_found(text: str) -> Problem:
    """Return the answer 404 with this text."""
    return Problem(404, "NotFound", text)


def document(status: int, found: dict[str, Any]) -> dict[str, Any]:
    """Return the problem document of an error that has a name, a text and further members."""
    return {
        **found,
        "type": f"{_TYPES}{found['error']}",
        "title": title_of(status),
        "status": status,
        "detail": found["text"],
    }


def title_of(status: int) -> str:
    """Return the phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def answer(status: int, found: dict[str, Any]) -> web.Response:
    """Return an error as a response."""
    return encoded(document(status, found), status, CONTENT_TYPE)


def encoded(found: object, status: int, content_type: str) -> web.Response:
    """Return a response with this JSON body."""
    text = json.dumps(found, ensure_ascii=False) + "\n"
    # Names from clients may contain a lone surrogate: JSON escapes it, UTF-8 cannot encode it.
    body = text.encode(errors="backslashreplace")
    return web.Response(status=status, body=body, content_type=content_type, charset="utf-8")
