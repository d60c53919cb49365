"""The pages of a broker that is not ready yet: its store is opened, its state is loaded.

`/healthz` answers 200, so that no supervisor ends a start that takes long; `/readyz` and everything
else answer 503 with what the start is at. Nothing here needs a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from mqtt_broker.http_api.request import problems
from mqtt_broker.http_api.request.middleware import json_answer, set_headers

_RETRY_AFTER_S: Final = "1"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_application(progress: Callable[[], str]) -> web.Application:
    """Return the application that answers until the broker is ready.

    `progress` returns what the start is at, in a few words.
    """

    @web.middleware
    async def answer_all(request: web.Request, handler: Handler) -> web.StreamResponse:
        why = f"the broker is starting: {progress()}"
        if request.path == "/healthz":
            answer = json_answer({"status": "starting", "why": why})
        elif request.path == "/readyz":
            answer = json_answer({"status": "starting", "why": why}, 503)
        else:
            answer = problems.answer(503, {"error": "Starting", "text": why})
        if answer.status == 503:
            answer.headers["Retry-After"] = _RETRY_AFTER_S
        answer.force_close()  # the next request is for the broker's own pages
        return answer

    application = web.Application(middlewares=[answer_all])
    application.on_response_prepare.append(set_headers)
    return application
