"""The part of the broker's interface that asks the flight recorder."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, Protocol

from mqtt_broker.http_api.request.broker_interface import Part
from mqtt_broker.recorder.figures import (
    FactFigures,
    SlowFigures,
    TopicFigures,
    TraceFigures,
    TraceLines,
    TraceWanted,
    WhyFigures,
)
from mqtt_broker.recorder.message_ids import MessageName


class FlightRecords(Protocol):
    """The flight recorder of a broker. Times are seconds before now."""

    def why(
        self, client_id: str, topic: str, since_s: float, message: MessageName | None = None
    ) -> Future[WhyFigures]:
        """Find out why a client did, or did not, get what was published, or one message of it."""
        ...

    def events(self, client_id: str, since_s: float) -> Future[list[FactFigures]]:
        """Return the events of a client, or (empty) of all, the newest first."""
        ...

    def slow(self, count: int) -> Future[list[SlowFigures]]:
        """Return the slowest subscribers."""
        ...

    def topics(self) -> Future[list[TopicFigures]]:
        """Return the busiest topics."""
        ...

    def trace_begin(self, wanted: TraceWanted) -> Future[TraceFigures]:
        """Begin a trace."""
        ...

    def traces(self) -> Future[list[TraceFigures]]:
        """Return the traces."""
        ...

    def trace_end(self, number: int) -> Future[bool]:
        """End a trace; False: there is none."""
        ...

    def trace_lines(self, number: int, count: int) -> Future[TraceLines | None]:
        """Take lines of a trace; None: there is none."""
        ...


RECORDS: Final[Part[FlightRecords]] = Part("flight recorder: recorder_bytes_max is 0")
