"""What readers of streams are told beside records: on `$stream/<name>/$error`, at QoS 0.

A client that is away, or reads too slowly now, is told when it can be.
"""

from __future__ import annotations

import json

from mqtt_broker.streams.format.errors import StreamError
from sessions.messages.message import DeliveryOptions, Message, single
from sessions.messages.outbox import CONGESTED
from sessions.session import Session
from sessions.sources import SourcedMessage, add_feed, remove_feed


class Notices:
    """A feed of what a client has to be told, when it is there to read it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[tuple[Message, DeliveryOptions]] = []
        add_feed(session, self)

    def add(self, message: Message, grant: DeliveryOptions, now: float) -> None:
        self._waiting.append((message, grant))
        self.on_room(now)

    def on_room(self, now: float) -> None:
        session = self._session
        if not session.is_online or session.outbox.state >= CONGESTED:
            return
        for message, grant in self._waiting:
            session.send_one(0, message, grant, now, dup=False)
        self._waiting.clear()
        remove_feed(session, self)

    def on_over(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        raise AssertionError("a notice is QoS 0")


def tell(
    session: Session, stream: str, grant: DeliveryOptions, error: Exception, now: float
) -> None:
    """What became of a reader, with the facts; `grant` is that of its subscription."""
    facts = vars(error) if isinstance(error, StreamError) else {}
    said = {"error": type(error).__name__, "text": str(error), **facts}
    message = single(f"$stream/{stream}/$error", json.dumps(said, sort_keys=True).encode(), now=now)
    grant = DeliveryOptions(0, False, grant.subscription_ids)
    for feed in session.feeds or ():
        if isinstance(feed, Notices):
            feed.add(message, grant, now)
            return
    Notices(session).add(message, grant, now)
