"""The memory that all limits allow: the list of docs/reference/memory.md, held by `make soak`.

Each limit in bytes is a share, or a part of one that belongs to a single client. Limits that count
things, such as sessions, have a share of what each of them takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqtt_broker.core.limits.preconnect_limits import SMALL_BYTES
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.recorder import pending_events
from mqtt_broker.streams.replay.context import BUFFERED_BYTES_MAX
from mqtt_broker.topics import cache

CONNECTION_BYTES: Final = 4 << 10  # of a connection, its session included, without TLS
SESSION_BYTES: Final = 2_560  # of a session whose client is away
BASE_BYTES: Final = 256 << 20  # the program, its libraries, and the caches of SQLite
_SMALL_ROUTE_BYTES: Final = 1_280

# Limits of one client or one thing, and the limit of all that they are a part of.
PARTS: Final = {
    "packet_bytes_max": "incomplete_bytes_max",
    "connect_bytes_max": "connecting_bytes_max",
    "subscriptions_bytes_max": "subscriptions_total_bytes_max",
    "inflight_bytes_max": "inflight_total_bytes_max",
    "queue_bytes_max": "queue_total_bytes_max",
    "outbox_bytes_max": "outbox_total_bytes_max",
}
# Not memory of this process: bytes on disk, and pages that the system gives up when it needs them.
ELSEWHERE: Final = {"stream_cache_bytes": "the system's page cache"}


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The memory that one limit adds."""

    limit: str  # the setting that sets it, or empty
    what: str
    bytes: int


def memory_shares(settings: Settings, *, is_stored: bool = True) -> list[MemoryShare]:
    """Return what each limit adds, with a store or without one (`durability = "memory"`)."""
    one = settings
    routes = cache.BYTES_MAX + cache.TOPICS_MAX * (_SMALL_ROUTE_BYTES + cache.NOTED_BYTES)
    shares = [
        ("connections_max", "4 KiB of a connection, and small parts of packets up to 16 KiB",
         one.connections_max * (CONNECTION_BYTES + SMALL_BYTES)),
        ("sessions_max", "2.5 KiB of a session", one.sessions_max * SESSION_BYTES),
        ("connecting_bytes_max", "CONNECTs that are incomplete or undecided",
         one.connecting_bytes_max),
        ("incomplete_bytes_max", "incomplete packets of connected clients",
         one.incomplete_bytes_max),
        ("aliases_bytes_max", "Topic Aliases", one.aliases_bytes_max),
        ("sessions_bytes_max", "client ids, user names, wills, open QoS 2 exchanges",
         one.sessions_bytes_max),
        ("subscriptions_total_bytes_max", "subscriptions and their index",
         one.subscriptions_total_bytes_max),
        ("retained_bytes_max", "retained messages and their index", one.retained_bytes_max),
        ("inflight_total_bytes_max", "messages in flight to clients",
         one.inflight_total_bytes_max),
        ("outbox_total_bytes_max", "unread bytes, and an eighth more of connections that close",
         one.outbox_total_bytes_max * 9 // 8),
        ("recorder_bytes_max", "the flight recorder", one.recorder_bytes_max),
        ("", "events of clients on their way to the disk",
         2 * pending_events.BYTES_MAX * (one.recorder_bytes_max > 0)),
        ("", "routes of topics, kept until subscriptions change", routes),
    ]  # fmt: skip
    if is_stored:
        shares += [
            ("queue_memory_bytes_max", "queued messages in memory: twice, and those being applied",
             3 * one.queue_memory_bytes_max),
            ("journal_bytes_max", "records that wait for the disk: up to twice",
             2 * one.journal_bytes_max),
            ("stream_bytes_max", "records that wait for the telemetry log: up to twice",
             2 * one.stream_bytes_max),
            ("", "pages of the telemetry log that were read ahead", BUFFERED_BYTES_MAX),
        ]  # fmt: skip
    else:
        shares.append(("queue_total_bytes_max", "queued messages", one.queue_total_bytes_max))
    shares.append(("", "the program, its libraries, and the caches of SQLite", BASE_BYTES))
    return [MemoryShare(*share) for share in shares]


def memory_bytes_max(settings: Settings, *, is_stored: bool = True) -> int:
    """Return the sum of all shares."""
    return sum(share.bytes for share in memory_shares(settings, is_stored=is_stored))
