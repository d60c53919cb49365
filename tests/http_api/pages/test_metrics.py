"""/healthz and /metrics: what the snapshot says, as probes and Prometheus want it."""

from __future__ import annotations

import random
import re
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings as CoreSettings
from mqtt_broker.http_api.request.broker_interface import (
    Snapshot,
    StoreFigures,
    StreamFigures,
    WatchFigures,
)
from mqtt_broker.http_api.snapshot import snapshot_of, stream_figures
from mqtt_broker.streams.format.figures import GroupFigures
from mqtt_broker.streams.format.stream_settings import StreamSettings
from tests.http_api.brokers import BASE, LogBroker, Serving
from tests.streams.logs import NAME


class Hung(LogBroker):
    """Its loop answers nothing."""

    def snapshot(self) -> Future[Snapshot]:
        return Future()


NASTY = 'a"b\\c\nd ü'


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in parse(text)
        for sample in family.samples
    }


def test_readiness(broker: LogBroker, http: Serving) -> None:
    found = http.get("/readyz")
    assert (found.status, found.json()) == (200, {"status": "ok"})
    for base, why in (
        (replace(BASE, is_stopping=True), "the broker is stopping"),
        (
            replace(BASE, store=StoreFigures("No space left on device")),
            "store: No space left on device",
        ),
    ):
        broker.base = base
        found = http.get("/readyz")
        assert (found.status, found.json()) == (503, {"status": "failing", "why": why})
        assert http.get("/healthz").status == 200  # no restart helps
    broker.watched = WatchFigures(12.5, 0.0, ("publishes wait",))  # neither hides the other
    assert http.get("/readyz").json()["why"] == f"publishes wait; {why}"
    broker.watched = WatchFigures()
    broker.base = replace(BASE, store=None)
    assert http.get("/readyz").status == 200
    broker.watched = None  # nobody watches
    assert (http.get("/healthz").status, http.get("/readyz").status) == (200, 200)


def test_what_the_watchdog_sees_is_told_without_the_loop(root: Path) -> None:
    """The broker's loop answers nothing, and health and metrics do."""
    with closing(Hung(root)) as hung, Serving(hung, None, answer_s=0.05) as http:
        hung.watched = WatchFigures(12.5, 61.0, ("one thing", "another"), is_loop_late=True)
        for path in ("/healthz", "/readyz"):
            found = http.get(path)
            assert (found.status, found.json()["why"]) == (503, "one thing; another")
        found = http.get("/metrics")
        assert found.status == 200
        assert samples(found.body.decode()) == {
            ("fleetmq_healthy",): 0,
            ("fleetmq_oldest_unanswered_seconds",): 12.5,
            ("fleetmq_loop_late_seconds",): 61.0,
        }
        hung.watched = WatchFigures()  # it is not late yet: it is asked, and that takes too long
        assert http.get("/readyz").status == 503
        assert http.get("/metrics").status == 503


def test_metrics_are_what_the_snapshot_says(broker: LogBroker, http: Serving) -> None:
    broker.base = replace(
        BASE,
        clients=3,
        packets_received={"publish": 7, "connect": 3},
        bytes_sent=1_000,
        dropped={"queue_full": 2},
        refused={"connection/tls": 4, "disconnect/malformed_packet": 1},
        store=StoreFigures("", records=10, lag=2),
    )
    broker.put(b"x", b"y")
    broker.committed[NASTY, NAME] = broker.do(lambda: broker.writing.log.stream(NAME).committed())
    broker.members[NASTY] = {"one": [0], "two": [1]}
    found = http.get("/metrics")
    assert found.headers["Content-Type"].startswith("text/plain; version=")
    now = samples(found.body.decode())
    assert now[("fleetmq_clients_connected",)] == 3
    assert now[("fleetmq_packets_received_total", "type=publish")] == 7
    assert now[("fleetmq_sent_bytes_total",)] == 1_000
    assert now[("fleetmq_messages_dropped_total", "reason=queue_full")] == 2
    refused = "fleetmq_refused_total"
    assert now[refused, "reason=tls", "what=connection"] == 4
    assert now[refused, "reason=malformed_packet", "what=disconnect"] == 1
    assert now[("fleetmq_store_up",)] == 1
    assert now[("fleetmq_store_records_total",)] == 10
    assert now[("fleetmq_stream_messages_appended_total", f"stream={NAME}")] == 2
    ends = [now["fleetmq_stream_end_offset", f"partition={n}", f"stream={NAME}"] for n in range(4)]
    assert sorted(ends) == [0, 0, 0, 2]
    assert now["fleetmq_stream_group_members", f"group={NASTY}", f"stream={NAME}"] == 2
    lag = "fleetmq_stream_group_lag_messages", f"group={NASTY}", "partition=0", f"stream={NAME}"
    assert now[lag] == 0


def test_open_metrics_for_those_who_ask(http: Serving) -> None:
    found = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert found.headers["Content-Type"].startswith("application/openmetrics-text")
    assert list(parse_open(found.body.decode()))  # type: ignore[no-untyped-call]


def test_names_are_as_prometheus_wants_them(http: Serving) -> None:
    """Base units, `_total` on counters alone, one prefix, help for each."""
    text = http.get("/metrics").body.decode()
    for family in parse(text):
        assert re.fullmatch(r"(fleetmq|process)_[a-z_]+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            is_total = sample.name.endswith("_total")
            assert is_total == (family.type == "counter"), sample.name
        assert family.type != "histogram" or re.search(r"_(seconds|bytes)$", family.name)
        assert not re.search(r"_(ms|us|kb|mb|percent|count)(_|$)", family.name), family.name


def test_a_broker_in_memory_has_no_store_and_no_streams(broker: LogBroker, http: Serving) -> None:
    class Small(LogBroker):
        def _snapshot(self) -> Snapshot:
            return replace(BASE, store=None)

    broker.__class__ = Small
    text = http.get("/metrics").body.decode()
    assert "fleetmq_store" not in text
    assert "fleetmq_replay" not in text
    assert "fleetmq_stream_end_offset{" not in text


def test_many_partitions_are_quick_enough(broker: LogBroker, http: Serving) -> None:
    streams = [
        StreamFigures(
            StreamSettings(f"s{n}", partitions=256, epoch="e"),
            range(256),
            range(256),
            groups=[GroupFigures("g", {}, range(256), range(256))],
        )
        for n in range(10)
    ]

    class Large(LogBroker):
        def _snapshot(self) -> Snapshot:
            return replace(BASE, streams=streams)

    broker.__class__ = Large
    text = http.get("/metrics").body.decode()
    assert text.count("\nfleetmq_stream_end_offset{") == 2_560


@pytest.mark.parametrize("settings", [{}, {"sys_interval_s": 1}])
def test_a_core_gives_a_snapshot(settings: dict[str, Any]) -> None:
    core = Broker(CoreSettings(**settings), now=1_000.0, rng=random.Random(1))
    core.backlog.drop("queue_full", 3)
    core.counters.refuse("disconnect", "Malformed Packet", 2)
    core.counters.refuse("connection", "TLS", 5)
    found = snapshot_of(core)
    assert found.started_at == 1_000.0
    assert found.dropped == {"queue_full": 3}
    assert found.refused == {"disconnect/malformed_packet": 2, "connection/tls": 5}
    assert found.store is None
    assert not found.is_stopping
    assert set(found.packets_received) == set(found.packets_sent) >= {"publish", "connect"}
    core.stop(1_001.0)
    assert snapshot_of(core).is_stopping


def test_figures_of_a_stream(broker: LogBroker) -> None:
    for _ in range(3):
        broker.put(b"x" * 100)
    found = broker.do(lambda: stream_figures(broker.writing.log.stream(NAME), appended=3))
    assert sum(found.ends) == 3
    assert (found.segments, found.appended, found.groups) == (1, 3, ())
    size = sum(path.stat().st_size for path in broker.root.rglob("*.seg"))
    assert found.bytes == size
