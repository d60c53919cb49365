"""Interface to the clients, subscriptions and retained messages of a broker, and its commands.

Long lists are gathered on the broker's loop in small slices. Those of everything are at most
`CACHE_S` old: whoever asks meanwhile gets the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from mqtt_broker.core.interfaces.rows import (
    ClientDetail,
    ClientRow,
    MatchRow,
    MessageRow,
    NewMessage,
    Published,
    RetainedMessage,
    RetainedRow,
    SubscriptionRow,
)
from mqtt_broker.http_api.request.broker_interface import Part

CACHE_S: Final = 1.0


class Directory(Protocol):
    """Reads the tables of a broker, and does what operators command."""

    def now(self) -> float:
        """Return the broker's time."""
        ...

    def clients(self) -> Future[list[ClientRow]]: ...

    def client(self, client_id: str) -> Future[ClientDetail | None]: ...

    def subscriptions(self, client_id: str | None) -> Future[list[SubscriptionRow]]: ...

    def matches(self, topic: str) -> Future[list[MatchRow]]: ...

    def retained(self, text: str) -> Future[list[RetainedRow]]:
        """Gather the retained messages that a Topic Filter matches; empty: all of them."""
        ...

    def retained_message(self, topic: str) -> Future[RetainedMessage | None]: ...

    def inflight(self, client_id: str) -> Future[list[MessageRow] | None]: ...

    def queue(self, client_id: str) -> Future[list[MessageRow] | None]: ...

    def kick(self, client_id: str, reason: int, remove_session: bool) -> Future[bool]: ...

    def expire(self, client_id: str) -> Future[bool]: ...

    def clear_queue(self, client_id: str) -> Future[int | None]: ...

    def clear_retained(self, text: str) -> Future[int]: ...

    def publish(self, messages: Sequence[NewMessage], publisher: str) -> Future[list[Published]]:
        """Publish the messages in their order."""
        ...


DIRECTORY: Final = Part[Directory]("directory of clients")
