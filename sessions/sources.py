"""What feeds a session beside live messages: readers of the telemetry log, at the client's pace.

A live message is pushed and waits in the session's queue if it has to. A feed has its messages
somewhere else, and gives one only when the session has room for it: it never fills a queue, and
nothing live waits behind more than a window of it. The session tells its feeds when there is
room, and what became of the messages they gave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mqtt_broker.codec.encode import ID_BYTES
from sessions.journal.journal import Item
from sessions.messages.message import DeliveryOptions, Envelope, Message

if TYPE_CHECKING:
    from sessions.session import Session


class MessageSource(Protocol):
    """Gives messages to one session."""

    def on_room(self, now: float) -> None:
        """There may be room: the window, the peer and the queue allow it."""

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        """These left the window: acknowledged with this code, or too large for the peer."""


class SourcedMessage(Message):
    """A message that a feed gave: one record of the log."""

    __slots__ = ("feed", "offset", "partition", "properties")

    def __init__(
        self,
        envelope: Envelope,
        payload: bytes,
        feed: MessageSource,
        partition: int,
        offset: int,
        properties: bytes,
    ) -> None:
        super().__init__(envelope, payload)
        self.feed = feed
        self.partition = partition
        self.offset = offset
        self.properties = properties  # as the log has them, without what the feed added


def add_feed(session: Session, feed: MessageSource) -> None:
    if session.feeds is None:
        session.feeds = []
    session.feeds.append(feed)


class _Nobody:
    """The feed of messages whose feed is gone."""

    def on_room(self, now: float) -> None:
        pass

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        pass


_NOBODY: Final[MessageSource] = _Nobody()


def remove_feed(session: Session, feed: MessageSource) -> None:
    """What it gave stays in the window, and is nobody's any longer.

    A message that still knew its feed, which knows the session, would keep all three until the
    collector comes, which it hardly ever does: a megabyte for each reader that went.
    """
    for entry in session.window.unacked.values():
        message = entry[0]
        if isinstance(message, SourcedMessage) and message.feed is feed:
            message.feed = _NOBODY
    feeds = session.feeds
    if feeds is not None and feed in feeds:
        feeds.remove(feed)
        if not feeds:
            session.feeds = None


def pump_feeds(session: Session, now: float) -> None:
    """Let feeds give what there is room for; each of them is first in turn."""
    feeds = session.feeds
    if feeds is None or not session.is_online:
        return
    for feed in list(feeds):
        feed.on_room(now)
    if len(feeds) > 1:
        feeds.append(feeds.pop(0))


def send_fed(
    session: Session, messages: list[SourcedMessage], grant: DeliveryOptions, now: float
) -> None:
    """Messages of a feed at QoS 1, as many as `feed_room` or fewer."""
    box = session.outbox
    window = session.window
    if not box.plain:
        for message in messages:
            packet_id = window.admit_one((message, grant, 0, None), 1)
            session.send_one(packet_id, message, grant, now, dup=False)
        return
    pieces = box.pieces
    v5 = box.v5
    for message in messages:
        head, section = message.envelope.layout(v5, grant, now)
        packet_id = window.admit_one((message, grant, 0, None), 1)
        pieces += (head, ID_BYTES[packet_id], section, message.payload)
    box.mark()
    session.budget.published += len(messages)


def take_back(session: Session, feed: MessageSource, partition: int = -1) -> list[SourcedMessage]:
    """Take what a feed gave, of one partition or of all, and the client has not acknowledged."""
    taken: list[SourcedMessage] = []
    for packet_id, entry in list(session.window.unacked.items()):
        message = entry[0]
        if isinstance(message, SourcedMessage) and message.feed is feed:
            if partition in (-1, message.partition):
                session.window.forget(packet_id)
                taken.append(message)
    return taken


def end_fed(done: list[Item], reason: int, now: float) -> None:
    """Tell feeds which of their messages these acknowledgements were for."""
    run: list[SourcedMessage] = []
    for item in done:
        message = item[0]
        if isinstance(message, SourcedMessage):
            if run and run[0].feed is not message.feed:
                run[0].feed.on_done(run, reason, now)
                run = []
            run.append(message)
    if run:
        run[0].feed.on_done(run, reason, now)
