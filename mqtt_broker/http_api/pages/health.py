"""`/healthz` and `/readyz`: health for load balancers and probes, without a token.

The watchdog is asked first: it answers even when the broker's loop does not.
"""

from __future__ import annotations

from aiohttp import web

from mqtt_broker.http_api.request.broker_interface import Snapshot
from mqtt_broker.http_api.request.middleware import Site, json_answer
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.problems import Problem


def operations(site: Site) -> list[Operation]:
    """Return the operations of both pages."""

    async def healthz(request: web.Request) -> web.Response:
        """Answer 200 if the broker works, else 503 with what is wrong."""
        why = await _problems(site)
        if why:
            return json_answer({"status": "failing", "why": why}, 503)
        return json_answer({"status": "ok"})

    return [get(path, healthz, is_open=True) for path in ("/healthz", "/readyz")]


async def _problems(site: Site) -> str:
    watch = site.broker.watch()
    why = [] if watch is None else list(watch.why)
    if watch is None or not watch.is_loop_late:
        try:
            why += _problems_of(await site.ask(site.broker.snapshot))
        except Problem as problem:
            why.append(str(problem))
    return "; ".join(why)


def _problems_of(snapshot: Snapshot) -> list[str]:
    """Return the reasons that the broker itself reports."""
    if snapshot.is_stopping:
        return ["the broker is stopping"]
    if snapshot.store is not None and snapshot.store.state:
        return [f"store: {snapshot.store.state}"]
    return []
