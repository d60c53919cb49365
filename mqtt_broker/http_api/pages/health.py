"""`/healthz` and `/readyz`: whether this broker may be given work.

For load balancers and probes: no token. The watchdog is asked first, which needs no answer of the
broker's loop.
"""

from __future__ import annotations

from aiohttp import web

from mqtt_broker.http_api.request.broker_interface import Snapshot
from mqtt_broker.http_api.request.middleware import Problem, Site, json_answer


def routes(site: Site) -> list[web.RouteDef]:
    async def healthz(request: web.Request) -> web.Response:
        """Answer 200 if the broker works, else 503 with what is wrong."""
        why = await _what_fails(site)
        if why:
            return json_answer({"status": "failing", "why": why}, 503)
        return json_answer({"status": "ok"})

    return [web.get("/healthz", healthz), web.get("/readyz", healthz)]


async def _what_fails(site: Site) -> str:
    watch = site.commands.watch()
    why = [] if watch is None else list(watch.why)
    if watch is None or not watch.is_loop_late:
        try:
            why += _what_stops(await site.ask(site.commands.snapshot))
        except Problem as problem:
            why.append(str(problem))
    return "; ".join(why)


def _what_stops(snapshot: Snapshot) -> list[str]:
    """Reasons that the broker itself knows."""
    if snapshot.is_stopping:
        return ["the broker stops"]
    if snapshot.store is not None and snapshot.store.state:
        return [f"store: {snapshot.store.state}"]
    return []
