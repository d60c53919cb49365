"""Routes of the operations: check the role, run the handler, write changes to the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import HttpVersion11, web

from mqtt_broker.http_api.request import problems
from mqtt_broker.http_api.request.access import OPEN, ROLE_NAMES, Caller
from mqtt_broker.http_api.request.middleware import CALLER, Site
from mqtt_broker.http_api.request.operations import Operation
from mqtt_broker.http_api.request.problems import Problem


def open_routes(operations: Sequence[Operation]) -> frozenset[tuple[str, str]]:
    """Return methods and paths of the operations that need no token."""
    return frozenset((one.method, one.path) for one in operations if one.role == OPEN)


def routes(site: Site, operations: Sequence[Operation]) -> list[web.RouteDef]:
    """Return the routes of the operations, those without parameters first."""
    ordered = sorted(operations, key=lambda one: one.path.count("{"))
    found = [(one.method, one) for one in ordered]
    found += [("HEAD", one) for one in ordered if one.method == "GET"]
    return [
        web.route(method, one.path, _handler(site, one), expect_handler=expect)
        for method, one in found
    ]


async def expect(request: web.Request) -> web.Response | None:
    """Tell a client that waits with its body to send it, or that its `Expect` is unknown."""
    expected = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return None
    if expected.lower() == "100-continue":
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None
    text = f"unknown Expect {expected[:80]!r}: send 100-continue or leave it out"
    answer = problems.answer(417, {"error": "ExpectationFailed", "text": text})
    answer.force_close()
    return answer


def _handler(
    site: Site, operation: Operation
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        if caller.role < operation.role:
            _audit(site, request, caller, 403)
            raise Problem(
                403,
                "Forbidden",
                f"this needs the role {ROLE_NAMES[operation.role]}, and {caller.name} has the role "
                f"{caller.role_name}",
            )
        answer = await operation.respond(request, await operation.run(request, site))
        if operation.changes and operation.role != OPEN:
            _audit(site, request, caller, answer.status)
        return answer

    return handle


def _audit(site: Site, request: web.Request, caller: Caller, status: int) -> None:
    site.broker.audit(
        "api_refused" if status == 403 else "api_change",
        by=caller.name,
        role=caller.role_name,
        method=request.method,
        path=request.path_qs,
        status=status,
        address=request.remote or "",
    )
