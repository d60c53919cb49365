"""`Overview` of a running server: a sample each five seconds, taken on its loop."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from mqtt_broker.codec.constants import PUBLISH
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.sys_topics import publishes_sent
from mqtt_broker.http_api.history import STEP_S, History
from mqtt_broker.http_api.request.overview_interface import HistoryFigures, OverviewFigures
from mqtt_broker.http_api.snapshot import snapshot_of
from mqtt_broker.server.server import Server

T = TypeVar("T")


class Ask(Protocol):
    """Calls a function on the broker's loop."""

    def __call__(self, act: Callable[[], T]) -> Future[T]: ...


class ServerOverview:
    """Samples one server from `start` on, as long as its loop runs."""

    def __init__(self, server: Server, ask: Ask) -> None:
        self._server = server
        self._ask = ask
        self._history = History()
        self._due_at = 0.0
        self._late_ms = 0.0
        self._acknowledged: list[int] = []  # counts of the histogram at the last sample
        self._ack_ms: dict[str, float | None] = {"p50": None, "p99": None}

    def start(self) -> None:
        """Begin to take samples."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._server.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._due_at = self._server.loop.time()
        self._sample()

    def _sample(self) -> None:
        loop = self._server.loop
        late_s = max(0.0, loop.time() - self._due_at)
        self._late_ms = late_s * 1_000
        broker = self._server.broker
        values = _values(broker)
        values["loop_late_ms"] = self._late_ms
        self._ack_ms = self._latencies(broker)
        for name, value in self._ack_ms.items():
            values[f"ack_latency_{name}_ms"] = math.nan if value is None else value
        self._history.take(self._server.now(), _counters(broker), values)
        self._due_at = loop.time() + STEP_S
        if not broker.clients.is_shutting_down:
            loop.call_at(self._due_at, self._sample)

    def _latencies(self, broker: Broker) -> dict[str, float | None]:
        """Return percentiles of the acknowledgements since the last sample."""
        counts, _ = broker.state.timings.acknowledge.copy()
        before = self._acknowledged or [0] * len(counts)
        self._acknowledged = counts
        new = [now - then for now, then in zip(counts, before, strict=True)]
        return {"p50": percentile_ms(new, 0.5), "p99": percentile_ms(new, 0.99)}

    def overview(self) -> Future[OverviewFigures]:
        return self._ask(self._overview)

    def _overview(self) -> OverviewFigures:
        server = self._server
        return OverviewFigures(
            server.now(),
            platform.node(),
            server.config_reload.config.durability,
            snapshot_of(server.broker),
            dict(self._history.rates),
            self._late_ms,
            dict(self._ack_ms),
        )

    def history(self, seconds: float) -> Future[HistoryFigures]:
        def read() -> HistoryFigures:
            start_at, series = self._history.read(seconds)
            return HistoryFigures(STEP_S, start_at, series)

        return self._ask(read)


def percentile_ms(counts: Sequence[int], share: float) -> float | None:
    """Estimate a percentile of a histogram whose bucket n holds values below 2**n microseconds.

    None: the histogram is empty.
    """
    left = share * sum(counts)
    if left <= 0:
        return None
    for number, count in enumerate(counts):
        if count and left <= count:
            low = 2.0 ** (number - 1) if number else 0.0
            return (low + (2.0**number - low) * left / count) / 1_000
        left -= count
    return 2.0 ** (len(counts) - 1) / 1_000


def _counters(broker: Broker) -> dict[str, float]:
    counters = broker.counters
    return {
        "messages_in": counters.packets_received[PUBLISH],
        "messages_out": publishes_sent(broker.state),
        "bytes_in": counters.bytes_received,
        "bytes_out": counters.bytes_sent,
        "connects": counters.connections,
        "disconnects": counters.connections - len(broker.connections),
        "drops": sum(broker.backlog.dropped.values()),
        "cpu": time.process_time(),
    }


def _values(broker: Broker) -> dict[str, float]:
    store = {} if broker.journal is None else broker.runtime.metrics.read("store")
    return {
        "clients_online": len(broker.connections),
        "sessions": len(broker.sessions),
        "subscriptions": broker.routes.count,
        "retained": len(broker.retained),
        "queued_messages": broker.backlog.queued_messages,
        "unread_bytes": broker.outboxes.waiting_bytes,
        "memory_bytes": broker.runtime.heap_bytes(),
        "store_lag": store.get("lag", 0),
    }
