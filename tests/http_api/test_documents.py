"""docs/HTTP.md names every path and every metric there is, and none that is not."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from mqtt_broker.http_api.http_server import make_application
from mqtt_broker.http_api.pages.metrics import MetricsCollector
from mqtt_broker.http_api.request.access import Access
from mqtt_broker.http_api.request.broker_interface import (
    HistogramFigures,
    Snapshot,
    StoreFigures,
    WatchFigures,
)
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.streams.format.figures import ReplayFigures
from mqtt_broker.streams.remote import http_protocol
from tests.http_api.brokers import LogBroker
from tests.server.broker_process import document


def test_every_path(broker: LogBroker) -> None:
    with ThreadPoolExecutor(1) as pool:
        site = Site(broker, None, pool, HttpLimits(), Access(), True, print)
        app = make_application(site)
    text = document("docs/HTTP.md")
    for route in app.router.routes():
        assert isinstance(route, web.ResourceRoute)
        if route.method != "HEAD":
            assert route.resource is not None
            path = route.resource.canonical.replace("{name}", "NAME")
            path = path.replace("{partition}", "pK").replace("{group}", "billing")
            path = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path)
            curl = path.replace("/api/v1/streams/NAME", "$API/telemetry")
            assert f"{route.method} {path}" in text or curl in text, path


def full_snapshot() -> tuple[Snapshot, WatchFigures]:
    """A snapshot from which every metric is made."""
    access = dict.fromkeys(
        ("waiting", "hashes", "reloads", "reload_failures", "audit_lines_lost", "bans"), 0
    )
    names = (
        "turn",
        "acknowledge",
        "deliver",
        "commit",
        "packet_bytes",
        "journal_sync",
        "log_sync",
        "journal_write",
        "log_write",
    )
    histogram = HistogramFigures([(float("inf"), 0)], 0.0)
    found = Snapshot(
        "x",
        "compiled",
        0.0,
        access=access,
        store=StoreFigures(),
        replay=ReplayFigures(),
        disk_free_bytes=1,
        disk_size_bytes=1,
        histograms=dict.fromkeys(names, histogram),
    )
    return found, WatchFigures()


def test_every_metric() -> None:
    kept = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type)
        for family in MetricsCollector(*full_snapshot()).collect()
    }
    told = re.findall(
        r"^\| `((?:fleetmq|process)_\w+)` \| (\w+) \|", document("docs/HTTP.md"), re.MULTILINE
    )
    assert set(told) == kept
    assert len(told) == len(kept)


def test_every_header_and_every_limit() -> None:
    text = document("docs/HTTP.md")
    for name in vars(http_protocol):
        value = getattr(http_protocol, name)
        if isinstance(value, str) and value.startswith("FleetMQ-"):
            assert f"`{value}`" in text
    limits = HttpLimits()
    assert f"| connections | {limits.connections_max:,};" in text
    assert f"| {limits.idle_s:g} s |" in text
    assert str(http_protocol.BYTES_MAX) in text
