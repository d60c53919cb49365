"""Counters. Plain ints that are added to once a burst, read by `$SYS`, metrics and tests."""

from __future__ import annotations


class Stats:
    """Since the start of the broker; the lists are indexed by packet type."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_expired",
        "clients_maximum",
        "connections",
        "packets_received",
        "packets_sent",
        "publish_bytes_received",
        "publish_bytes_sent",
        "refusals",
        "sockets",
        "started_at",
        "throttled",
        "violations",
    )

    def __init__(self, now: float) -> None:
        self.started_at = now
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = [0] * 16
        self.packets_sent = [0] * 16
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.sockets = 0  # connections accepted
        self.connections = 0  # CONNECTs that succeeded
        self.clients_maximum = 0
        self.clients_expired = 0
        self.throttled = 0  # times a client was not read because it was faster than it may be
        self.refusals: dict[str, int] = {}  # reason -> connections that never came to MQTT
        self.violations: dict[int, int] = {}  # reason code -> connections closed for it
