"""Distributed traces of messages; implemented by the server where they are asked for."""

from __future__ import annotations

from typing import Protocol

from sessions.messages.backlog import DeliveryTracer


class MessageTrace(Protocol):
    """The spans of one PUBLISH, or of a run of them, before it is delivered."""

    @property
    def traceparent(self) -> str:
        """The W3C trace context that subscribers get, of which deliveries are children."""

    def begin_store(self) -> None:
        """Note that the message is handed to the store."""

    def end_store(self) -> None:
        """Note that it is on disk, or need not be."""

    def end(self) -> None:
        """Note that the PUBLISH has been acted upon."""


class MessageTracer(DeliveryTracer, Protocol):
    """Decides which messages are traced.

    Their deliveries are traced by the context that the messages themselves carry, so it outlives
    queues and restarts.
    """

    def begin(
        self, traceparent: str, client_id: str, topic: str, qos: int, size: int, now: float
    ) -> MessageTrace | None:
        """Begin the trace of a PUBLISH; None: it is not sampled."""
