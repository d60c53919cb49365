"""The interface to a log of messages: topics that are written to it, and clients that read it.

The broker asks once for each topic whether a log keeps it (`find`). The log gets the messages of
such a topic once, whatever their QoS and whoever subscribes. They are on disk with the next group
of the journal, and under `commit` the acknowledgement waits for that group.

Clients read a log by subscribing to its streams:

    $stream/<name>                        from where the user property `stream-offset` says
    $stream/<name>/@<from>                the same for clients that cannot send the property
    $share/<group>/$stream/<name>[...]    shared by the members of a consumer group

To a session these are subscriptions like others: counted, stored, refused and removed. But they
are in no route, since no published message matches them: the log sends them its records.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from mqtt_broker.codec.packets import Publish
from sessions.messages.message import Envelope
from sessions.session import Session, Subscription

OFFSET_PROPERTY: Final = "stream-offset"  # of SUBSCRIBE: where to begin

# What may happen to a session that reads a stream; see `StreamSubscriptions.on_session`.
ATTACHED: Final = 0  # a connection carries it, and it is about to resume
ONLINE: Final = 1  # it has resumed
AWAY: Final = 2  # its connection is gone


class TopicWriter(Protocol):
    """Writes the messages of some topics to a log."""

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        """Tell whether there is room for all of these. Asked before they are promised."""

    def append(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        """Take messages that were accepted.

        Those of QoS 0 that there is no room for are dropped and counted; the others were
        admitted, and are taken.
        """

    def append_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        """Take a run of QoS 0 packets as they came: it need not be cut into payloads now."""


class Refusal(NamedTuple):
    """Why a stream cannot be read: a reason code of SUBACK, and one line."""

    reason: int
    text: str


class StreamSubscriptions(Protocol):
    """Sends the records of streams to sessions that subscribe to them."""

    def refusal(
        self, session: Session, text: str, start: str | None, *, goes_on: bool
    ) -> Refusal | None:
        """Check a subscription before it is put in force; None: it may be.

        `start` is the user property's value; `goes_on` says that a subscription that exists
        already stays at its position.
        """

    def join(
        self, subscription: Subscription, start: str | None, now: float, *, goes_on: bool
    ) -> None:
        """Add a subscription. Nothing is sent before `begin`."""

    def begin(self, subscription: Subscription, now: float) -> None:
        """Start to send: the SUBACK is on its way."""

    def leave(self, subscription: Subscription, now: float) -> None:
        """Remove a subscription that is no longer in force, or whose session is over."""

    def on_session(self, session: Session, change: int, now: float) -> None:
        """Adapt to a session that was ATTACHED, is ONLINE or AWAY."""


class MessageLog(Protocol):
    """Keeps messages of some topics, and lets clients read them."""

    @property
    def subscriptions(self) -> StreamSubscriptions:
        """The part that sends records to subscribers."""

    def find(self, topic: str) -> TopicWriter | None:
        """Return what writes this topic's messages; None: nobody keeps them.

        Asked once for each topic, until its route is forgotten.
        """
