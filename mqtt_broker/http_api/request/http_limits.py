"""Limits of what clients of the HTTP server may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of what clients of the HTTP server may use."""

    connections_max: int = 1_000
    idle_s: float = 30.0  # from connect or answer to the end of the next request's headers
    line_bytes_max: int = 16 << 10  # offsets of 256 partitions fit into it
    head_fields_max: int = 64
    hand_over_s: float = 0.5  # for those to ask who connected before the broker was ready
    body_bytes_max: int = 1 << 20
    body_s: float = 10.0
    answer_s: float = 10.0  # how long the broker has to answer
    send_s: float = 30.0  # how long a client has to read some of an answer, or a part of the log,
    send_bytes_per_s_min: int = 64 << 10  # extended by the size of that part at this rate
    threads: int = 4  # requests that wait for the disk at once
    requests_per_s: float = 100.0  # to the API, of a token, a session or an address,
    requests_burst: float = 400.0  # and as many at once
    logins_per_s: float = 0.2  # that fail, of an address,
    logins_burst: float = 10.0  # and as many at once
    session_s: float = 86_400.0  # how long a session of the page lasts
