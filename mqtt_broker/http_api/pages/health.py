"""`/healthz` and `/readyz`: health for load balancers and probes, without a token.

`/healthz` tells whether the process is alive: it fails when only a restart helps. `/readyz` tells
whether clients should come here: it fails while the broker stops, and without its store. The
watchdog is asked first: it answers even when the broker's loop does not.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from mqtt_broker.http_api.request.broker_interface import Snapshot
from mqtt_broker.http_api.request.middleware import Site, json_answer
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.problems import Problem

STOPS: Final = "the broker is stopping"


def operations(site: Site) -> list[Operation]:
    """Return the operations of both pages."""

    async def healthz(request: web.Request) -> web.Response:
        """Answer 200 while the broker is alive, 503 with the reason when only a restart helps."""
        return _answer(await _deadly_problems(site))

    async def readyz(request: web.Request) -> web.Response:
        """Answer 200 if the broker serves clients, else 503 with the reason."""
        return _answer(await _problems(site))

    return [get("/healthz", healthz, is_open=True), get("/readyz", readyz, is_open=True)]


def _answer(why: str) -> web.Response:
    if why:
        return json_answer({"status": "failing", "why": why}, 503)
    return json_answer({"status": "ok"})


async def _deadly_problems(site: Site) -> str:
    watch = site.broker.watch()
    if watch is not None:
        return "; ".join(watch.why) if watch.is_loop_late or watch.needs_restart else ""
    try:  # nobody watches the loop: ask it
        await site.ask(site.broker.snapshot)
    except Problem as problem:
        return "" if site.broker.is_stopping() else str(problem)
    return ""


async def _problems(site: Site) -> str:
    if site.broker.is_stopping():
        return STOPS
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
        return [STOPS]
    if snapshot.store is not None and snapshot.store.state:
        return [f"store: {snapshot.store.state}"]
    return []
