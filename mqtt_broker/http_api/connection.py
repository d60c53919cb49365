"""A connection of the HTTP server whose errors are problem documents, as all others of the API.

aiohttp answers what is no HTTP, and a request that it cannot read, before any handler of ours is
asked, with plain text that names its version.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from mqtt_broker.http_api.request import problems
from mqtt_broker.http_api.request.middleware import add_headers

_TEXT_CHARS_MAX: Final = 200


class Connection(web.RequestHandler):
    """Answers errors of the protocol with problem documents."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that cannot be read, or that failed; then close."""
        super().handle_error(request, status, exc, message)  # which writes to the log
        answer = problems.answer(status, problem_of(status, message))
        add_headers(answer)
        answer.force_close()
        return answer


def problem_of(status: int, message: str | None) -> dict[str, str]:
    """Return the name and the text of an error that aiohttp found."""
    name = problems.title_of(status).replace(" ", "")
    if status >= 500:
        return {"error": name, "text": "internal error; see the broker's log"}
    why = " ".join((message or "").split())[:_TEXT_CHARS_MAX]
    return {"error": name, "text": f"the request is not valid HTTP: {why}" if why else name}
