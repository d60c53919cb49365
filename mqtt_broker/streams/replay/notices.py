"""Send notices to readers of streams: on `$stream/<name>/$error`, at QoS 0.

A client that is offline, or reads too slowly, gets them later.
"""

from __future__ import annotations

import json

from mqtt_broker.streams.format.errors import StreamError
from sessions.messages.message import DeliveryOptions, Message, single
from sessions.messages.outbox import CONGESTED
from sessions.session import Session
from sessions.sources import SourcedMessage


class Notices:
    """The `MessageSource` of notices that wait for one client."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[tuple[Message, DeliveryOptions]] = []
        session.outbound.add_source(self)

    def add(self, message: Message, options: DeliveryOptions, now: float) -> None:
        self._waiting.append((message, options))
        self.on_room(now)

    def on_room(self, now: float) -> None:
        session = self._session
        if not session.is_online or session.outbound.outbox.state >= CONGESTED:
            return
        for message, options in self._waiting:
            session.outbound.send_one(0, message, options, now, dup=False)
        self._waiting.clear()
        session.outbound.remove_source(self)

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        raise AssertionError("a notice is QoS 0")


def send_notice(
    session: Session, stream: str, options: DeliveryOptions, error: Exception, now: float
) -> None:
    """Send an error with its fields; `options` are those of the subscription."""
    facts = vars(error) if isinstance(error, StreamError) else {}
    body = {"error": type(error).__name__, "text": str(error), **facts}
    message = single(f"$stream/{stream}/$error", json.dumps(body, sort_keys=True).encode(), now=now)
    options = DeliveryOptions(0, False, options.subscription_ids)
    for source in session.outbound.sources or ():
        if isinstance(source, Notices):
            source.add(message, options, now)
            return
    Notices(session).add(message, options, now)
