"""`/api/v1/traces`: packets of a client, a topic or an address, live."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated, Final

from aiohttp import web

from mqtt_broker.http_api.request.access import OPERATOR
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Call, Operation, Reply, delete, get, post
from mqtt_broker.http_api.request.paging import Page, Paging, take_page
from mqtt_broker.http_api.request.problems import Problem, bad_request
from mqtt_broker.http_api.request.recorder_part import RECORDS
from mqtt_broker.http_api.v1.why import answered
from mqtt_broker.recorder.figures import TraceFigures, TraceWanted
from mqtt_broker.topics.names import filter_problem

ROOT: Final = "/api/v1/traces"
_FOR_S_MAX: Final = 86_400
_PACKETS_MAX: Final = 1_000_000
_NAME_CHARS_MAX: Final = 65_535
_LINES_AT_ONCE: Final = 500
_LOOK_S: Final = 0.2  # for new packets
_NDJSON: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class NewTrace:
    """A trace to begin: exactly one of client, topic and address."""

    client: Annotated[str, Limits(chars_max=_NAME_CHARS_MAX, text="a client id")] = ""
    topic: Annotated[str, Limits(chars_max=_NAME_CHARS_MAX, text="a Topic Filter")] = ""
    address: Annotated[str, Limits(chars_max=200, text="an address of clients")] = ""
    payloads: Annotated[bool, Limits(text="with the beginning of payloads")] = False
    for_s: Annotated[float, Limits(1, _FOR_S_MAX, text="ends after so many seconds")] = 600.0
    packets_max: Annotated[int, Limits(1, _PACKETS_MAX, text="ends after so many packets")] = 10_000


@dataclass(frozen=True, slots=True)
class EndedTrace:
    """The trace that has ended."""

    ended: int


def operations(site: Site) -> list[Operation]:
    """Return the operations of traces."""
    page = _Traces(site)
    return [
        get(ROOT, page.list, errors=(409,)),
        post(ROOT, page.begin, status=201, errors=(409,)),
        delete(ROOT + "/{n}", page.end, errors=(404, 409)),
        get(
            ROOT + "/{n}/packets",
            page.packets,
            role=OPERATOR,
            media_type=_NDJSON,
            errors=(404, 409),
        ),
    ]


class _Traces:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self, query: Paging) -> Page[TraceFigures]:
        """List the traces, the newest first. One that has ended can be read for an hour."""
        found = await answered(self._site.ask(self._site.broker.part(RECORDS).traces))
        return await take_page(found, query, lambda one: (one.n, ""), lambda one: one, "-n")

    async def begin(self, body: NewTrace) -> Reply[TraceFigures]:
        """Begin a trace; it ends by itself.

        A trace of a topic shows what is published to it, and to whom it goes; one of a client or an
        address shows each packet in both directions.
        """
        wanted = [one for one in (body.client, body.topic, body.address) if one]
        if len(wanted) != 1:
            raise bad_request("give one of client, topic and address")
        problem = filter_problem(body.topic) if body.topic else None
        if problem is not None:
            raise bad_request(f"topic {body.topic[:80]!r}: {problem}")
        trace = TraceWanted(
            body.client, body.topic, body.address, body.payloads, body.for_s, body.packets_max
        )
        found = await answered(self._site.ask(self._site.broker.part(RECORDS).trace_begin, trace))
        return Reply(found, headers={"Location": f"{ROOT}/{found.n}"})

    async def end(self, n: int) -> EndedTrace:
        """End a trace and forget it."""
        if not await answered(self._site.ask(self._site.broker.part(RECORDS).trace_end, n)):
            raise _unknown(n)
        return EndedTrace(n)

    async def packets(self, n: int, call: Call) -> web.StreamResponse:
        """Send the packets of a trace as they come, a JSON object a line, until it ends.

        A reader that is too slow loses packets; a line `{"lost": n}` says how many. Each packet is
        sent once, to one reader.
        """
        records = self._site.broker.part(RECORDS)
        found = await answered(self._site.ask(records.trace_lines, n, _LINES_AT_ONCE))
        if found is None:
            raise _unknown(n)
        response = web.StreamResponse(headers={"Content-Type": _NDJSON})
        await response.prepare(call.request)
        while found is not None and not call.is_withdrawn:
            data = "".join(json.dumps(line) + "\n" for line in found.lines)
            if data:
                await response.write(data.encode(errors="backslashreplace"))
            elif found.is_over:
                break
            else:
                await asyncio.sleep(_LOOK_S)
            if call.request.transport is None or call.request.transport.is_closing():
                break
            found = await answered(self._site.ask(records.trace_lines, n, _LINES_AT_ONCE))
        return response


def _unknown(n: int) -> Problem:
    return Problem(404, "UnknownTrace", f"there is no trace {n}")
