"""Sources of messages beside live ones: readers of the telemetry log, at the client's pace.

A live message is pushed and waits in the session's queue if it has to. A source has its messages
elsewhere and gives one only when the session has room for it: it never fills a queue, and nothing
live waits behind more than a window of it. The session tells its sources when there is room, and
what became of the messages they gave.
"""

from __future__ import annotations

from typing import Final, Protocol

from sessions.journal.transaction import Delivery
from sessions.messages.message import Envelope, Message


class MessageSource(Protocol):
    """Gives messages to one session."""

    def on_room(self, now: float) -> None:
        """Send messages: the window, the peer and the queue may have room."""

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """Note that these left the window: acknowledged with this code, or too large to send."""


class SourcedMessage(Message):
    """A message that a source gave: one record of the log."""

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
        self.properties = properties  # as the log has them, without what the source added


class _NoSource:
    """Stands for the source of messages whose source is gone."""

    def on_room(self, now: float) -> None:
        pass

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        pass


NO_SOURCE: Final[MessageSource] = _NoSource()


def end_sourced(done: list[Delivery], reason: int, now: float) -> None:
    """Tell sources which of their messages were acknowledged."""
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
