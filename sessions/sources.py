"""Sources of messages beside live ones: readers of the telemetry log, at the client's pace.

A live message is pushed and may wait in the session's queue. A source keeps its messages elsewhere
and sends one only when the session has room, so it never fills the queue, and a live message waits
for at most a window of its messages. The session tells its sources when there is room, and which
of their messages left the window.
"""

from __future__ import annotations

from typing import Final, Protocol

from sessions.journal.transaction import Delivery
from sessions.messages.message import Envelope, Message


class MessageSource(Protocol):
    """Sends messages to one session."""

    def on_room(self, now: float) -> None:
        """Send messages: the window, the peer and the queue may have room."""

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """Note that messages left the window: acknowledged with `reason`, or too large to send."""


class SourcedMessage(Message):
    """A message of a source: one record of the log."""

    __slots__ = ("offset", "partition", "properties", "source")

    def __init__(
        self,
        envelope: Envelope,
        payload: bytes,
        source: MessageSource,
        partition: int,
        offset: int,
        properties: bytes,
    ) -> None:
        super().__init__(envelope, payload)
        self.source = source
        self.partition = partition
        self.offset = offset
        self.properties = properties  # as in the log, without those that the source added


class _NoSource:
    """Replaces the source of messages whose source has gone."""

    def on_room(self, now: float) -> None:
        pass

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        pass


NO_SOURCE: Final[MessageSource] = _NoSource()


def end_sourced(done: list[Delivery], reason: int, now: float) -> None:
    """Tell the sources of these messages that they left the window."""
    run: list[SourcedMessage] = []
    for item in done:
        message = item[0]
        if isinstance(message, SourcedMessage):
            if run and run[0].source is not message.source:
                run[0].source.on_done(run, reason, now)
                run = []
            run.append(message)
    if run:
        run[0].source.on_done(run, reason, now)
