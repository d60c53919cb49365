"""`/api/v1/overview`: the broker at a glance, and the last hour of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypedDict

from mqtt_broker.http_api.request.broker_interface import Snapshot, WatchFigures
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.overview_interface import OVERVIEW, OverviewFigures

ROOT: Final = "/api/v1/overview"
HISTORY_S: Final = 3_600
_RATES: Final = (
    "messages_in", "messages_out", "bytes_in", "bytes_out", "connects", "disconnects", "drops",
)  # fmt: skip


class Latency(TypedDict):
    """Percentiles in milliseconds; null: nothing was measured."""

    p50: float | None
    p99: float | None


class StoreState(TypedDict):
    """The store, which is `off` in a broker that keeps everything in memory."""

    state: Annotated[str, Limits(text="off, ok, or what is wrong")]
    lag: Annotated[int, Limits(text="groups committed and not yet in the tables")]


class OverviewItem(TypedDict):
    """The broker at a glance. Rates are a second, over the last five seconds."""

    at: float
    rates: dict[str, float]
    clients: int
    clients_online: int
    sessions: int
    subscriptions: int
    retained: int
    queued_messages: int
    dropped: Annotated[dict[str, int], Limits(text="messages by reason, since the start")]
    refused: Annotated[dict[str, int], Limits(text="by what/reason, since the start")]
    held: Annotated[dict[str, int], Limits(text="clients not read from now, by reason")]
    ack_latency_ms: Latency
    loop_late_ms: float
    cpu: Annotated[float, Limits(text="of one core")]
    memory_bytes: int
    store: StoreState
    health: Annotated[str, Limits(text="ok, degraded or failing")]
    why: list[str]
    uptime_s: float
    version: str
    build: str
    durability: str
    node: str


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Length of the history to show."""

    s: Annotated[int, Limits(5, HISTORY_S, text="seconds")] = HISTORY_S


class HistoryItem(TypedDict):
    """Samples of the last hour; null: missing."""

    step_s: int
    start_at: float
    series: dict[str, list[float | None]]


def operations(site: Site) -> list[Operation]:
    """Return the operations of the overview."""

    async def overview() -> OverviewItem:
        """Show the broker at a glance."""
        found = await site.ask(site.broker.part(OVERVIEW).overview)
        return overview_item(found, site.broker.watch())

    async def history(query: HistoryQuery) -> HistoryItem:
        """Show the last hour of the broker's numbers, in steps of five seconds."""
        found = await site.ask(site.broker.part(OVERVIEW).history, query.s)
        series = {name: list(values) for name, values in found.series.items()}
        return {"step_s": found.step_s, "start_at": found.start_at, "series": series}

    return [get(ROOT, overview, errors=(409,)), get(ROOT + "/history", history, errors=(409,))]


def _health(now: Snapshot, watch: WatchFigures | None) -> tuple[str, Sequence[str]]:
    """Return the health in a word, and a sentence for each thing that is wrong."""
    why = [] if watch is None else list(watch.why)
    if now.is_stopping:
        why.append("the broker is stopping")
    if now.store is not None and now.store.state:
        why.append(f"store: {now.store.state}")
    if why:
        return "failing", why
    held = [f"{count} clients wait: {reason}" for reason, count in now.held.items() if count]
    return ("degraded", held) if held else ("ok", held)


def overview_item(found: OverviewFigures, watch: WatchFigures | None) -> OverviewItem:
    """Return the overview as the API shows it."""
    now = found.snapshot
    health, why = _health(now, watch)
    return {
        "at": found.at,
        "rates": {name: found.rates[name] for name in _RATES},
        "clients": now.sessions,
        "clients_online": now.clients,
        "sessions": now.sessions,
        "subscriptions": now.subscriptions,
        "retained": now.retained_messages,
        "queued_messages": now.queued_messages,
        "dropped": dict(now.dropped),
        "refused": dict(now.refused),
        "held": dict(now.held),
        "ack_latency_ms": {
            "p50": found.ack_latency_ms.get("p50"),
            "p99": found.ack_latency_ms.get("p99"),
        },
        "loop_late_ms": found.loop_late_ms,
        "cpu": found.rates["cpu"],
        "memory_bytes": now.resident_bytes,
        "store": {"state": "off", "lag": 0}
        if now.store is None
        else {"state": now.store.state or "ok", "lag": now.store.lag},
        "health": health,
        "why": list(why),
        "uptime_s": found.at - now.started_at,
        "version": now.version,
        "build": now.build,
        "durability": found.durability,
        "node": found.node,
    }
