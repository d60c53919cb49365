"""Which clients this broker owns, where several share their sessions.

Every CONNECT claims its client, and is answered when that has happened: the session may be another
broker's, which has to release it. A broker alone has no `Owners`.
"""

from __future__ import annotations

from typing import Protocol


class Owners(Protocol):
    """Claims clients for CONNECT, and is told when nothing is left of one."""

    def claim(self, client_id: str) -> None:
        """Claim a client for a CONNECT that has come just now."""

    def is_claimed(self, client_id: str) -> bool:
        """Tell whether the newest CONNECT of this client may be answered."""

    def on_abandoned(self, client_id: str) -> None:
        """Note that the CONNECT waits no longer."""

    def on_session_end(self, client_id: str, *, was_stored: bool) -> None:
        """Note that the client has no session any more."""
