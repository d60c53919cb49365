"""The replay door: subscriptions that read the telemetry log instead of what is published now.

    $stream/<name>                        from where the user property `stream-offset` says
    $stream/<name>/@<from>                the same for clients that cannot say it there
    $share/<group>/$stream/<name>[...]    shared by the members of a consumer group

They are subscriptions like others to a session: counted, stored, refused and taken back. But
they are in no route, since nothing that is published matches them. Who reads files, and where
each reader is, is known behind this door.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from mqtt_broker.topics.names import split_share
from sessions.session import Session, Subscription

OFFSET_PROPERTY: Final = "stream-offset"  # of SUBSCRIBE: where to begin


class Refusal(NamedTuple):
    """Why a stream cannot be read like that: a code of SUBACK, and one line."""

    reason: int
    text: str


class StreamSubscriptions(Protocol):
    def refusal(
        self, session: Session, text: str, start: str | None, *, goes_on: bool
    ) -> Refusal | None:
        """Asked before a subscription is put in force. `start`: what the user property says;
        `goes_on`: one that is there already is to stay where it is."""

    def join(
        self, subscription: Subscription, start: str | None, now: float, *, goes_on: bool
    ) -> None:
        """It is in force. Nothing is sent before `begin`."""

    def begin(self, subscription: Subscription, now: float) -> None:
        """Its SUBACK is on its way."""

    def leave(self, subscription: Subscription, now: float) -> None:
        """It is no longer in force, or its session is over."""

    def on_attached(self, session: Session, now: float) -> None:
        """A connection carries the session; it is about to resume."""

    def on_online(self, session: Session, now: float) -> None:
        """The session has resumed."""

    def on_away(self, session: Session, now: float) -> None:
        """Its connection is gone."""


def is_stream_filter(text: str) -> bool:
    """Whether a Topic Filter reads the log, or would if there were such a stream."""
    if text.startswith("$share/"):
        shared = split_share(text)
        text = text if shared is None else shared[1]
    return text == "$stream" or text.startswith("$stream/")
