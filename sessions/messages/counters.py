"""Counters: plain ints that are added to once a burst, read by `$SYS`, metrics and tests.

Every refusal is counted in `refused`, as `<what>/<reason>`. The first part names the moment:

    connection    before MQTT: a full listener, a ban, TLS, a balancer's header, ...
    connect       a refusal in CONNACK
    will          a will that is refused with its CONNECT, or when it is due
    publish       a refusal in PUBACK or PUBREC, or one that no packet can carry
    subscribe     a refusal in SUBACK
    disconnect    a connected client that is disconnected, for an error or for a limit
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
        self.sockets = 0  # connections accepted
        self.connections = 0  # CONNECTs that succeeded
        self.clients_maximum = 0
        self.clients_expired = 0
        self.throttled = 0  # times a client was not read because it was over its rate
        self.refused: dict[str, int] = {}  # by `what/reason`, with the reason as the log has it

    def refuse(self, what: str, reason: str, count: int = 1) -> None:
        key = f"{what}/{reason}"
        self.refused[key] = self.refused.get(key, 0) + count

    def refusals(self) -> dict[str, int]:
        """Return `refused` by the names in `$SYS` and metrics, such as `connect/server_busy`."""
        found: dict[str, int] = {}
        for key, count in self.refused.items():
            name = key.lower().replace(" ", "_").replace("-", "_")
            found[name] = found.get(name, 0) + count
        return found
