"""Make a snapshot of a broker: plain numbers of the core and of the log's streams.

It runs on the broker's loop, only adds up counters and never blocks: with a thousand partitions it
takes about a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqtt_broker.codec.constants import PACKET_NAMES, PUBLISH
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import memory_limit_bytes
from mqtt_broker.core.sys_topics import publish_bytes_sent, publishes_sent
from mqtt_broker.http_api.request.broker_interface import (
    BanFigures,
    HistogramFigures,
    Snapshot,
    StoreFigures,
    StreamFigures,
)
from mqtt_broker.security.protection.bans import FLAPPING, Bans
from mqtt_broker.streams.format.figures import GroupFigures, ReplayFigures
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.version import __version__, build_kind
from sessions.messages.timings import Histogram, Timings

_BUILD: Final = build_kind()


def snapshot_of(
    broker: Broker,
    streams: Sequence[StreamFigures] = (),
    replay: ReplayFigures | None = None,
    *,
    is_stopping: bool = False,
) -> Snapshot:
    """Return the snapshot of a broker and its streams."""
    counters, backlog = broker.counters, broker.backlog
    sent = {name: counters.packets_sent[kind] for kind, name in PACKET_NAMES.items()}
    sent[PACKET_NAMES[PUBLISH]] = publishes_sent(broker.state)
    return Snapshot(
        version=__version__,
        build=_BUILD,
        started_at=counters.started_at,
        is_stopping=is_stopping or broker.clients.is_shutting_down,
        clients=len(broker.connections),
        clients_maximum=counters.clients_maximum,
        clients_expired=counters.clients_expired,
        sessions=len(broker.sessions),
        sockets=len(broker.links),
        sockets_accepted=counters.sockets,
        connects=counters.connections,
        packets_received={
            name: counters.packets_received[kind] for kind, name in PACKET_NAMES.items()
        },
        packets_sent=sent,
        bytes_received=counters.bytes_received,
        bytes_sent=counters.bytes_sent,
        publish_bytes_received=counters.publish_bytes_received,
        publish_bytes_sent=publish_bytes_sent(broker.state),
        dropped=dict(backlog.dropped),
        refused=counters.refusals(),
        accept_pauses=broker.runtime.metrics.read("accept").get("pauses", 0),
        throttled=counters.throttled,
        unread_bytes=broker.outboxes.waiting_bytes,
        aliases_bytes=broker.state.aliases.bytes,
        incomplete_bytes=broker.state.incomplete.bytes,
        inflight_bytes=backlog.inflight_bytes,
        sessions_bytes=broker.sessions.state.bytes,
        held=broker.backpressure.held(),
        access=broker.runtime.metrics.read("access"),
        subscriptions=broker.routes.count,
        subscriptions_bytes=broker.subscriptions.limits.bytes,
        shared_subscriptions=broker.routes.shared_count,
        retained_messages=len(broker.retained),
        retained_bytes=broker.retained.bytes,
        queued_messages=backlog.queued_messages,
        queued_bytes=backlog.queued_bytes,
        resident_bytes=broker.runtime.heap_bytes(),
        memory_limit_bytes=memory_limit_bytes(broker.settings),
        histograms=_histograms(broker.state.timings, counters.publish_bytes_received),
        store=_store_figures(broker),
        replay=replay,
        streams=tuple(streams),
    )


def _histograms(timings: Timings, publish_bytes: int) -> dict[str, HistogramFigures]:
    """Return the histograms of the core by their names in metrics."""
    sizes = timings.packet_sizes
    bounds = [float(1 << n) for n in range(len(sizes) - 1)]
    found = {
        "turn": seconds_of(timings.turn),
        "acknowledge": seconds_of(timings.acknowledge),
        "deliver": seconds_of(timings.deliver),
        "commit": seconds_of(timings.commit),
    }
    return {**found, "packet_bytes": HistogramFigures(_buckets(bounds, sizes), publish_bytes)}


def seconds_of(histogram: Histogram) -> HistogramFigures:
    """Return a histogram of microseconds as one of seconds."""
    counts, total = histogram.copy()
    return HistogramFigures(
        _buckets([(1 << n) / 1e6 for n in range(len(counts) - 1)], counts), total / 1e6
    )


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[float, int]]:
    """Return every second bound, which is fine enough, with what is up to it."""
    found: list[tuple[float, int]] = []
    waiting = 0
    for number, (bound, count) in enumerate(zip(bounds, counts, strict=False)):
        waiting += count
        if number % 2 == 0:
            found.append((bound, waiting))
            waiting = 0
    return [*found, (float("inf"), waiting + counts[-1])]


def ban_figures(bans: Bans, now: float) -> list[BanFigures]:
    """Return the bans in force, operators' bans first."""
    found = [
        BanFigures(ban.kind, ban.value, ban.until, ban.why) for ban in bans.made() if ban.holds(now)
    ]
    for (username, client_id, address), until in bans.flapped(now):
        source = "" if address is None else str(address)
        found.append(BanFigures("client", client_id, until, FLAPPING, FLAPPING, username, source))
    return found


def _store_figures(broker: Broker) -> StoreFigures | None:
    if broker.journal is None:
        return None
    numbers = broker.runtime.metrics.read("store")
    return StoreFigures(
        state=broker.backpressure.store_state,
        records=numbers.get("records", 0),
        commits=numbers.get("commits", 0),
        folded=numbers.get("folded", 0),
        cancelled=numbers.get("cancelled", 0),
        refused=numbers.get("refused", 0),
        healed=numbers.get("healed", 0),
        lag=numbers.get("lag", 0),
    )


def stream_figures(
    stream: Stream,
    *,
    appended: int = 0,
    refused: int = 0,
    groups: Sequence[GroupFigures] = (),
) -> StreamFigures:
    """Return the numbers of a stream from memory.

    Any thread may call it: catalogs are replaced whole.
    """
    partitions = stream.partitions
    return StreamFigures(
        settings=stream.settings,
        starts=tuple(partition.catalog.start for partition in partitions),
        ends=tuple(partition.committed for partition in partitions),
        bytes=sum(partition.size for partition in partitions),
        segments=sum(
            len(partition.catalog) + bool(partition.active.size) for partition in partitions
        ),
        appended=appended,
        refused=refused,
        partition_failures=stream.partitioner.failures,
        groups=tuple(groups),
    )
