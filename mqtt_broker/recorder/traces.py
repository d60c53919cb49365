"""Traces: packets of a client or an address, or publications of a topic, as they come.

A trace ends by itself, after a time or a number of packets. Its lines wait for their reader in a
bounded list: a reader that is too slow loses lines, and is told how many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from mqtt_broker.topics.names import matches

TRACES_MAX: Final = 16
LINES_MAX: Final = 2_000  # that wait for their reader
PAYLOAD_MAX: Final = 1_024  # bytes of a payload that are shown

Line = dict[str, object]


class Trace:
    """A trace of a client, a topic or an address, and the lines that wait for its reader."""

    __slots__ = (
        "_lines",
        "_lost",
        "address",
        "client_id",
        "ends_at",
        "has_payloads",
        "is_over",
        "number",
        "packets",
        "packets_max",
        "topic",
    )

    def __init__(
        self,
        number: int,
        *,
        client_id: str,
        topic: str,
        address: str,
        has_payloads: bool,
        ends_at: float,
        packets_max: int,
    ) -> None:
        self.number = number
        self.client_id = client_id  # one of these three
        self.topic = topic  # a filter
        self.address = address
        self.has_payloads = has_payloads
        self.ends_at = ends_at
        self.packets_max = packets_max
        self.packets = 0
        self.is_over = False
        self._lines: deque[Line] = deque()
        self._lost = 0

    def add(self, line: Line) -> None:
        """Add a line; the last one that it may have ends the trace."""
        if self.is_over:
            return
        self.packets += 1
        if len(self._lines) >= LINES_MAX:
            self._lost += 1
        else:
            self._lines.append(line)
        if self.packets >= self.packets_max:
            self.end()

    def end(self) -> None:
        """End the trace; what waits can still be read."""
        self.is_over = True

    def take(self, count: int, now: float) -> list[Line]:
        """Return lines that wait and, behind them, how many were lost."""
        taken = [self._lines.popleft() for _ in range(min(count, len(self._lines)))]
        if self._lost and not self._lines:
            taken.append({"at": now, "lost": self._lost})
            self._lost = 0
        return taken


class Traces:
    """The traces that run."""

    __slots__ = ("_last", "running")

    def __init__(self) -> None:
        self._last = 0
        self.running: dict[int, Trace] = {}

    def add(
        self,
        now: float,
        *,
        client_id: str = "",
        topic: str = "",
        address: str = "",
        has_payloads: bool = False,
        for_s: float = 600.0,
        packets_max: int = 10_000,
    ) -> Trace:
        """Begin a trace."""
        self._last += 1
        trace = Trace(
            self._last,
            client_id=client_id,
            topic=topic,
            address=address,
            has_payloads=has_payloads,
            ends_at=now + for_s,
            packets_max=packets_max,
        )
        self.running[trace.number] = trace
        return trace

    def remove(self, number: int) -> bool:
        """End a trace and forget it; False: there is none."""
        trace = self.running.pop(number, None)
        if trace is None:
            return False
        trace.end()
        return True

    def of_topic(self, topic: str) -> Iterator[Trace]:
        """Yield the traces that want publications to a topic."""
        for trace in self.running.values():
            if trace.topic and not trace.is_over and matches(trace.topic, topic):
                yield trace

    def of_client(self, client_id: str, address: str) -> list[Trace]:
        """Return the traces that want the packets of a client."""
        return [
            trace
            for trace in self.running.values()
            if not trace.is_over
            and (
                (trace.client_id and trace.client_id == client_id)
                or (trace.address and trace.address == address)
            )
        ]

    @property
    def wants_topics(self) -> bool:
        return any(trace.topic and not trace.is_over for trace in self.running.values())
