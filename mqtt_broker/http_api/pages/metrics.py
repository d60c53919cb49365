"""`/metrics`: the snapshot in the format of Prometheus, or OpenMetrics if the client accepts it.

Labels are names of packets, reasons, streams, partitions and groups, whose number is bounded.
Client ids and topics are never labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from mqtt_broker.http_api.request.broker_interface import (
    HistogramFigures,
    Snapshot,
    StoreFigures,
    StreamFigures,
    WatchFigures,
)
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.streams.format.figures import ReplayFigures

PREFIX: Final = "fleetmq_"


def operations(site: Site) -> list[Operation]:
    """Return the operation of metrics."""

    async def metrics(request: web.Request) -> web.Response:
        """Send the metrics in the requested format."""
        watch = site.broker.watch()
        snapshot: Snapshot | None = None
        if watch is None or not watch.is_loop_late:
            snapshot = await site.ask(site.broker.snapshot)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(MetricsCollector(snapshot, watch))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return [get("/metrics", metrics, media_type="text/plain")]


class MetricsCollector(Collector):
    """A collector of one snapshot, for one scrape."""

    def __init__(self, snapshot: Snapshot | None, watch: WatchFigures | None) -> None:
        self._snapshot = snapshot
        self._watch = watch

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._watch is not None:
            yield from _watch(self._watch)
        snapshot = self._snapshot
        if snapshot is None:  # the loop does not answer
            return
        yield from _broker(snapshot)
        yield from _access(snapshot.access)
        yield from _server(snapshot)
        yield from _histograms(snapshot)
        if snapshot.store is not None:
            yield from _store(snapshot.store, snapshot.oldest_unfolded_s)
        if snapshot.replay is not None:
            yield from _replay(snapshot.replay)
        yield from _streams(snapshot.streams)
        yield from _groups(snapshot.streams)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _watch(watch: WatchFigures) -> Iterator[Metric]:
    yield _gauge("healthy", "0 while the watchdog finds something wrong.", not watch.why)
    yield _gauge(
        "oldest_unanswered_seconds",
        "How long the oldest acknowledgement has waited for the store.",
        watch.unanswered_s,
    )
    yield _gauge("loop_late_seconds", "How late the event loop is.", watch.loop_late_s)


def _broker(now: Snapshot) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        PREFIX + "build_info",
        "The version of the broker, and whether it is compiled.",
        labels=["version", "build"],
    )
    build.add_metric([now.version, now.build], 1)
    yield build
    yield _gauge("start_time_seconds", "When the broker started, as Unix time.", now.started_at)
    yield _gauge("stopping", "1 while the broker stops.", now.is_stopping)
    yield _gauge("clients_connected", "Connected clients.", now.clients)
    yield _gauge(
        "clients_connected_maximum", "The most clients connected at once.", now.clients_maximum
    )
    yield _counter(
        "sessions_expired", "Sessions of absent clients that expired.", now.clients_expired
    )
    yield _gauge("sessions", "Sessions of connected and absent clients.", now.sessions)
    yield _gauge("sockets_open", "Open connections, with or without a CONNECT.", now.sockets)
    yield _counter("sockets_accepted", "Connections accepted.", now.sockets_accepted)
    yield _counter("connects", "Successful CONNECTs.", now.connects)
    yield _counters("packets_received", "Packets from clients.", "type", now.packets_received)
    yield _counters("packets_sent", "Packets to clients.", "type", now.packets_sent)
    yield _counter("received_bytes", "Bytes from clients.", now.bytes_received)
    yield _counter("sent_bytes", "Bytes to clients.", now.bytes_sent)
    yield _counter(
        "publish_received_bytes",
        "Bytes of PUBLISH packets from clients.",
        now.publish_bytes_received,
    )
    yield _counter(
        "publish_sent_bytes", "Bytes of PUBLISH packets to clients.", now.publish_bytes_sent
    )
    yield _counters("messages_dropped", "Messages dropped, by reason.", "reason", now.dropped)
    yield _refused(now.refused)
    yield _counter("accept_pauses", "Times a listener waited for descriptors.", now.accept_pauses)
    yield _counter("throttled", "Times a client exceeded its rate limit.", now.throttled)
    yield _gauge("unread_bytes", "Bytes that clients have not read yet.", now.unread_bytes)
    yield _gauge("sessions_bytes", "Bytes of names and wills of sessions.", now.sessions_bytes)
    yield _gauge("aliases_bytes", "Bytes of Topic Aliases.", now.aliases_bytes)
    yield _gauge("incomplete_bytes", "Bytes of incomplete packets.", now.incomplete_bytes)
    yield _gauge("inflight_bytes", "Bytes of messages not acknowledged yet.", now.inflight_bytes)
    yield _gauges("clients_held", "Clients not read from now, by reason.", "reason", now.held)
    yield _gauge("subscriptions", "Subscriptions.", now.subscriptions)
    yield _gauge("subscriptions_bytes", "Bytes of subscriptions.", now.subscriptions_bytes)
    yield _gauge("shared_subscriptions", "Shared subscriptions.", now.shared_subscriptions)
    yield _gauge("retained_messages", "Retained messages.", now.retained_messages)
    yield _gauge("retained_bytes", "Bytes of retained messages.", now.retained_bytes)
    yield _gauge("queued_messages", "Messages queued for clients.", now.queued_messages)
    yield _gauge("queued_bytes", "Bytes of queued messages.", now.queued_bytes)
    yield _gauge("resident_memory_bytes", "Memory of the broker's process.", now.resident_bytes)


def _server(now: Snapshot) -> Iterator[Metric]:
    yield from ProcessCollector(registry=None).collect()
    yield _gauge(
        "memory_limit_bytes",
        "Sum of the limits in bytes of everything that is kept in memory.",
        now.memory_limit_bytes,
    )
    if now.disk_size_bytes >= 0:
        yield _gauge("disk_free_bytes", "Free bytes of the data directory.", now.disk_free_bytes)
        yield _gauge("disk_size_bytes", "Size of the data directory's disk.", now.disk_size_bytes)
    ends = GaugeMetricFamily(
        PREFIX + "certificate_end_time_seconds",
        "When the first certificate of a listener ends, as Unix time.",
        labels=["listener"],
    )
    for listener, ends_at in now.certificate_ends.items():
        ends.add_metric([listener], ends_at)
    yield ends
    yield _counter(
        "events_lost",
        "Events of clients that could not be written to the data directory.",
        now.events_lost,
    )
    yield _counters(
        "log_lines_left_out",
        "Lines about clients that were left out of the log, by kind.",
        "kind",
        now.log_lines_left_out,
    )


_HISTOGRAMS: Final = {
    "turn": ("turn_seconds", "Time of a turn: all sockets that were ready."),
    "acknowledge": ("acknowledge_seconds", "From a PUBLISH to its PUBACK or PUBREC."),
    "deliver": ("deliver_seconds", "From a PUBLISH to its packet to a subscriber."),
    "commit": ("store_commit_seconds", "From the hand-over of a group until it is durable."),
    "packet_bytes": ("publish_packet_bytes", "Size of received PUBLISH packets."),
}
# By what is written: the journal, which is in the database, and the log, which is in files.
_DISK: Final = {
    "store_sync_seconds": (
        "Time to sync the files of the log, or to commit the journal, where the database syncs.",
        {"journal_sync": "journal", "log_sync": "log"},
    ),
    "store_write_seconds": (
        "Time to write groups, sync included: a transaction of the journal, or files of the log.",
        {"journal_write": "journal", "log_write": "log"},
    ),
}


def _histograms(now: Snapshot) -> Iterator[Metric]:
    for key, (name, text) in _HISTOGRAMS.items():
        found = now.histograms.get(key)
        if found is not None:
            family = HistogramMetricFamily(PREFIX + name, text)
            family.add_metric([], _cumulative(found), found.total)
            yield family
    for name, (text, parts) in _DISK.items():
        family = HistogramMetricFamily(PREFIX + name, text, labels=["what"])
        for key, what in parts.items():
            found = now.histograms.get(key)
            if found is not None:
                family.add_metric([what], _cumulative(found), found.total)
        if family.samples:
            yield family


def _cumulative(found: HistogramFigures) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, more in found.buckets:
        count += more
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), count))
    return buckets


def _refused(found: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "refused", "Refusals, by what was refused and why.", labels=["what", "reason"]
    )
    for key, count in found.items():
        what, _, reason = key.partition("/")
        family.add_metric([what, reason], count)
    return family


def _access(found: Mapping[str, int]) -> Iterator[Metric]:
    if not found:
        return
    yield _gauge("access_waiting", "Clients that wait for hashing or SQL.", found["waiting"])
    yield _counter("access_hashes", "Passwords hashed.", found["hashes"])
    yield _counter("access_reloads", "Reloads of rules, users or bans.", found["reloads"])
    yield _counter("access_reload_failures", "Reloads that failed.", found["reload_failures"])
    yield _counter(
        "audit_lines_lost",
        "Lines that could not be written to the audit file.",
        found["audit_lines_lost"],
    )
    yield _gauge("bans", "Bans by operators and for flapping.", found["bans"])


def _store(store: StoreFigures, age_s: float) -> Iterator[Metric]:
    yield _gauge("store_up", "0 while the store fails.", not store.state)
    yield _counter("store_records", "Changes recorded in the journal.", store.records)
    yield _counter("store_commits", "Groups committed.", store.commits)
    yield _counter("store_folded", "Records folded into the tables.", store.folded)
    yield _counter(
        "store_cancelled",
        "Records dropped before they were written.",
        store.cancelled,
    )
    yield _counter("store_refused", "Messages that could not be stored.", store.refused)
    yield _counter("store_healed", "Contradictions in the store that were repaired.", store.healed)
    yield _gauge("store_oldest_unfolded_seconds", "Age of the oldest group not folded.", age_s)
    yield _gauge("store_lag_groups", "Groups committed and not folded yet.", store.lag)


def _replay(replay: ReplayFigures) -> Iterator[Metric]:
    yield _gauge("replay_readers", "Stream subscriptions of MQTT clients.", replay.readers)
    yield _counter("replay_messages", "Messages read from streams for clients.", replay.messages)
    yield _counter("replay_gap_offsets", "Offsets removed before they were read.", replay.gaps)
    yield _counter("replay_redelivered", "Messages delivered again.", replay.redelivered)
    yield _counter("replay_dead", "Messages given up after too many deliveries.", replay.dead)


def _streams(streams: Iterable[StreamFigures]) -> Iterator[Metric]:
    of, each = ["stream"], ["stream", "partition"]
    starts = GaugeMetricFamily(
        PREFIX + "stream_start_offset", "The earliest offset kept.", labels=each
    )
    ends = GaugeMetricFamily(PREFIX + "stream_end_offset", "The next offset.", labels=each)
    size = GaugeMetricFamily(PREFIX + "stream_bytes", "Bytes on disk.", labels=of)
    segments = GaugeMetricFamily(PREFIX + "stream_segments", "Segment files.", labels=of)
    appended = CounterMetricFamily(
        PREFIX + "stream_messages_appended", "Messages appended.", labels=of
    )
    refused = CounterMetricFamily(
        PREFIX + "stream_messages_refused",
        "Messages refused: too many waited.",
        labels=of,
    )
    failures = CounterMetricFamily(
        PREFIX + "stream_partition_failures",
        "Messages that went by client id: their partition function failed or is not configured.",
        labels=of,
    )
    for stream in streams:
        name = [stream.settings.name]
        for family, offsets in ((starts, stream.starts), (ends, stream.ends)):
            for number, offset in enumerate(offsets):
                family.add_metric([*name, str(number)], offset)
        size.add_metric(name, stream.bytes)
        segments.add_metric(name, stream.segments)
        appended.add_metric(name, stream.appended)
        refused.add_metric(name, stream.refused)
        failures.add_metric(name, stream.partition_failures)
    yield from (starts, ends, size, segments, appended, refused, failures)


def _groups(streams: Iterable[StreamFigures]) -> Iterator[Metric]:
    of = ["stream", "group"]
    each = [*of, "partition"]
    members = GaugeMetricFamily(PREFIX + "stream_group_members", "Connected members.", labels=of)
    committed = GaugeMetricFamily(
        PREFIX + "stream_group_committed_offset", "The next offset to deliver.", labels=each
    )
    lag = GaugeMetricFamily(
        PREFIX + "stream_group_lag_messages", "Messages not delivered yet.", labels=each
    )
    for stream in streams:
        for group in stream.groups:
            labels = [stream.settings.name, group.name]
            members.add_metric(labels, len(group.members))
            for family, numbers in ((committed, group.committed), (lag, group.lag)):
                for number, value in enumerate(numbers):
                    family.add_metric([*labels, str(number)], value)
    yield from (members, committed, lag)
