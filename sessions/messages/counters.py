"""Counters: plain ints, raised once per burst, and read by `$SYS`, metrics and tests.

Every refusal is counted in `refused` as `<what>/<reason>`, where `<what>` is one of:

    connection    before MQTT: a full listener, a ban, TLS, a PROXY header, ...
    connect       a refusal in CONNACK
    will          a will refused with its CONNECT, or when it is due
    publish       a refusal in PUBACK or PUBREC, or one without a packet to carry it
    subscribe     a refusal in SUBACK
    disconnect    a client that the broker disconnects, for an error or a limit
"""

from __future__ import annotations


class Counters:
    """Counts since the start of the broker; the lists are indexed by packet type."""

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
        self.sockets = 0  # accepted connections
        self.connections = 0  # successful CONNECTs
        self.clients_maximum = 0
        self.clients_expired = 0
        self.throttled = 0  # times that reading from a client was paused because of its rate
        self.refused: dict[str, int] = {}  # by `what/reason`, with the reason as in the log

    def refuse(self, what: str, reason: str, count: int = 1) -> None:
        key = f"{what}/{reason}"
        self.refused[key] = self.refused.get(key, 0) + count

    def refusals(self) -> dict[str, int]:
        """Return `refused` by the names of `$SYS` and metrics, such as `connect/server_busy`."""
        found: dict[str, int] = {}
        for key, count in self.refused.items():
            name = key.lower().replace(" ", "_").replace("-", "_")
            found[name] = found.get(name, 0) + count
        return found
