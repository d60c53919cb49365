"""/api/v1/overview of a running broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mqtt_broker.http_api.overview import percentile_ms
from mqtt_broker.http_api.request.broker_interface import StoreFigures, WatchFigures
from mqtt_broker.http_api.request.overview_interface import OverviewFigures
from mqtt_broker.http_api.v1.overview import overview_item
from tests.http_api.brokers import BASE
from tests.http_api.operated import operated
from tests.http_api.v1.test_clients import enter

FIGURES = OverviewFigures(
    2e9, "n", "commit", BASE,
    dict.fromkeys(("messages_in", "messages_out", "bytes_in", "bytes_out", "connects",
                   "disconnects", "drops", "cpu"), 0.5),
    0.0, {"p50": 1.5, "p99": None},
)  # fmt: skip


def test_the_broker_at_a_glance() -> None:
    with operated() as site:
        raw = enter(site, "c")
        found = site.get("/overview")
        assert (found["clients_online"], found["health"], found["durability"]) == (
            1,
            "ok",
            "memory",
        )
        assert found["store"] == {"state": "off", "lag": 0} and found["node"]
        assert set(found["ack_latency_ms"]) == {"p50", "p99"}
        history = site.get("/overview/history?s=10")
        assert history["step_s"] == 5 and len(history["series"]["clients_online"]) == 2
        assert history["series"]["memory_bytes"][-1] is not None
        assert history["series"]["ack_latency_p99_ms"] == [None, None]  # nothing was published
        assert len(site.get("/overview/history")["series"]["cpu"]) == 720
        site.get("/overview/history?s=0", 400)
        raw.sock.close()


def test_percentiles_of_a_histogram() -> None:
    assert percentile_ms([0, 0, 0], 0.5) is None
    assert percentile_ms([0] * 10 + [100, 0], 0.5) == 0.768  # between 512 and 1,024 us
    assert percentile_ms([0] * 10 + [99, 0, 0, 1], 0.5) == pytest.approx(0.77, abs=0.01)
    assert percentile_ms([0] * 10 + [90, 0, 0, 10], 0.99) == pytest.approx(7.78, abs=0.01)
    assert percentile_ms([10], 0.99) == pytest.approx(0.001, abs=0.001)


def test_health_in_a_word() -> None:
    assert overview_item(FIGURES, None)["health"] == "ok"
    held = replace(FIGURES, snapshot=replace(BASE, held={"store": 2, "log": 0}))
    assert overview_item(held, WatchFigures())["why"] == ["2 clients wait: store"]
    assert overview_item(held, None)["health"] == "degraded"
    away = replace(FIGURES, snapshot=replace(BASE, store=StoreFigures(state="disk full", lag=3)))
    found = overview_item(away, WatchFigures(why=("late",)))
    assert (found["health"], found["why"]) == ("failing", ["late", "store: disk full"])
    assert found["store"] == {"state": "disk full", "lag": 3}
