"""The states of a connection, in the order it goes through them."""

from __future__ import annotations

from typing import Final

NEW: Final = 0  # waiting for CONNECT
WAITING: Final = 1  # CONNECT is being decided; what follows it is kept
ACTIVE: Final = 2  # connected
CLOSED: Final = 3  # nothing more is read or written
