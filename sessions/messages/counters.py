"""Counters. Plain ints that are added to once a burst, read by `$SYS`, metrics and tests.

What is turned away is counted in one place, `refused`, as `<what>/<reason>`. What is named after
the moment at which it is said:

    connection    it never came to MQTT: a full listener, a ban, TLS, a balancer's header, ...
    connect       CONNACK says no
    will          of a CONNECT, or when it was due
    publish       PUBACK and PUBREC say no, or nothing can
    subscribe     SUBACK says no
    disconnect    a client that was in is put out: for its mistake, or for a limit
"""

from __future__ import annotations


class Counters:
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
        "refused",
        "sockets",
        "started_at",
        "throttled",
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
        self.refused: dict[str, int] = {}  # `what/reason`, the reason as the log says it

    def refuse(self, what: str, reason: str, count: int = 1) -> None:
        key = f"{what}/{reason}"
        self.refused[key] = self.refused.get(key, 0) + count

    def refusals(self) -> dict[str, int]:
        """`refused` under the names that `$SYS` and metrics have: `connect/server_busy`."""
        found: dict[str, int] = {}
        for key, count in self.refused.items():
            name = key.lower().replace(" ", "_").replace("-", "_")
            found[name] = found.get(name, 0) + count
        return found
