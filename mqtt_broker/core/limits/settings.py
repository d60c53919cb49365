"""Every limit and every choice of the broker core, with its default.

Each field is a key of the TOML file and `FLEETMQ_<KEY>` in the environment. Units stand
last in the names. What a client is told about limits (Receive Maximum, Maximum Packet Size,
Topic Alias Maximum) follows from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from mqtt_broker.codec.constants import NEVER_EXPIRES, REMAINING_LENGTH_MAX

UNLIMITED: Final = 2**53  # the largest number that time and memory are still counted in exactly


def _option(default: Any, help: str, low: Any = 0, high: Any = UNLIMITED) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and choices of the broker; each field is a key of docs/CONFIGURATION.md."""

    # What a client may do.
    max_keepalive: int = _option(
        65_535, "longest keep alive in seconds; MQTT 5 clients that ask for more (or for none, "
        "when it is set) are told Server Keep Alive", 1, 65_535
    )  # fmt: skip
    receive_maximum: int = _option(
        20, "unfinished QoS 1 and 2 messages a client may have under way to us", 1, 65_535
    )
    packet_bytes_max: int = _option(
        2_000_000, "largest packet a client may send", 20, REMAINING_LENGTH_MAX + 5
    )
    connect_bytes_max: int = _option(
        524_288, "largest CONNECT, from whom nothing is known yet", 20, REMAINING_LENGTH_MAX + 5
    )
    connecting_bytes_max: int = _option(
        64 << 20, "bytes of clients that are not connected yet, of all", 1024
    )
    topic_alias_maximum: int = _option(10, "Topic Aliases a client may use", 0, 65_535)
    topic_alias_outbound_max: int = _option(
        100, "Topic Aliases used towards a client that allows them", 0, 65_535
    )
    topic_levels_max: int = _option(201, "levels of a Topic Name or Topic Filter", 1, 65_535)
    maximum_qos: int = _option(2, "highest QoS a client may publish with", 0, 2)
    retain_available: bool = _option(True, "whether messages may be retained")
    allow_zero_length_clientid: bool = _option(True, "whether clients may come without a name")
    auto_id_prefix: str = _option("auto-", "what an assigned Client Identifier begins with")
    session_expiry_s_max: int = _option(
        NEVER_EXPIRES, "longest Session Expiry Interval granted", 0, NEVER_EXPIRES
    )
    response_information: str = _option(
        "", "topic prefix for responses, told to MQTT 5 clients that ask"
    )

    # How much of everything.
    connections_max: int = _option(100_000, "clients connected at once", 1)
    sessions_max: int = _option(1_000_000, "sessions, connected or not", 1)
    subscriptions_max: int = _option(10_000, "subscriptions of one client", 1)
    inflight_max: int = _option(65_535, "QoS 1 and 2 messages under way to one client", 1, 65_535)
    queue_messages_max: int = _option(100_000, "messages that wait for one client")
    queue_bytes_max: int = _option(64 << 20, "bytes that wait for one client")
    queue_total_bytes_max: int = _option(1 << 30, "bytes that wait for all clients")
    queue_memory_bytes_max: int = _option(
        256 << 20, "bytes of waiting messages in memory, when the store has the others", 1 << 20
    )
    journal_bytes_max: int = _option(
        64 << 20, "bytes on their way to the store until publishers are held back", 1 << 16
    )
    stream_bytes_max: int = _option(
        32 << 20, "bytes on their way to the telemetry log until publishers are held back", 1 << 16
    )
    stream_cache_bytes: int = _option(
        128 << 20, "newest bytes of the telemetry log that stay in the system's page cache; 0: as "
        "the system likes"
    )  # fmt: skip
    queue_full: str = _option("drop_oldest", "drop_oldest, drop_new or disconnect")
    queue_qos0: bool = _option(False, "whether QoS 0 messages wait for clients that are away")
    retained_messages_max: int = _option(1_000_000, "retained messages")
    retained_bytes_max: int = _option(1 << 30, "bytes of retained messages")

    dead_letters: str = _option(
        "", "what is published under $dlq/ when it cannot reach a client: all, or some of expired, "
        "queue_full, schema and redelivery with commas between"
    )  # fmt: skip
    replay_skips_damage: bool = _option(
        False, "whether MQTT readers of the telemetry log go on behind what is damaged"
    )
    redeliveries_max: int = _option(
        5, "how often a consumer group is given a message again until it becomes a dead letter; "
        "without dead letters for redelivery, always", 1
    )  # fmt: skip

    # Slow readers and back-pressure.
    outbox_bytes_max: int = _option(
        4 << 20, "bytes unread by a client until QoS 0 to it is dropped and QoS 1 and 2 wait", 1024
    )
    outbox_total_bytes_max: int = _option(
        256 << 20, "bytes unread by all clients until publishers are held back", 1024
    )
    stalled_reader_s: int = _option(
        120, "seconds after which a client that reads nothing at all is disconnected", 1
    )

    # Time.
    connect_timeout_s: float = _option(10.0, "time from accept to a whole CONNECT", 0.01)
    unanswered_s_max: float = _option(
        10.0, "how long an acknowledgement may wait for the store until the broker says it is "
        "unhealthy; 0: any time"
    )  # fmt: skip
    loop_late_s_max: float = _option(
        5.0, "how late the event loop may be until the broker says it is unhealthy; 0: any time"
    )
    sys_interval_s: int = _option(10, "seconds between $SYS updates; 0 for none")
    retained_sweep_s: int = _option(60, "seconds between sweeps for expired retained messages", 1)

    # Behaviour.
    shared_strategy: str = _option(
        "round_robin",
        "round_robin, random, sticky, hash_client, hash_topic, least_inflight, or your own as "
        "package.module:Class",
    )
    client_events: bool = _option(
        False, "publish connects, disconnects and subscriptions under $SYS/broker/clients/<id>/"
    )


DEFAULTS: Final = Settings()
