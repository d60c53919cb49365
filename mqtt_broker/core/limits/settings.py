"""Every limit and every choice of the broker core, with its default.

Each field is a key of the TOML file, and `FLEETMQ_<KEY>` in the environment. Names end with their
unit. The limits that CONNACK announces (Receive Maximum, Maximum Packet Size, Topic Alias Maximum)
are taken from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from mqtt_broker.codec.constants import NEVER_EXPIRES, REMAINING_LENGTH_MAX

UNLIMITED: Final = 2**53  # integers up to here are exact as floats


def _option(default: Any, help: str, low: Any = 0, high: Any = UNLIMITED) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and choices of the broker; each field is a key of docs/CONFIGURATION.md."""

    # What a client may do.
    max_keepalive: int = _option(
        65_535, "longest keep alive in seconds; MQTT 5 clients that request more (or none, if it "
        "is set) get Server Keep Alive", 1, 65_535
    )  # fmt: skip
    receive_maximum: int = _option(
        20, "QoS 2 messages that a client may have in flight to the broker", 1, 65_535
    )
    packet_bytes_max: int = _option(
        2_000_000, "largest packet that a client may send", 20, REMAINING_LENGTH_MAX + 5
    )
    connect_bytes_max: int = _option(524_288, "largest CONNECT", 20, REMAINING_LENGTH_MAX + 5)
    connecting_bytes_max: int = _option(
        64 << 20, "bytes kept for all clients that are not yet connected", 1024
    )
    incomplete_bytes_max: int = _option(
        256 << 20, "bytes of incomplete packets kept for all connected clients", 1 << 16
    )
    topic_alias_maximum: int = _option(10, "Topic Aliases that a client may use", 0, 65_535)
    topic_alias_outbound_max: int = _option(
        100, "Topic Aliases used towards a client that allows them", 0, 65_535
    )
    aliases_bytes_max: int = _option(
        64 << 20, "bytes of the Topic Aliases of all connected clients, in both directions", 1024
    )
    topic_levels_max: int = _option(201, "levels of a Topic Name or Topic Filter", 1, 65_535)
    maximum_qos: int = _option(2, "highest QoS a client may publish with", 0, 2)
    retain_available: bool = _option(True, "whether messages may be retained")
    allow_zero_length_clientid: bool = _option(
        True, "whether clients may connect without a Client Identifier"
    )
    auto_id_prefix: str = _option("auto-", "prefix of assigned Client Identifiers")
    session_expiry_s_max: int = _option(
        NEVER_EXPIRES, "maximum Session Expiry Interval", 0, NEVER_EXPIRES
    )
    response_information: str = _option(
        "", "Response Information for MQTT 5 clients that request it"
    )

    # Limits.
    connections_max: int = _option(100_000, "connected clients", 1)
    sessions_max: int = _option(1_000_000, "sessions, connected or not", 1)
    sessions_bytes_max: int = _option(
        512 << 20,
        "bytes of the client ids, user names, wills and open QoS 2 exchanges of all sessions",
        1024,
    )
    subscriptions_max: int = _option(10_000, "subscriptions of one client", 1)
    subscriptions_bytes_max: int = _option(
        16 << 20, "bytes of the subscriptions of one client, with their index", 1024
    )
    subscriptions_total_bytes_max: int = _option(
        1 << 30, "bytes of the subscriptions of all clients", 1024
    )
    subscription_overlap_max: int = _option(
        1_000, "levels of one client's wildcard and shared filters that one topic may match", 10
    )
    inflight_max: int = _option(65_535, "QoS 1 and 2 messages in flight to one client", 1, 65_535)
    inflight_bytes_max: int = _option(
        64 << 20, "bytes of QoS 1 and 2 messages in flight to one client; further ones are queued",
        1024
    )  # fmt: skip
    inflight_total_bytes_max: int = _option(
        256 << 20, "bytes of QoS 1 and 2 messages in flight to all clients, which they share", 1024
    )
    queue_messages_max: int = _option(100_000, "messages queued for one client")
    queue_bytes_max: int = _option(64 << 20, "bytes queued for one client")
    queue_total_bytes_max: int = _option(1 << 30, "bytes queued for all clients")
    queue_memory_bytes_max: int = _option(
        256 << 20, "bytes of queued messages in memory; others are in the store only", 1 << 20
    )
    journal_bytes_max: int = _option(
        64 << 20, "bytes that may wait for the store before reading from publishers pauses", 1 << 16
    )
    stream_bytes_max: int = _option(
        32 << 20, "bytes that may wait for the telemetry log before reading from publishers pauses",
        1 << 16
    )  # fmt: skip
    stream_cache_bytes: int = _option(
        128 << 20, "newest bytes of the telemetry log that stay in the system's page cache; 0: the "
        "system decides"
    )  # fmt: skip
    queue_full: str = _option("drop_oldest", "drop_oldest, drop_new or disconnect")
    queue_qos0: bool = _option(False, "whether QoS 0 messages are queued for offline clients")
    retained_messages_max: int = _option(1_000_000, "retained messages")
    retained_bytes_max: int = _option(
        1 << 30, "bytes of retained messages in memory, with their topics"
    )

    dead_letters: str = _option(
        "", "messages that are published under $dlq/ when they are not delivered: all, or some of "
        "expired, queue_full, schema and redelivery, separated by commas"
    )  # fmt: skip
    replay_skips_damage: bool = _option(
        False, "whether MQTT readers of the telemetry log skip damaged records"
    )
    redeliveries_max: int = _option(
        5, "how often a message is redelivered to a consumer group before it becomes a dead "
        "letter; without dead letters for redelivery, there is no limit", 1
    )  # fmt: skip

    recorder_bytes_max: int = _option(
        64 << 20, "bytes of the flight recorder, which keeps what was decided about each message; "
        "0: nothing is recorded", 0, 4 << 30
    )  # fmt: skip

    # Slow readers and back-pressure.
    outbox_bytes_max: int = _option(
        4 << 20, "unread bytes of a client above which QoS 0 to it is dropped and QoS 1 and 2 wait",
        1024
    )  # fmt: skip
    outbox_total_bytes_max: int = _option(
        256 << 20, "unread bytes of all clients, which share it; if one turn exceeds it, the "
        "clients with the most unread bytes are disconnected", 1024
    )  # fmt: skip
    stalled_reader_s: int = _option(
        120, "seconds after which a client that reads nothing is disconnected; while many bytes "
        "are unread, also one that reads too slowly", 1
    )  # fmt: skip

    # Time.
    connect_timeout_s: float = _option(10.0, "seconds from accept to a complete CONNECT", 0.01)
    unanswered_s_max: float = _option(
        10.0, "seconds that an acknowledgement may wait for the store before the broker is "
        "unhealthy; 0: no limit"
    )  # fmt: skip
    loop_late_s_max: float = _option(
        5.0, "seconds that the event loop may be late before the broker is unhealthy; 0: no limit"
    )
    sys_interval_s: int = _option(10, "seconds between $SYS updates; 0 for none")
    retained_sweep_s: int = _option(60, "seconds between sweeps for expired retained messages", 1)

    # Behaviour.
    shared_strategy: str = _option(
        "round_robin",
        "round_robin, random, sticky, hash_client, hash_topic, least_inflight, or a class of your "
        "own as package.module:Class",
    )
    client_events: bool = _option(
        False, "publish connects, disconnects and subscriptions under $SYS/broker/clients/<id>/"
    )


DEFAULTS: Final = Settings()


def memory_limit_bytes(settings: Settings) -> int:
    """Add up the limits of what all clients together may have in memory."""
    return (
        settings.connecting_bytes_max
        + settings.incomplete_bytes_max
        + settings.aliases_bytes_max
        + settings.sessions_bytes_max
        + settings.subscriptions_total_bytes_max
        + settings.inflight_total_bytes_max
        + settings.queue_memory_bytes_max
        + settings.journal_bytes_max
        + settings.stream_bytes_max
        + settings.retained_bytes_max
        + settings.outbox_total_bytes_max
    )
