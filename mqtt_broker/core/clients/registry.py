"""Every connection: those that are open, those of clients that are connected, and of which user."""

from __future__ import annotations

from typing import Protocol

from mqtt_broker.core.clients.handshake import Handshake
from mqtt_broker.core.runtime.backpressure import PausableClient
from mqtt_broker.core.runtime.runtime import FailedClient


class Client(PausableClient, FailedClient, Protocol):
    """A connection, as others see it."""

    handshake: Handshake | None

    @property
    def is_held(self) -> bool: ...

    def end(self, now: float, reason: int = 0, *, say: bool = True, why: str = "") -> None: ...

    def record_takeover(self, peer: str, now: float, *, clean_start: bool) -> None: ...

    def forget_topics(self) -> None: ...

    def on_error(self, error: Exception, data: bytes, now: float) -> None: ...


class ClientRegistry:
    __slots__ = (
        "_users", "arriving", "connections", "is_shutting_down", "links", "ready", "users",
    )  # fmt: skip

    def __init__(self) -> None:
        # Every connection that is not closed, in the order they came.
        self.links: dict[Client, None] = {}
        self.connections: dict[str, Client] = {}  # by client id, those past CONNACK
        self.arriving: dict[str, Client] = {}  # by client id, those that are about to be let in
        self.ready: list[str] = []  # of those, the ones for whom something was finished
        self.users: dict[str, int] = {}  # user name: how many of its clients are connected
        self._users: dict[str, str] = {}  # client id: the user it is counted with
        self.is_shutting_down = False

    def shut_down(self) -> None:
        """Admit no more clients."""
        self.is_shutting_down = True

    def add(self, client: Client) -> None:
        """Add a connection that was accepted."""
        self.links[client] = None

    def remove(self, client: Client) -> None:
        """Remove a connection that is closed."""
        self.links.pop(client, None)

    def finish(self, client_id: str) -> None:
        """Let a connection of this client go on that waits for what was finished now."""
        if client_id in self.arriving:
            self.ready.append(client_id)

    def take_ready(self) -> list[str]:
        """Hand out the ids of clients that may go on."""
        ready, self.ready = self.ready, []
        return ready

    def connect(self, client: Client, client_id: str, username: str | None) -> None:
        """Add a client that is past its CONNACK."""
        self.connections[client_id] = client
        if username is not None:
            self._users[client_id] = username
            self.users[username] = self.users.get(username, 0) + 1

    def disconnect(self, client_id: str) -> None:
        """Remove a client that was connected."""
        del self.connections[client_id]
        username = self._users.pop(client_id, None)
        if username is not None:
            self.users[username] -= 1
            if not self.users[username]:
                del self.users[username]

    def connections_of(self, username: str, but: str) -> int:
        """Count the connections of a user, without the client of the id `but`."""
        count = self.users.get(username, 0)
        return count - 1 if self._users.get(but) == username else count
