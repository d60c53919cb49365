"""What one client of the HTTP server may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections_max: int = 1_000
    idle_s: float = 30.0  # from one answer, or the connect, to the end of the next request's head
    line_bytes_max: int = 16 << 10  # offsets of 256 partitions fit into it
    head_fields_max: int = 64
    body_bytes_max: int = 1 << 20
    body_s: float = 10.0
    answer_s: float = 10.0  # how long the broker has to answer
    send_s: float = 30.0  # how long a client has to take what it asked for,
    send_bytes_per_s_min: int = 64 << 10  # and as much more as this takes
    threads: int = 4  # that wait for the disk
