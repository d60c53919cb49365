"""The socket's side of a connection, whatever kind of socket it is."""

from __future__ import annotations

from typing import Final, Protocol

# How soon the link is to read the acknowledgements of a client that sends nothing else.
LATER: Final = 0  # in some milliseconds
SOON: Final = 1  # when something else is read
NOW: Final = 2  # when they come
ONLY_ACKS: Final = 16  # reads in a row with nothing else until a client counts as such


class Link(Protocol):
    """A link may have more: `allowance` (the limits of its listener), `listener` (its name) and
    `certificate` (that its client has proved to have)."""

    @property
    def peer(self) -> str:
        """Address of the peer, for logs and access rules."""

    def write(self, data: bytes) -> int:
        """Send the data; returns how many bytes wait for the peer to read."""

    def close(self) -> None:
        """Close when what was written is sent."""

    def abort(self) -> None:
        """Close at once."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ClosedLink:
    """The link of a connection that is gone: its address is left, and nothing is written."""

    __slots__ = ("_peer",)

    def __init__(self, peer: str) -> None:
        self._peer = peer

    @property
    def peer(self) -> str:
        return self._peer

    def write(self, data: bytes) -> int:
        """Drop the data: there is nobody to read it."""
        return 0

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""
