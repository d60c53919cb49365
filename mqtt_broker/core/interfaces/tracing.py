"""Distributed traces of messages; implemented by the server where they are asked for."""

from __future__ import annotations

from typing import Protocol


class MessageTrace(Protocol):
    """The spans of one PUBLISH."""

    @property
    def traceparent(self) -> str:
        """The W3C trace context that subscribers get."""

    def deliver(self, client_id: str, *, is_online: bool) -> None:
        """Note a receiver; the message is sent to it, or waits in its queue."""

    def begin_store(self) -> None:
        """Note that the message is handed to the store."""

    def end_store(self) -> None:
        """Note that it is on disk, or need not be."""

    def end(self) -> None:
        """Note that the PUBLISH has been acted upon."""


class MessageTracer(Protocol):
    """Decides which messages are traced."""

    def begin(
        self, traceparent: str, client_id: str, topic: str, qos: int, size: int
    ) -> MessageTrace | None:
        """Begin the trace of a PUBLISH; None: it is not sampled."""
