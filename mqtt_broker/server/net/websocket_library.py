"""Choose and adapt the libraries of the WebSocket listener: the handshake and the frame parser.

`websockets` answers the upgrade; its subclass here selects the subprotocol, and is not compiled.
Frames are parsed by aiohttp, or by `websockets` if this version of aiohttp is not supported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from websockets.exceptions import NegotiationError
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

__all__ = ["OpeningHandshake", "parsing", "slow_because"]

slow_because = ""  # why frames are parsed slowly, if they are
try:
    from mqtt_broker.server.net import websocket_aiohttp as parsing
except ImportError as error:
    from mqtt_broker.server.net import websocket_fallback as parsing  # type: ignore[no-redef]

    slow_because = str(error)

# The pages of a server on this machine. A page of a file, or in a sandbox, has the origin `null`.
_OWN_PAGES: Final = re.compile(
    r"https?://(?:localhost|[a-z0-9.-]+\.localhost|127(?:\.[0-9]+){3}|\[::1\])(?::[0-9]+)?",
    re.IGNORECASE,
)
SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))


class OpeningHandshake(ServerProtocol):
    """The HTTP request and its answer; frames are parsed elsewhere."""

    def __init__(self, origins: Sequence[str] | None) -> None:
        """`origins`: the pages that may connect; empty: all, None: those of this machine."""
        found: list[Origin | re.Pattern[str] | None] = [Origin(text) for text in origins or ()]
        if origins is None:  # clients other than browsers name no origin
            found = [None, _OWN_PAGES]
        super().__init__(origins=found or None, subprotocols=SUBPROTOCOLS)

    def release(self) -> None:
        """Close the parser, a generator of its own method.

        Otherwise each client would leave a reference cycle to the garbage collector.
        """
        self.parser.close()

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        """Select the client's first supported subprotocol. [MQTT-6.0.0-3], [MQTT-6.0.0-4]"""
        for name in subprotocols:
            if name in SUBPROTOCOLS:
                return name
        raise NegotiationError("the subprotocol must be mqtt or mqttv3.1")
