"""The log of clients that come and go; implemented by the server, which limits and words it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ClientLog(Protocol):
    """Gets an event for each client. It may leave events out, and is cheap when it does."""

    def connected(
        self,
        client_id: str,
        username: str | None,
        peer: str,
        listener: str,
        version: int,
        keep_alive: int,
        *,
        is_resumed: bool,
    ) -> None:
        """Note a client that got its CONNACK."""

    def disconnected(
        self, client_id: str, username: str | None, peer: str, why: str, seconds: float
    ) -> None:
        """Note the end of a connection after so many seconds."""

    def refused(
        self, client_id: str, username: str | None, peer: str, listener: str, why: str
    ) -> None:
        """Note a CONNECT that was refused; the names are what the client said."""


class RefusalLog:
    """Writes refusals as plain lines, and leaves the other events out."""

    __slots__ = ("_log",)

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def connected(
        self,
        client_id: str,
        username: str | None,
        peer: str,
        listener: str,
        version: int,
        keep_alive: int,
        *,
        is_resumed: bool,
    ) -> None:
        return

    def disconnected(
        self, client_id: str, username: str | None, peer: str, why: str, seconds: float
    ) -> None:
        return

    def refused(
        self, client_id: str, username: str | None, peer: str, listener: str, why: str
    ) -> None:
        name = f"{client_id} ({peer})" if client_id else peer
        self._log(f"{name}: refused, {why}")
