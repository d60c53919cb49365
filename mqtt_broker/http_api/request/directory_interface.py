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
    RetainedSelect,
    RetainedSelected,
    Rows,
    SubscriptionRow,
)
from mqtt_broker.http_api.request.broker_interface import Part

CACHE_S: Final = 1.0


class Directory(Protocol):
    """Reads the tables of a broker, and does what operators command."""

    def now(self) -> float:
        """Return the broker's time."""
        ...

    def clients(self) -> Future[Rows[ClientRow]]: ...

    def client(self, client_id: str) -> Future[ClientDetail | None]: ...

    def subscriptions(self, client_id: str | None) -> Future[Rows[SubscriptionRow]]: ...

    def matches(self, topic: str) -> Future[Rows[MatchRow]]: ...

    def retained(self, query: RetainedSelect) -> Future[RetainedSelected]:
        """Find the retained messages of a page."""
        ...

    def branches(self, prefix: str) -> Future[dict[str, int]]:
        """Count the retained messages below each child of a level."""
        ...

    def retained_message(self, topic: str) -> Future[RetainedMessage | None]: ...

    def inflight(self, client_id: str) -> Future[Rows[MessageRow] | None]: ...

    def queue(self, client_id: str) -> Future[Rows[MessageRow] | None]: ...

    def kick(self, client_id: str, reason: int, remove_session: bool) -> Future[bool]: ...

    def expire(self, client_id: str) -> Future[bool]: ...

    def clear_queue(self, client_id: str) -> Future[int | None]: ...

    def clear_retained(self, text: str) -> Future[int]: ...

    def publish(self, messages: Sequence[NewMessage], publisher: str) -> Future[list[Published]]:
        """Publish the messages in their order."""
        ...


DIRECTORY: Final = Part[Directory]("directory of clients")
